"""The header of a rendered file: one comment that names what it was rendered from, and so where people should edit.

JSON has no comments: there it is the first key, `_rendered`, which readers ignore. It changes only when the template's
name, the profile's name or the values of `--set` change, so it adds nothing to a diff of anything else.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import UsageError
from trainyard.project_files import beginning_of
from trainyard.render.settings import as_arguments, read_settings

JSON_SUFFIX = ".json"
JSON_BEGINNING = "{\n"
"""How a JSON template begins, so that the header can go below the brace."""

# Where two branches rendered different files, git may have put its mark above the header; ours is the first below it.
_MERGE_MARK = r"(?:<{7}[^\n]*\n)?"
_COMMENT = re.compile(rf"{_MERGE_MARK}# (?P<header>Rendered from templates/[^\r\n]*)")
_JSON_KEY = re.compile(  # the value was an object with a remark until version 0.1.0
    rf'{_MERGE_MARK}\{{\s*{_MERGE_MARK}\s*"_rendered":\s*(?:\{{\s*"remark":\s*)?(?P<header>"(?:[^"\\\n]|\\.)*")'
)
# The lengths are far beyond those of real headers. They bound the time that a forged one takes.
_SENTENCE = re.compile(
    r"Rendered from templates/(?P<template>.{1,1000}?) and profiles/(?P<profile>.{1,300}?)\.yaml: edit those"
    r"(?:, not this file)?, then run `trainyard render (?P<arguments>.{1,100000})`\."
)
_FIRST_BYTES = 1024
_MARK = b"Rendered from templates/"


class Header(NamedTuple):
    """What a file was rendered from: the template below `templates/`, the profile's name, the values of `--set`."""

    template: str
    profile: str
    settings: Mapping[str, object]

    @property
    def arguments(self) -> str:
        """What follows `trainyard render` to render the file again."""
        return f"{shlex.quote(self.profile)}{as_arguments(self.settings)}"

    def joined_with(self, file: Path, content: str) -> str:
        """Return the text of a file: this header, and the content below it."""
        sources = f"templates/{self.template} and profiles/{self.profile}.yaml"
        sentence = f"Rendered from {sources}: edit those, then run `trainyard render {self.arguments}`."
        if file.suffix == JSON_SUFFIX:
            value = json.dumps(sentence, ensure_ascii=False)
            return f'{JSON_BEGINNING}  "_rendered": {value},\n{content.removeprefix(JSON_BEGINNING)}'
        return f"# {sentence}\n{content}"


def read_header(text: str) -> Header | None:
    """Return the header of a text; None without one, or with one that cannot be understood."""
    written = _COMMENT.match(text) or _JSON_KEY.match(text)
    if written is None:
        return None
    sentence = written["header"]
    try:
        sentence = json.loads(sentence) if sentence.startswith('"') else sentence
        header = _SENTENCE.fullmatch(sentence)
        if header is None:
            return None
        profile, *options = shlex.split(header["arguments"])
        settings = read_settings(options[1::2])
    except (ValueError, UsageError):
        return None
    is_understood = profile == header["profile"] and set(options[::2]) <= {"--set"} and len(options) % 2 == 0
    return Header(header["template"], profile, settings) if is_understood else None


def content_of(text: str) -> str:
    """Return what is below the header of a rendered text."""
    rest = text.partition("\n")[2]
    if not text.startswith("{"):
        return rest
    second, _, content = rest.partition("\n")
    # If an editor reformatted the JSON, the two cannot be told apart.
    return JSON_BEGINNING + content if second.lstrip().startswith('"_rendered"') else text


def header_line(file: Path) -> int:
    """Return the number of the header's line: in JSON it is below the brace."""
    return 1 + JSON_BEGINNING.count("\n") if file.suffix == JSON_SUFFIX else 1


def may_hold_header(file: Path) -> bool:
    """Return whether a file begins as a rendered one does, without reading all of it."""
    return _MARK in beginning_of(file, _FIRST_BYTES)


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
