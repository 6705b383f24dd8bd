"""The first two lines of a rendered file: for people, where to edit; for Trainyard, what it was rendered from.

The second line holds everything that is needed to tell drift and hand edits: no other state is kept anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trainyard.author.settings import as_arguments

FORMAT = "trainyard.rendered/1"
LINES = 2
_MARK = "# trainyard: "
# A file is recognised by its beginning; no header is longer.
_LONGEST_HEADER_CHARACTERS = 16_384


class UnknownHeaderFormat(ValueError):
    """A file says that Trainyard rendered it, in a form this version does not know."""


@dataclass(frozen=True)
class Header:
    """What a file was rendered from. Digests are the first 16 hexadecimal digits of SHA-256.

    `template` is relative to `templates/`; `settings` are what `--set` gave; `template_digest` covers the template
    and all it includes, `profile_digest` the profile, what it extends and the settings, `content_digest` what stands
    beneath the header.
    """

    template: str
    profile: str
    settings: Mapping[str, object]
    template_digest: str
    profile_digest: str
    content_digest: str

    def text(self) -> str:
        """The two lines, as they stand at the top of the file."""
        machine_readable = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False)
        return (
            f"# Rendered from templates/{self.template} and profiles/{self.profile}.yaml: edit those, not this file,"
            f" then run `trainyard render {self.profile}{as_arguments(self.settings)}`.\n{_MARK}{machine_readable}\n"
        )


def digest(text: str) -> str:
    """The digest that headers hold of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_header(text: str) -> Header | None:
    """The header of a text, or None when Trainyard did not render it.

    Raises `UnknownHeaderFormat` when another version did, in a form that this one cannot read.
    """
    lines = text.split("\n", LINES)
    if len(lines) <= LINES or not lines[1].startswith(_MARK):
        return None
    try:
        content = json.loads(lines[1].removeprefix(_MARK))
        written_as = content.pop("format")
        if written_as == FORMAT:
            return Header(**content)
    except (ValueError, TypeError, KeyError, AttributeError):
        # Damaged by hand, or somebody else's remark: nothing that may be written over.
        return None
    raise UnknownHeaderFormat(f"its second line is of format {written_as}, and this Trainyard reads {FORMAT}")


def content_of(text: str) -> str:
    """What stands beneath the header of a rendered text."""
    return text.split("\n", LINES)[LINES]


def was_edited(text: str, header: Header) -> bool:
    """Whether a rendered text was changed by hand since."""
    return digest(content_of(text)) != header.content_digest


def may_hold_header(file: Path) -> bool:
    """Whether a file begins as a rendered one does, without reading all of it."""
    with file.open("rb") as opened:
        return f"\n{_MARK}".encode() in opened.read(_LONGEST_HEADER_CHARACTERS)
