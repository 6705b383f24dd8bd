"""The file MLTable of a table: which files it consists of, and what is done with their rows.

https://learn.microsoft.com/azure/machine-learning/reference-yaml-mltable
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainyard.rehearse.errors import RunError


def read_mltable(folder: Path) -> dict[str, Any] | None:
    """Return `paths`, each a kind and a text, and `transformations`, each a name and options; None for other data.

    Raise `RunError` for a file MLTable that cannot be read as one.
    """
    file = folder / "MLTable"
    if not file.is_file():
        return None
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        transformations = [
            {"name": name, "options": {} if options is None else options}
            for each in document.get("transformations") or ()
            for name, options in (((each, {}),) if isinstance(each, str) else each.items())
        ]
        paths = [{kind: str(path) for kind, path in each.items()} for each in document["paths"]]
        return {"paths": paths, "transformations": transformations}
    except (OSError, yaml.YAMLError, KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read as an MLTable: {error}") from error
