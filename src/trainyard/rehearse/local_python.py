"""The Python that jobs run with here: its version, the packages that it has or lacks, and those that lie elsewhere."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainyard.rehearse.digests import digest_of
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.settings.files import files_beneath, os_error_reason
from trainyard.settings.regex import regex
from trainyard.spec.shell_words import step_call

_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
_NO_PATH = regex(r"#|import\s")
_NO_CODE = regex(r"(?:^|/)(?:\.[^/]*|__pycache__)$")
# What setuptools writes where a package's folder cannot be put on the path as it is: modules and where they are.
_MAPPING = regex(r"^MAPPING: dict\[str, str\] = (\{.*\})$", re.MULTILINE)


def local_python_digest(python: Path = Path(sys.executable)) -> str:
    """Return the digest of the Python and the packages that jobs run with here: another torch is another result.

    Raise `RunError` for another Python that does not start.
    """
    return _digest_with(python, frozenset(_package_folders(python)))


@functools.lru_cache(maxsize=64)
def _digest_with(python: Path, _folders: frozenset[tuple[str, int]]) -> str:
    version, _ = _version_and_path(python)
    # Another may be a script around a Python, which only its path tells apart.
    named = [] if python == Path(sys.executable) else [str(python)]
    return digest_of(version, local_packages(python), *named)


def local_packages(python: Path) -> list[str]:
    """Return the folders of the metadata of a Python's packages, such as `numpy-2.4.0.dist-info`, sorted."""
    return sorted(name for folder in _package_folders(python) for name in _names_in(*folder) if name.endswith("-info"))


def _package_folders(python: Path) -> set[tuple[str, int]]:
    """The folders of a Python's packages, and when something was last installed there."""
    folders = (entry for entry in python_paths(python) if os.path.basename(entry) in _PACKAGE_FOLDERS)
    return {(folder, os.stat(folder).st_mtime_ns) for folder in folders if os.path.isdir(folder)}


@functools.lru_cache(maxsize=64)
def _names_in(folder: str, _modified_ns: int) -> list[str]:
    return os.listdir(folder)


def editable_installs(python: Path = Path(sys.executable)) -> list[Path]:
    """Return the folders and modules elsewhere that a Python imports from, as after `pip install -e`, sorted.

    They are read from the files that installers write: `.pth` files
    (https://docs.python.org/3/library/site.html), and setuptools' finders (`__editable___*_finder.py`).
    """
    found = {root for folder in _package_folders(python) for root in _editable_in(*folder)}
    return sorted(root for root in found if os.path.exists(root) and not _PACKAGE_FOLDERS & set(root.parts))


@functools.lru_cache(maxsize=64)
def _editable_in(folder: str, modified_ns: int) -> list[Path]:
    found: list[Path] = []
    for name in _names_in(folder, modified_ns):
        if name.endswith(".pth"):
            lines = (line.strip() for line in text_of(Path(folder, name)).splitlines())
            found += [Path(folder, line) for line in lines if line and not _NO_PATH.match(line)]
        elif name.startswith("__editable___") and (mapping := _MAPPING.search(text_of(Path(folder, name)))):
            places = [Path(place) for place in ast.literal_eval(mapping[1]).values()]
            found += [place if place.exists() else place.with_suffix(".py") for place in places]
    return found


def text_of(file: Path) -> str:
    """Return the text of a file, whatever its encoding."""
    return file.read_text(encoding="utf-8", errors="replace")


