"""The header of a rendered file: where people should edit, and what Trainyard rendered it from.

It is two lines of comment at the top. JSON has no comments: there it is the first key, `_rendered`, which readers
ignore. It holds everything needed to detect drift and hand edits; no other state is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.project_files import beginning_of
from trainyard.render.settings import as_arguments

FORMAT = "trainyard.rendered/1"
LINES = 2
JSON_SUFFIX = ".json"
JSON_BEGINNING = "{\n"
"""How a JSON template begins, so that the header can go below the brace."""

_MARK = "# trainyard: "
_JSON_KEY = "_rendered"
_JSON_MARK = f'  "{_JSON_KEY}": '
# Files are recognised by their beginning; no header is longer.
_LONGEST_HEADER_CHARACTERS = 16_384


class UnknownHeaderFormat(ValueError):
    """A file was rendered by a version of Trainyard with another header format."""


@dataclass(frozen=True)
class Header:
    """What a file was rendered from. Digests are the first 16 hexadecimal digits of SHA-256.

    `template` is relative to `templates/`; `settings` are those of `--set`; `template_digest` covers the template
    and all it includes, `profile_digest` the profile, what it extends and the settings, `content_digest` what is
    below the header.
    """

    template: str
    profile: str
    settings: Mapping[str, object]
    template_digest: str
    profile_digest: str
    content_digest: str

    def joined_with(self, file: Path, content: str) -> str:
        """Return the text of a file: this header, and the content below it."""
        remark = (
            f"Rendered from templates/{self.template} and profiles/{self.profile}.yaml: edit those, not this file,"
            f" then run `trainyard render {self.profile}{as_arguments(self.settings)}`."
        )
        fields = {"format": FORMAT, **asdict(self)}
        if file.suffix == JSON_SUFFIX:
            entry = json.dumps({"remark": remark, **fields}, ensure_ascii=False)
            return f"{JSON_BEGINNING}{_JSON_MARK}{entry},\n{content.removeprefix(JSON_BEGINNING)}"
        return f"# {remark}\n{_MARK}{json.dumps(fields, ensure_ascii=False)}\n{content}"


def digest(text: str) -> str:
    """Return the digest of a text, as headers hold it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_header(text: str) -> Header | None:
    """Return the header of a text, or None if Trainyard did not render it.

    Raise UnknownHeaderFormat if another version did, in a format that this one cannot read.
    """
    try:
        content = _entry(text)
        written_as = content.pop("format")
        if written_as == FORMAT:
            header = Header(**content)
            is_text = all(isinstance(each, str) for each in (header.template, header.profile))
            return header if is_text and isinstance(header.settings, dict) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # No header, a damaged one, or somebody else's comment: never overwrite such a file.
        return None
    raise UnknownHeaderFormat(f"its header is of format {written_as}, and this Trainyard reads {FORMAT}")


def content_of(text: str) -> str:
    """Return what is below the header of a rendered text."""
    _, entry, content = _parts(text)
    if text.startswith("{"):
        # If an editor reformatted the JSON, the two cannot be told apart; it counts as edited in any case.
        return JSON_BEGINNING + content if entry.startswith(_JSON_MARK) else text
    return content


def content_lines_in_header(file: Path) -> int:
    """Return how many lines of the content precede the header: in JSON, the one with the brace."""
    return JSON_BEGINNING.count("\n") if file.suffix == JSON_SUFFIX else 0


def was_edited(text: str, header: Header) -> bool:
    """Return whether a rendered text was edited by hand since."""
    return digest(content_of(text)) != header.content_digest


def may_hold_header(file: Path) -> bool:
    """Return whether a file begins as a rendered one does, without reading all of it."""
    mark = f'"{_JSON_KEY}"' if file.suffix == JSON_SUFFIX else f"\n{_MARK}"
    return mark.encode() in beginning_of(file, _LONGEST_HEADER_CHARACTERS)


def _entry(text: str) -> Any:
    """Return the fields of the header as they are written."""
    if text.startswith("{"):
        entry = json.loads(text)[_JSON_KEY]
        del entry["remark"]
        return entry
    _, line, _ = _parts(text)
    if not line.startswith(_MARK):
        raise ValueError("no header")
    return json.loads(line.removeprefix(_MARK))


def _parts(text: str) -> tuple[str, str, str]:
    """Return the first line, the second, and the rest."""
    first, _, rest = text.partition("\n")
    second, _, content = rest.partition("\n")
    return first, second, content
