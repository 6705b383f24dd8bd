"""`trainyard doctor`: is this machine ready for a local run, and for a submission? Each problem with its fix."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from trainyard.errors import UsageError, UserError
from trainyard.resources import DISTRIBUTION
from trainyard.settings.quantities import counted
from trainyard.settings.this_machine import output_of
from trainyard.spec.diagnostic import SpecError

_GIB = 2**30
_REQUIRED_FREE_DISK_BYTES = 2 * _GIB
_SUPPORTED_PYTHON = ((3, 10), (3, 13))
_COLOURS = {"ok": "green", "note": "yellow", "missing": "red"}

# What a process of its own finds out, so that this one need not import torch: a GPU that hangs cannot hang the doctor.
_TORCH_FACTS = """
import json, torch, torch.distributed
has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
print(json.dumps({
    "built_for": f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else "",
    "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl and torch.cuda.is_available() else "",
}))
"""  # noqa: E501


@click.command()
def doctor() -> None:
    """Check this machine: Python, packages against their pins, disk, GPUs, MPI, az, and whether the workspace answers.

    Each problem has its fix. Exit 1 if a local run is not possible.

    \b
    Example:
      trainyard doctor
    """
    is_ready = True
    for check in _examine(Path.cwd()):
        mark = click.style(f"{check.state:<7}", fg=_COLOURS[check.state])
        fix = f"\n        fix: {check.fix}" if check.fix else ""
        click.echo(f"{mark} {check.what}: {check.found}{fix}")
        is_ready = is_ready and check.state != "missing"
    if not is_ready:
        sys.exit(1)


@dataclass(frozen=True)
class Check:
    """The result of one check: `missing` prevents a local run, `note` only costs a convenience."""

    what: str
    state: Literal["ok", "note", "missing"]
    found: str
    fix: str = ""


def _examine(folder: Path) -> Iterator[Check]:
    """Check everything that a local run and a submission need, each check as it is made."""
    yield _python()
    yield Check("processors", "ok", str(os.cpu_count()))
    yield _disk(folder)
    yield from _packages(folder)
    yield from _gpus()
    yield _program(("mpirun",), "jobs with `distribution: mpi`; on Debian and Ubuntu: apt install openmpi-bin")
    yield _program(("docker", "podman"), "jobs in containers (`run --environments docker`)")
    yield from _azure_cli()
    yield _workspace()


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    first, last = (".".join(map(str, each)) for each in _SUPPORTED_PYTHON)
    if not _SUPPORTED_PYTHON[0] <= sys.version_info[:2] <= _SUPPORTED_PYTHON[1]:
        return Check("Python", "note", version, f"Trainyard is tested with Python {first} to {last}")
    return Check("Python", "ok", version)


def _disk(folder: Path) -> Check:
    free_bytes = shutil.disk_usage(folder).free
    found = f"{free_bytes / _GIB:.1f} GiB free"
    if free_bytes < _REQUIRED_FREE_DISK_BYTES:
        return Check("disk", "missing", found, "a run needs 2 GiB; `trainyard runs clean --keep 1` deletes old runs")
    return Check("disk", "ok", found)


def _packages(folder: Path) -> Iterator[Check]:
    """Check each package that runs and submissions need against Trainyard's range, and a checkout's against its pin."""
    from packaging.requirements import Requirement

    pins = _pins(folder)
    for line in importlib.metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(line)
        named = re.search(r"""extra == ["']([\w-]+)["']""", str(requirement.marker or ""))
        extra = named[1] if named else ""
        if extra not in ("", "train", "azure"):
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name, wanted = requirement.name, str(requirement.specifier)
        absent: Literal["note", "missing"] = "note" if extra == "azure" else "missing"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            distribution = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
            # `make setup` installs what a run needs.
            checkout = "pip install -e '.[azure]'" if extra == "azure" else "make setup"
            yield Check(name, absent, "not installed", f"pip install '{distribution}'; in a checkout: {checkout}")
            continue
        pin = pins.get(name)
        if not requirement.specifier.contains(version, prereleases=True):
            yield Check(name, absent, f"{version}, but Trainyard needs {wanted}", f"pip install '{name}{wanted}'")
        elif pin is not None and version.partition("+")[0] != pin:
            yield Check(name, "note", f"{version}, pinned to {pin}", f"pip install '{name}=={pin}'")
        else:
            yield Check(name, "ok", version)


def _pins(folder: Path) -> dict[str, str]:
    """Return the exact versions of the constraints.txt of a checkout of Trainyard, by package; none elsewhere."""
    from packaging.requirements import Requirement

    file = folder / "constraints.txt"
    if not file.is_file():
        return {}
    lines = (line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    pins = [Requirement(line) for line in lines if line]
    return {
        pin.name: next(iter(pin.specifier)).version
        for pin in pins
        if len(pin.specifier) == 1 and (pin.marker is None or pin.marker.evaluate())
    }


def _gpus() -> Iterator[Check]:
    """Check the GPUs that the driver shows, and that torch can use them and their communication library."""
    query = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    listed = output_of(*query) or output_of("rocm-smi", "--showproductname", "--csv")
    cards = [line for line in listed.splitlines() if line.strip() and not line.startswith("device,")]
    if not cards:
        yield Check("GPUs", "ok", "none; local runs use the CPU, and gloo in place of NCCL")
        return
    yield Check("GPUs", "ok", f"{len(cards)} x {cards[0]}")
    printed = output_of(sys.executable, "-c", _TORCH_FACTS)
    if not printed:
        yield Check("torch and GPUs", "missing", "torch does not start", 'python -c "import torch" shows why')
        return
    facts = json.loads(printed.splitlines()[-1])
    if facts["gpus"] < len(cards):
        built = f"built for {facts['built_for']}" if facts["built_for"] else "built without GPU support"
        fix = "install the build of torch for this driver: https://pytorch.org/get-started/locally"
        yield Check("torch and GPUs", "missing", f"torch is {built} and sees {counted(facts['gpus'], 'GPU')}", fix)
    elif not facts["nccl"]:
        fix = "several GPUs need it; install torch for Linux from PyPI"
        yield Check("NCCL", "missing" if len(cards) > 1 else "note", "torch has none", fix)
    else:
        yield Check("NCCL", "ok", facts["nccl"])


def _azure_cli() -> Iterator[Check]:
    if shutil.which("az") is None:
        fix = "for `az ml`: https://learn.microsoft.com/cli/azure/install-azure-cli; `trainyard submit` does without"
        yield Check("az", "note", "not found", fix)
        return
    printed = output_of("az", "version", "--output", "json")
    try:
        versions = json.loads(printed)
        yield Check("az", "ok", versions["azure-cli"])
        extension = versions["extensions"].get("ml")
    except (ValueError, KeyError):
        yield Check("az", "note", "`az version` fails", "install it again, or run `az version` to see why")
        return
    if extension is None:
        yield Check("az extension ml", "note", "not installed", "az extension add --name ml")
    else:
        yield Check("az extension ml", "ok", extension)


def _workspace() -> Check:
    from trainyard.azure.submission import cluster_sizes
    from trainyard.azure.workspace import find_workspace

    try:
        workspace = find_workspace()
        cluster_sizes(workspace)
    except UsageError as error:
        found, fixes = zip(*(line.split("; ", 1) for line in str(error).splitlines()), strict=True)
        return Check("workspace", "note", "; ".join(found), "\n             ".join(fixes))
    except (UserError, SpecError) as error:
        found_text, _, fix = str(error).rpartition("; ")
        return Check("workspace", "note", found_text, fix)
    return Check("workspace", "ok", f"{workspace} answers")


def _program(names: Sequence[str], use: str) -> Check:
    for name in names:
        found = shutil.which(name)
        if found:
            return Check(name, "ok", found)
    return Check(names[0], "note", "not found", f"only for {use}")
