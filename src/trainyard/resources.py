"""Paths of the data files that ship with Trainyard: at the root of a checkout, inside an installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def schema_file(name: str) -> Path:
    """Return the path of the JSON Schema of one kind of file, such as `profile`."""
    packaged = _PACKAGE / "_schemas"
    folder = packaged if packaged.is_dir() else _PACKAGE.parent.parent / "schemas"
    return folder / f"{name}.schema.json"


def schema_names() -> list[str]:
    """Return the names that `schema_file` knows, sorted."""
    return sorted(
        file.name.removesuffix(".schema.json") for file in schema_file("profile").parent.glob("*.schema.json")
    )