def importable_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the modules and the packages' files that can be imported from a folder, with their relative names.

    Beneath a project's folder lies much else, such as data and virtual environments. For a package's own folder, as for
    a module, that is all of it.
    """
    for entry in _importable_entries(root):
        if entry.is_file():
            yield entry, entry.name
        else:
            code = files_beneath(entry, lambda folder: not _NO_CODE.search(folder))
            yield from ((file, f"{entry.name}/{name}") for file, name in code)


def importable_modules(root: Path) -> set[str]:
    """Return the names of the modules and packages that can be imported from a folder, or of the one that it is."""
    return {entry.name.partition(".")[0] for entry in _importable_entries(root)}


def _importable_entries(root: Path) -> list[Path]:
    if os.path.isfile(root) or os.path.isfile(root / "__init__.py"):
        return [root]
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []  # nothing is imported from there either
    return [entry for entry in entries if _is_importable(entry)]


def _is_importable(entry: Path) -> bool:
    if entry.is_file():
        return entry.suffix in (".py", ".so")
    return entry.name.isidentifier() and (any(entry.glob("*.py")) or any(entry.glob("*/__init__.py")))


def python_paths(python: Path) -> list[str]:
    """Return the folders that a Python imports from."""
    return _version_and_path(python)[1]


def python_version(python: Path) -> str:
    """Return a Python's version, such as `3.11.7`."""
    return _version_and_path(python)[0].split()[0]


def _version_and_path(python: Path) -> tuple[str, list[str]]:
    return (sys.version, sys.path) if python == Path(sys.executable) else _answers_of(python)


@functools.cache
def _answers_of(python: Path) -> tuple[str, list[str]]:
    """The version and path of another Python."""
    ask = "import json, sys; print(json.dumps([sys.version, sys.path]))"
    try:
        answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = os_error_reason(error) if isinstance(error, OSError) else f"it ended with exit code {error.returncode}"
        raise RunError(f"--python {python}: cannot be started as the Python of jobs: {why}") from error
    version, path = json.loads(answer.stdout)
    return version, path


_OF_TRAININGS = ("torch", "numpy", "safetensors")
_TRAIN, _SPARK, _TENSORFLOW, _LIGHTNING = (
    f'pip install "trainyard-azureml[{extra}]"' for extra in ("train", "spark", "tensorflow", "lightning")
)
_HOROVOD = "build it with `make setup-horovod`, or with environments/trainyard-horovod/build_horovod.sh"
_HOW_TO_INSTALL = {"pyspark": _SPARK, "tensorflow": _TENSORFLOW, "lightning": _LIGHTNING, "horovod": _HOROVOD}
"""Of packages that are not among those of `[train]`."""
_NEEDED: dict[str, tuple[str, ...]] = {
    "prepare_images": ("numpy",),
    "prepare_text": ("numpy", "tokenizers"),
    "prepare_text_spark": ("pyspark", "numpy", "tokenizers"),
    "train_tensorflow": ("numpy", "tensorflow"),
    "train_deepspeed": (*_OF_TRAININGS, "deepspeed"),
    "train_lightning": (*_OF_TRAININGS, "lightning"),
    "train_horovod": (*_OF_TRAININGS, "horovod"),
    "check_cluster": ("torch", "numpy"),
    "compare_configs": (),
}
"""What steps import whatever the task and the format of the data; all others import what trainings do."""


def require_packages_of_steps(jobs: Iterable[LocalJob], python: Path) -> None:
    """Raise `RunError`, with a line for each way to install them, for packages that steps need and a Python lacks."""
    users: dict[str, list[str]] = {}
    for job in jobs:
        call = step_call(str(job.component.command.data))
        for package in _NEEDED.get(call.step, _OF_TRAININGS) if call is not None else ():
            users.setdefault(package, []).append(job.name)
    missing: dict[str, list[str]] = {}
    for package in users:
        if not _has(python, package):
            missing.setdefault(_HOW_TO_INSTALL.get(package, _TRAIN), []).append(package)
    lines = []
    for how, packages in missing.items():
        names = ", ".join(dict.fromkeys(job for package in packages for job in users[package]))
        need = "need" if "," in names else "needs"
        lines.append(f"{python} lacks {', '.join(packages)}, which {names} {need}; {how}")
    if lines:
        raise RunError("\n".join(lines))


def _has(python: Path, package: str) -> bool:
    """Whether a Python has a package: as a folder or file of its path, or by the metadata of one that is editable."""
    if python == Path(sys.executable) and package in sys.modules:
        return True
    if importlib.machinery.PathFinder.find_spec(package, python_paths(python)) is not None:
        return True
    return any(name.lower().startswith(f"{package.lower()}-") for name in local_packages(python))
