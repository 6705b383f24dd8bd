"""What a job uses of this machine that Azure ML does not upload: files that it names absolutely, editable installs.

They count for its result by content. On the cluster they are not there, unless the image has them, so a run says so.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.rehearse.digests import ContentDigests, digest_of
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.rehearse.local_python import editable_installs, importable_modules
from trainyard.settings.files import files_beneath
from trainyard.settings.regex import regex
from trainyard.spec.model import Sweep
from trainyard.spec.shell_lexer import BINDING, simple_commands

# Variables that name places to write to, such as HF_HOME and TMPDIR: what is there changes with each run.
_SCRATCH = regex(r"CACHE|TMP|TEMP|_HOME$")
_HOME = regex(r"^~(?=/)|\$HOME\b|\$\{HOME\}")
_BETWEEN_PATHS = regex(r"""[=:,;\s'"]+""")
# An image has these itself. A file in them counts, but not all of such a folder.
_OF_IMAGES = ("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/usr")
_NO_FILES = ("/dev", "/proc", "/run", "/sys")
# What changes without the job: git's own files, and runs.
_NOT_CONTENT = frozenset({"__pycache__", ".git", ".trainyard"})


class NamedFiles(NamedTuple):
    """An absolute path as a job names it, maybe with wildcards, and what is there."""

    text: str
    paths: tuple[Path, ...]

    def digest(self, digests: ContentDigests) -> str:
        """Return the digest of the content; where some of it cannot be read, of the files' sizes and times."""
        try:
            return digest_of(*(digests.of_files(_content(path), f"{path}, named") for path in self.paths))
        except (OSError, RunError):
            return digest_of(self.text, *(_sizes_and_times(path) for path in self.paths))

    @property
    def is_of_images(self) -> bool:
        """Whether an image has such a file itself."""
        return _is_beneath(self.text, _OF_IMAGES)


def named_absolutely(job: LocalJob) -> list[NamedFiles]:
    """Return the files and folders outside of its snapshot that a job's command, values or variables name absolutely.

    Folders that hold a home or temporary files, such as `/tmp`, are too much to be meant as content.
    """
    found = dict.fromkeys(text for words in _texts(job) for text in _paths_in(words))
    named = (NamedFiles(text, tuple(filter(_is_content, map(Path, sorted(glob.glob(text)))))) for text in found)
    return [each for each in named if each.paths]


def _texts(job: LocalJob) -> Iterator[str]:
    commands = [job.component.command.data]
    if isinstance(job.component.task, Sweep):
        commands.append(job.component.task.trial.command.data)
    for command in commands:
        text = str(command)
        for words in simple_commands(text):
            # What `>` writes to is not read.
            yield from (word.text for word in words if not text[: word.start].rstrip(" \t").endswith(">"))
    yield from (source for source in job.inputs.values() if isinstance(source, str))
    yield from (value for name, value in job.environment_variables.items() if not _SCRATCH.search(name))


def _paths_in(text: str) -> Iterator[str]:
    """Yield the absolute paths in a word: the word itself, or after `--flag=`, or between quotes or colons."""
    plain = _HOME.sub(os.path.expanduser("~"), BINDING.sub("binding", text))
    for part in (plain, *_BETWEEN_PATHS.split(plain)):
        if part.startswith("/") and not part.startswith("//") and not _is_beneath(part, _NO_FILES):
            yield part.rstrip("/") or "/"


def _is_beneath(text: str, folders: Iterable[str]) -> bool:
    return any(text == folder or text.startswith(f"{folder}/") for folder in folders)


def _is_content(path: Path) -> bool:
    if not os.path.isdir(path):
        return os.path.isfile(path)
    above = [Path(os.path.expanduser("~")), Path(tempfile.gettempdir())]
    return not _is_beneath(str(path), _OF_IMAGES) and not any(each.is_relative_to(path) for each in above)


def _content(path: Path) -> Iterable[tuple[Path, str]]:
    if path.is_file():
        return [(path, path.name)]
    return files_beneath(path, lambda name: name.rpartition("/")[2] not in _NOT_CONTENT)


def _sizes_and_times(path: Path) -> list[tuple[str, int, int]]:
    files = [path, *(Path(folder, name) for folder, _, names in os.walk(path) for name in names)]
    seen = []
    for file in sorted(files):
        with contextlib.suppress(OSError):
            status = file.lstat()
            seen.append((str(file), status.st_size, status.st_mtime_ns))
    return seen


def outside_notes(job: LocalJob, python: Path) -> list[str]:
    """Return a note for each thing that a job, which runs with this Python, uses of this machine only."""
    notes = [
        f"{job.name}: {named.text} is a path of this machine, which the cluster does not have, unless the image does: "
        "make it an input, or part of the code"
        for named in named_absolutely(job)
        if not named.is_of_images
    ]
    for root in editable_installs(python):
        module = _imported(job, root)
        if module is not None:
            notes.append(
                f"{job.name}: it imports {module} from {root} (an editable install), which the cluster does not have, "
                "unless the environment installs it: put it into the code or the environment"
            )
    return notes


def _imported(job: LocalJob, root: Path) -> str | None:
    """A module beneath `root` that a job's own files or its command import, and that its files do not bring; or None"""
    if job.has_in_its_code(root):
        return None
    modules = importable_modules(root)
    if not modules:
        return None
    names = "|".join(sorted(map(re.escape, modules)))
    imports = re.compile(rf"(?:^\s*(?:import|from)\s+|-m\s+)({names})\b", re.MULTILINE)
    texts = [str(job.component.command.data)]
    scripts = (file for file, place in job.snapshot.files if place.endswith(".py"))
    texts += [file.read_text(encoding="utf-8", errors="replace") for file in scripts]
    found = {name for text in texts for name in imports.findall(text)}
    return min(found - _brought(job), default=None)


def _brought(job: LocalJob) -> set[str]:
    """The modules that its snapshot has at its top, or in an archive."""
    places = [place for _, place in job.snapshot.files]
    for file, place in job.snapshot.files:
        if place.endswith(".zip") and zipfile.is_zipfile(file):
            with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
                places += archive.namelist()
    return {place.partition("/")[0].removesuffix(".py") for place in places}
