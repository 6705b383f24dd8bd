"""The files on disk that Trainyard rendered: their headers, and which of them were edited by hand.

A header is one comment that names what a file was rendered from, and so where people should edit. JSON has no comments:
there it is the first key, `_rendered`, which readers ignore. It changes only when the names of template and profile or
the values of `--set` do, so it adds nothing to a diff of anything else.

Edited by hand is what neither git has nor Trainyard wrote last, as its record here says: `.trainyard/rendered.json` has
a digest for each file, and is not committed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import UsageError
from trainyard.git import NoGit, index_of, is_object
from trainyard.project_files import beginning_of, keep_out_of_git, read_text, write_text
from trainyard.render.project import Project
from trainyard.render.settings import as_arguments, read_settings
from trainyard.render.templates import SUFFIX

JSON_SUFFIX = ".json"
JSON_BEGINNING = "{\n"
"""How a JSON template begins, so that the header can go below the brace."""

# Where two branches rendered different files, git may have put its mark above the header; ours is the first below it.
_MERGE_MARK = r"(?:<{7}[^\n]*\n)?"
_COMMENT = re.compile(rf"{_MERGE_MARK}# (?P<header>Rendered from templates/[^\r\n]*)")
_JSON_KEY = re.compile(rf'{_MERGE_MARK}\{{\s*{_MERGE_MARK}\s*"_rendered":\s*(?P<header>"(?:[^"\\\n]|\\.)*")')
# The lengths are far beyond those of real headers. They bound the time that a forged one takes.
_SENTENCE = re.compile(
    r"Rendered from templates/(?P<template>.{1,1000}?) and profiles/(?P<profile>.{1,300}?)\.yaml: edit those, "
    r"then run `trainyard render (?P<arguments>.{1,100000})`\."
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
    """Return the header of a file's text; None without one, or with one that cannot be understood."""
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


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of a string's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FileOnDisk:
    """A file that Trainyard rendered, with its present text."""

    path: Path
    text: str
    header: Header


def files_on_disk(project: Project, root: Path) -> list[FileOnDisk]:
    """Return every rendered file below a root, in the folders that the templates have; sorted by path.

    A copy under another name belongs to whoever made it, and is left out.
    """
    folders = sorted(path.name for path in project.templates.iterdir() if path.is_dir())
    return [
        found
        for folder in folders
        for path in sorted(path for path in (root / folder).rglob("*") if path.is_file())
        if (found := read_rendered(path)) is not None
        if path == root / found.header.template.removesuffix(SUFFIX)
    ]


def read_rendered(path: Path) -> FileOnDisk | None:
    """Return a file with its header, or None if it does not exist, is not text, or was not rendered by Trainyard."""
    try:
        if _MARK not in beginning_of(path, _FIRST_BYTES):
            return None
        text = read_text(path)
        header = read_header(text)
    except (OSError, UnicodeDecodeError):
        return None
    return FileOnDisk(path, text, header) if header is not None else None


def rendered_for(
    project: Project, root: Path, profile_name: str | None, settings: Mapping[str, object] | None
) -> tuple[str, dict[str, object]]:
    """Return the profile and settings to render: those given, or those that most files on disk were rendered for.

    Settings without a profile are applied on top of those on disk. Raise UsageError if neither names a profile.
    """
    if profile_name is not None:
        return profile_name, dict(settings or {})
    found = files_on_disk(project, root)
    if not found:
        raise UsageError(f"nothing is rendered in {root} yet, so name a profile, such as: trainyard render t4")
    headers = {file.header.arguments: file.header for file in found}
    [(most_common, _)] = Counter(file.header.arguments for file in found).most_common(1)
    header = headers[most_common]
    return header.profile, {**header.settings, **(settings or {})}


_FORMAT = "trainyard.rendered_files/1"
_MERGE_MARKS = [re.compile(mark, re.MULTILINE) for mark in (r"^<{7} ", r"^={7}\r?$", r"^>{7} ")]


def edited_by_hand(
    project: Project, root: Path, files: Iterable[FileOnDisk], *, unless_unknown: bool = False
) -> set[Path]:
    """Return which files below a root hold somebody's work: text that is neither in the record nor in git.

    Both sides of a merge's conflict are in git, so a file with its marks is nobody's work. Outside of git a file that
    the record does not have may be anybody's: it counts as edited, but with `unless_unknown` it does not.
    """
    record = _read_record(project)
    unknown = [file for file in files if record.get(project.shown(file.path)) != digest(file.text)]
    unknown = [file for file in unknown if not has_merge_marks(file.text)]
    if not unknown:
        return set()
    try:
        objects = index_of(root, *{file.path.relative_to(root).parts[0] for file in unknown})
    except NoGit:
        objects = {}
        unknown = [file for file in unknown if not unless_unknown or project.shown(file.path) in record]
    return {file.path for file in unknown if not is_object(objects.get(file.path, ""), file.text.encode())}


def has_merge_marks(text: str) -> bool:
    """Return whether git left conflict markers in a file."""
    return all(mark.search(text) for mark in _MERGE_MARKS)


def record_written(project: Project, texts: Mapping[Path, str], removed: Collection[Path]) -> None:
    """Note what was written last, and what is no longer there. OSError where that fails."""
    before = _read_record(project)
    now = before | {project.shown(path): digest(text) for path, text in texts.items()}
    for path in removed:
        now.pop(project.shown(path), None)
    if now != before:
        text = json.dumps({"format": _FORMAT, "files": dict(sorted(now.items()))}, indent=1)
        write_text(project.record, f"{text}\n", project.root)
        keep_out_of_git(project.record.parent)


def _read_record(project: Project) -> dict[str, str]:
    """Return the digest of each file; of a damaged record, or one of another version, none."""
    try:
        record = json.loads(read_text(project.record))
        return dict(record["files"]) if record["format"] == _FORMAT else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
