"""The header of a rendered file: for people, where to edit; for Trainyard, what it was rendered from.

It is two lines of comment at the top. JSON has no comments: there it is the first key, `_rendered`, which whoever
reads the file leaves out. It holds everything that is needed to tell drift and hand edits: no other state is kept
anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.author.settings import as_arguments

FORMAT = "trainyard.rendered/1"
LINES = 2
JSON_SUFFIX = ".json"
JSON_BEGINNING = "{\n"
"""What a JSON template's text begins with, so that the header can stand beneath the brace."""

_MARK = "# trainyard: "
_JSON_KEY = "_rendered"
_JSON_MARK = f'  "{_JSON_KEY}": '
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

    def joined_with(self, file: Path, content: str) -> str:
        """The whole text of a file: this header, and the content beneath it."""
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
    """The digest that headers hold of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_header(text: str) -> Header | None:
    """The header of a text, or None when Trainyard did not render it.

    Raises `UnknownHeaderFormat` when another version did, in a form that this one cannot read.
    """
    try:
        content = _entry(text)
        written_as = content.pop("format")
        if written_as == FORMAT:
            return Header(**content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # No header, one damaged by hand, or somebody else's remark: nothing that may be written over.
        return None
    raise UnknownHeaderFormat(f"its header is of format {written_as}, and this Trainyard reads {FORMAT}")


def content_of(text: str) -> str:
    """What stands beneath the header of a rendered text."""
    _, entry, content = _parts(text)
    if text.startswith("{"):
        # Where an editor laid out the JSON anew there is no telling the two apart, and it was edited in any case.
        return JSON_BEGINNING + content if entry.startswith(_JSON_MARK) else text
    return content


def content_lines_in_header(file: Path) -> int:
    """How many lines of its content stand above or within a file's header: in JSON the one with the brace."""
    return JSON_BEGINNING.count("\n") if file.suffix == JSON_SUFFIX else 0


def was_edited(text: str, header: Header) -> bool:
    """Whether a rendered text was changed by hand since."""
    return digest(content_of(text)) != header.content_digest


def may_hold_header(file: Path) -> bool:
    """Whether a file begins as a rendered one does, without reading all of it."""
    mark = f'"{_JSON_KEY}"' if file.suffix == JSON_SUFFIX else f"\n{_MARK}"
    with file.open("rb") as opened:
        return mark.encode() in opened.read(_LONGEST_HEADER_CHARACTERS)


def _entry(text: str) -> Any:
    """What the header says, as it stands there."""
    if text.startswith("{"):
        entry = json.loads(text)[_JSON_KEY]
        del entry["remark"]
        return entry
    _, line, _ = _parts(text)
    if not line.startswith(_MARK):
        raise ValueError("no header")
    return json.loads(line.removeprefix(_MARK))


def _parts(text: str) -> tuple[str, str, str]:
    """The first line, the second, and all that follows."""
    first, _, rest = text.partition("\n")
    second, _, content = rest.partition("\n")
    return first, second, content
