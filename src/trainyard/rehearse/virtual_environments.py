"""`--environments venv`: one virtual environment for each environment that pip can install, kept by its content."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trainyard.printing import last_lines
from trainyard.rehearse.digests import digest_of
from trainyard.rehearse.environment_packages import WantedPackage, pip_lines, wanted_packages
from trainyard.rehearse.errors import RunError, writing
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.rehearse.local_python import local_packages, python_version
from trainyard.settings.files import open_lock_file
from trainyard.settings.quantities import duration

_COMPLETE = ".complete"
_DIGITS = 16


def build_environments(
    jobs: Iterable[LocalJob], folder: Path, python: Path, note: Callable[[str], None]
) -> dict[str, Path]:
    """Return the Python of a virtual environment for each job that has one, by the job's name.

    Those that are not in `folder` yet are built there; `note` reports it. Environments that are only an image, or a
    name in a workspace, have none. Raise `RunError` when the wanted Python is missing, or pip cannot install the
    packages.
    """
    found: dict[str, Path] = {}
    pythons: dict[tuple[Path, int], Path] = {}
    for job in jobs:
        environment = job.component.environment
        source = environment.package_source if environment is not None else None
        lines = pip_lines(environment) if environment is not None else []
        if environment is None or source is None or not lines:
            note(f"{job.name}: its environment has no conda or pip file: it runs with {python}")
            continue
        if source not in pythons:
            base = _base_python(wanted_packages(environment), python, source[0])
            target = folder / digest_of(python_version(base), str(base), lines)[:_DIGITS]
            with writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                with open_lock_file(target.with_name(f"{target.name}.lock")) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be building the same
                    if not (target / _COMPLETE).exists():
                        _install(source[0], lines, target, base, note)
            pythons[source] = target / "bin" / "python"
        found[job.name] = pythons[source]
    return found


def _base_python(wanted: Iterable[WantedPackage], python: Path, place: Path) -> Path:
    """The Python that the file asks for: this one, or another on PATH."""
    versions = next((package for package in wanted if package.name == "python"), None)
    if versions is None or versions.versions.contains(python_version(python)):
        return python
    for minor in range(20, 7, -1):
        other = shutil.which(f"python3.{minor}")
        with contextlib.suppress(RunError):  # a version manager's stand-in for a Python that is not installed
            if other is not None and versions.versions.contains(python_version(Path(other))):
                return Path(other)
    raise RunError(
        f"{place}:{versions.line}: asks for Python {versions.versions}, which is not on PATH; install it, or run "
        f"without --environments venv, with Python {python_version(python)}"
    )


def _install(place: Path, lines: list[str], target: Path, base: Path, note: Callable[[str], None]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    log = target.with_suffix(".log")
    requirements = target.with_suffix(".txt")
    requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
    note(f"building the environment of {place}, once ({len(lines)} requirements; {log})")
    started = time.monotonic()
    make: list[str | Path] = [base, "-m", "venv", target]
    pip: list[str | Path] = [target / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    install = [*pip, "install", "--requirement", requirements]
    with log.open("w", encoding="utf-8") as stream:
        for command in (make, install):
            if subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode != 0:
                shutil.rmtree(target, ignore_errors=True)
                # Pip's own error comes before its other lines.
                errors = [line for line in last_lines(log, 200) if line.startswith("ERROR: ")]
                cause = errors[0].removeprefix("ERROR: ") if errors else "\n".join(last_lines(log, 1))
                raise RunError(f"{place}: its packages cannot be installed here: {cause}; {log} has all of it")
    (target / _COMPLETE).touch()
    count = len(local_packages(target / "bin" / "python"))
    note(f"built in {duration(time.monotonic() - started)}: {count} packages")
