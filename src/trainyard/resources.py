"""Where the files that ship with Trainyard lie: in a checkout at its root, in an installed package inside it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def schema_file(name: str) -> Path:
    """The JSON Schema of one kind of file, by its name: `schema_file("profile")`."""
    packaged = _PACKAGE / "_schemas"
    folder = packaged if packaged.is_dir() else _PACKAGE.parent.parent / "schemas"
    return folder / f"{name}.schema.json"


def schema_names() -> list[str]:
    """The names that `schema_file` knows."""
    return sorted(
        file.name.removesuffix(".schema.json") for file in schema_file("profile").parent.glob("*.schema.json")
    )
