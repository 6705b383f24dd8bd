"""Where the files that ship with Trainyard are: at the root of a checkout, or inside an installed package."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DISTRIBUTION = "trainyard-azureml"
"""What package indexes call this; `trainyard` there is somebody else's."""

STEP_ARCHIVE = "trainyard.zip"
"""The code of the steps in the `src/` of a project, beside the project's own."""

PACKAGE = Path(__file__).resolve().parent
"""The folder of the package `trainyard`."""

_SCHEMA_SUFFIX = ".schema.json"
_SCHEMA_SOURCES = "sources"


def shipped(name: str) -> Path:
    """Return a folder of the repository's root that the wheel carries too: schemas, templates, profiles."""
    packaged = PACKAGE / "_shipped"
    return (packaged if packaged.is_dir() else PACKAGE.parent.parent) / name


def schema_file(name: str) -> Path:
    """Return the JSON Schema of one kind of file, by its name: `schema_file("profile")`."""
    return shipped("schemas") / f"{name}{_SCHEMA_SUFFIX}"


def schema_source(name: str) -> Path:
    """Return the schema as it is written by hand: with what only the linter reads, and definitions in `common`."""
    source = shipped("schemas") / _SCHEMA_SOURCES / f"{name}{_SCHEMA_SUFFIX}"
    return source if source.is_file() else schema_file(name)


@cache
def word_tables(package: str) -> dict[str, Any]:
    """Return the tables in a package's `known_words.json`: what Azure ML and other programs know, with sources."""
    return dict(json.loads((PACKAGE / package / "known_words.json").read_text(encoding="utf-8")))


@cache
def shared_definitions() -> dict[str, Any]:
    """Return the definitions that several schemas have in common, by name."""
    return dict(json.loads(schema_source("common").read_text(encoding="utf-8"))["$defs"])


def schema_names() -> list[str]:
    """Return the names that `schema_file` knows."""
    folder = shipped("schemas")
    files = (file.relative_to(folder).as_posix() for file in folder.rglob(f"*{_SCHEMA_SUFFIX}"))
    names = (file.removesuffix(_SCHEMA_SUFFIX) for file in files)
    return sorted(name for name in names if not name.startswith(f"{_SCHEMA_SOURCES}/"))
