"""Where the files that ship with Trainyard are: at the root of a checkout, or inside an installed package."""

from __future__ import annotations

from pathlib import Path

DISTRIBUTION = "trainyard-azureml"
"""What package indexes call this; `trainyard` there is somebody else's."""

PACKAGE = Path(__file__).resolve().parent
"""The folder of the package `trainyard`."""


def shipped(name: str) -> Path:
    """Return a folder of the repository's root that the wheel carries too: schemas, templates, profiles, .vscode."""
    packaged = PACKAGE / "_shipped"
    return (packaged if packaged.is_dir() else PACKAGE.parent.parent) / name


def schema_file(name: str) -> Path:
    """Return the JSON Schema of one kind of file, by its name: `schema_file("profile")`."""
    return shipped("schemas") / f"{name}.schema.json"


def schema_names() -> list[str]:
    """Return the names that `schema_file` knows."""
    return sorted(file.name.removesuffix(".schema.json") for file in shipped("schemas").glob("*.schema.json"))
