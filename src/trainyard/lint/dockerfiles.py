"""The image that a Dockerfile builds on."""

from __future__ import annotations

import re
from pathlib import Path

from trainyard.foundation.lazy_patterns import lazy_pattern
from trainyard.spec.diagnostic import Span

_ARGUMENT = lazy_pattern(r"ARG\s+(\w+)=[\"']?([^\s\"']+)", re.IGNORECASE)
_FROM = lazy_pattern(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_VARIABLE = lazy_pattern(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")


def base_image(dockerfile: Path) -> tuple[str, Span] | None:
    """The image at the bottom of a Dockerfile's last stage, and where it is written; None if it cannot be read."""
    try:
        lines = dockerfile.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    arguments: dict[str, str] = {}
    stages: dict[str, tuple[str, Span]] = {}
    last: tuple[str, Span] | None = None
    for number, line in enumerate(lines, start=1):
        if (argument := _ARGUMENT.match(line.strip())) is not None and last is None:
            arguments[argument[1]] = argument[2]
        elif (match := _FROM.match(line)) is not None:
            image = _VARIABLE.sub(lambda found: arguments.get(found[1] or found[3], found[2] or found[0]), match[1])
            span = Span(dockerfile, number, match.start(1) + 1, number, match.end(1) + 1)
            last = stages.get(image.lower(), (image, span))
            if match[2]:
                stages[match[2].lower()] = last
    return last
