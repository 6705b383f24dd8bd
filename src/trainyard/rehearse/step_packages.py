"""What this project's own steps import, looked for in the Python here before a run starts."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterable
from pathlib import Path

from trainyard.rehearse.errors import RunError
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.rehearse.local_python import local_packages, python_paths
from trainyard.spec.shell_words import step_call

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
