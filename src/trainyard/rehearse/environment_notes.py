"""One line for each environment that the Python here does not match, and the whole list in the run's folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trainyard.rehearse.environment_packages import differences, wanted_packages
from trainyard.rehearse.errors import cannot_write
from trainyard.rehearse.resolution import ResolvedJob
from trainyard.spec.model import Environment

LIST_FILE = "environments.txt"
_MOST_NAMES = 3


def environment_notes(jobs: Iterable[ResolvedJob], python: Path, run_folder: Path) -> list[str]:
    """Return a warning for each environment whose packages differ from those of `python`; write all of them to a file.

    Raise `RunError` when that cannot be written.
    """
    users: dict[tuple[Path, int], tuple[Environment, list[str]]] = {}
    for job in jobs:
        environment = job.component.environment
        source = environment.package_source if environment is not None else None
        if environment is not None and source is not None:
            users.setdefault(source, (environment, []))[1].append(job.name)
    notes, lines = [], []
    for (place, _), (environment, names) in users.items():
        missing, others = differences(wanted_packages(environment), python)
        if not missing and not others:
            continue
        parts = [f"missing: {_few(missing)}"] if missing else []
        parts += [f"other versions: {_few(others)}"] if others else []
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        notes.append(f"{who}: this Python differs from {place.name}: {'; '.join(parts)}")
        lines += [f"{place}, for {', '.join(names)}, compared with {python}"]
        lines += [f"  missing: {each}" for each in missing] + [f"  other version: {each}" for each in others]
    if lines:
        file = run_folder / LIST_FILE
        try:
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise cannot_write(file, error) from error
        notes[-1] += f" (all in {LIST_FILE} of the run's folder)"
    return notes


def _few(described: list[str]) -> str:
    """The first few without their places, and how many more there are."""
    shown = [each.rpartition(" (")[0] for each in described[:_MOST_NAMES]]
    more = len(described) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
