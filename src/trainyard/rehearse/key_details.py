"""What the parts of a job's key are made of, by the names that users know: kept to say later which of them changed."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.rehearse.cache import local_packages
from trainyard.rehearse.digests import ContentDigests, digest_of
from trainyard.rehearse.imported_code import code_of_job
from trainyard.rehearse.resolution import LocalPath, ResolvedJob
from trainyard.rehearse.snapshot import Snapshot
from trainyard.settings.files import files_beneath

KeyDetails = dict[str, dict[str, str]]
"""For a part of the key: a short digest of each of its files or values by name; a literal itself, under the name ''."""

_DIGITS = 16
# Of data with more files, the run says only that it changed.
_MOST_FILES = 1000


def details_of(job: ResolvedJob, snapshot: Snapshot, digests: ContentDigests, python: Path | None) -> KeyDetails:
    """Return the details of the parts that have any: code, environment files, variables, packages, inputs.

    `python` is None for a job that runs in a container.
    """
    component = job.component
    literals = [source for source in job.inputs.values() if isinstance(source, (str, int, float))]
    code = code_of_job(component.command.data, literals, job.environment_variables, snapshot)
    details: KeyDetails = {
        "code": _files([(file, place) for file, place in code.files], digests),
        "command": {"": component.command.data},
        "distribution": {
            "type": str(job.distribution),
            "nodes": str(job.nodes),
            "processes per node": str(job.processes_per_node),
        },
        # Only digests: variables may hold secrets.
        "environment_variables": {name: digest_of(text) for name, text in job.environment_variables.items()},
        "the local Python and its packages": dict.fromkeys(local_packages(python) if python else (), ""),
    }
    for name, source in job.inputs.items():
        if isinstance(source, LocalPath):
            of_file = source.path.is_file()
            files = [(source.path, source.path.name)] if of_file else list(files_beneath(source.path))
            details[f"input {name}"] = _files(files, digests)
        elif isinstance(source, (str, int, float)):
            details[f"input {name}"] = {"": str(source)}
    return {part: named for part, named in details.items() if named}


def _files(files: list[tuple[Path, str]], digests: ContentDigests) -> dict[str, str]:
    if len(files) > _MOST_FILES:
        return {}
    return {place: digest_of(digests.of_file(file), os.access(file, os.X_OK))[:_DIGITS] for file, place in files}
