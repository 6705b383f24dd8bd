"""Which rendered files were edited by hand: what neither git has nor Trainyard wrote last, as its record here says.

The record, `.trainyard/rendered.json`, has a digest for each file. It is not committed: what is, git knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from trainyard.git import NoGit, index_of, is_object
from trainyard.project_files import keep_out_of_git, read_text, write_text
from trainyard.render.header import digest
from trainyard.render.project import Project
from trainyard.render.rendered_files import FileOnDisk

_FORMAT = "trainyard.rendered_files/1"
_MERGE_MARKS = [re.compile(mark, re.MULTILINE) for mark in (r"^<{7} ", r"^={7}\r?$", r"^>{7} ")]


def edited_by_hand(
    project: Project, root: Path, files: Iterable[FileOnDisk], *, unless_unknown: bool = False
) -> set[Path]:
    """Return which files below a root hold somebody's work: a text that is neither in the record nor in git.

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
    """Return whether git left the marks of a conflict in a text."""
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
