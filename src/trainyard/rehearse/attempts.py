"""One attempt of a job: what it is given, its folders, and how it ended."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.command import fill_command, parallel_command, spark_command, write_settings
from trainyard.rehearse.errors import writing
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.rehearse.machine import AZURE_ML_MASTER_PORT
from trainyard.rehearse.tracking_store import RunIdentity
from trainyard.settings.files import files_beneath
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Parallel, Spark, Sweep

if TYPE_CHECKING:
    from trainyard.rehearse.container_images import ContainerImage
    from trainyard.rehearse.fault_watch import AttemptProgress, FaultWatch
    from trainyard.rehearse.rank_processes import ProcessesEnded

# The folders of a job's working directory that Azure ML keeps.
_KEPT_FOLDERS = ("outputs", "logs")


def log_name(rank: int, processes: int) -> str:
    """Return Azure ML's name: std_log.txt for one process, else std_log_process_<rank>.txt, padded to equal length."""
    if processes == 1:
        return "std_log.txt"
    return f"std_log_process_{rank:0{len(str(processes))}d}.txt"


class Attempt(NamedTuple):
    """One start of a job within a run.

    `inputs` are literals, or paths if the input carries files. `image` is that of the containers that its processes run
    in, in place of its Python. `gpus` are all of this machine's; with `without_gpus` the CPU stands in for them.
    `tracked` is the folder of the job's MLflow run. `ports` are those that its processes meet at, `events_url` is the
    address of scheduled events in a run that rehearses a preemption: both are known when it is launched.
    """

    job: LocalJob
    job_folder: Path
    inputs: Mapping[str, ParameterValue | Path]
    run: RunIdentity
    number: int
    grace_seconds: float
    strict: bool
    python: Path
    image: ContainerImage | None
    gpus: Sequence[str]
    tracked: Path
    faults: FaultWatch | None
    without_gpus: bool = False
    ports: Sequence[int] = ()
    events_url: str | None = None

    @property
    def master_port(self) -> int:
        """The port at which the processes meet."""
        return self.ports[0] if self.ports else AZURE_ML_MASTER_PORT

    def node_of(self, rank: int) -> int:
        """Return the node of a rank; ranks are counted node by node.

        A parameter server shares a node with a worker, from the first node on, where each node has a worker: so in the
        TF_CONFIG of github.com/microsoftarchive/BatchAI issue 15, of the service before Azure ML.
        """
        counts = self.job.counts
        server = rank - counts.training_processes
        if counts.parameter_servers and counts.training_processes == counts.nodes:
            return rank if server < 0 else server % counts.nodes
        return rank // counts.processes_per_node

    def local_rank(self, rank: int) -> int:
        """Return the place of a rank among those of its node."""
        return rank % self.job.counts.processes_per_node

    def gpus_of(self, rank: int) -> Sequence[str]:
        """Return the GPUs of a rank's node: its share of this machine's, where a process finds its own by LOCAL_RANK.

        Without a GPU for each process of all nodes the share is empty, and all of them run on processors.
        """
        counts = self.job.counts
        if counts.nodes * counts.processes_per_node > len(self.gpus):
            return []
        share, node = len(self.gpus) // counts.nodes, self.node_of(rank)
        return self.gpus[node * share : (node + 1) * share]

    @property
    def data_folder(self) -> Path:
        """Where the job finds its inputs, and links to its outputs."""
        return self.job_folder / "data"

    @property
    def input_paths(self) -> dict[str, Path]:
        """The paths that the job reads: `INPUT_<name>` within its own data folder."""
        return {
            name: place_of_input(self.data_folder, name, path)
            for name, path in self.inputs.items()
            if isinstance(path, Path)
        }

    @property
    def output_paths(self) -> dict[str, Path]:
        """The paths that the job writes."""
        return {name: self.job_folder / "outputs" / name for name in self.job.component.outputs}

    @property
    def parameters(self) -> dict[str, ParameterValue]:
        """The inputs that are literals."""
        return {name: value for name, value in self.inputs.items() if not isinstance(value, Path)}

    @property
    def given_inputs(self) -> dict[str, ParameterValue | Path]:
        """What stands for each input in a command: its value or its path; with `mode: direct` an address.

        On Azure ML that begins with azureml://, here with file://: fsspec reads both, and open() neither. Spark, the
        driver of parallel jobs and mltable take an address wherever they take a path.
        """
        given: dict[str, ParameterValue | Path] = {**self.parameters, **self.input_paths}
        for name, path in self.input_paths.items() if self.job.component.task is None else ():
            if self.job.use.input_mode(name) == "direct" and self.job.component.inputs[name].type != "mltable":
                given[name] = path.as_uri()
        return given

    @property
    def command(self) -> str:
        """The shell line, filled in. Raises `SpecError` for a value that would break it."""
        task = self.job.component.task
        if isinstance(task, Sweep):
            return str(task.trial.command.data)
        filled = fill_command(self.job.component, self.given_inputs, self.output_paths, strict=self.strict)
        if isinstance(task, Parallel):
            return parallel_command(self.data_folder, filled)
        return spark_command(task, filled) if isinstance(task, Spark) else filled

    def is_file(self, output: str) -> bool:
        """Return whether an output is a single file, which the job itself makes."""
        port = self.job.component.outputs[output]
        return port.type == "uri_file" or port.is_parameter

    def working_folder(self, node: int) -> Path:
        """Return where a node's processes start: a copy of the snapshot."""
        return self.job_folder / "nodes" / str(node)

    @property
    def artifacts_folder(self) -> Path:
        """What becomes of `./outputs` and `./logs`: the magic output `artifacts` holds them, if it is declared."""
        is_declared = "artifacts" in self.job.component.outputs
        return self.output_paths["artifacts"] if is_declared else self.job_folder / "artifacts"

    def note_decision(self, line: str) -> None:
        """Add what the runner decided for this attempt to the job's own log of that."""
        with (self.job_folder / "system_logs" / "job.log").open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    @property
    def logs(self) -> list[Path]:
        """One log per process, by rank."""
        count = self.job.processes
        return [self.job_folder / "user_logs" / log_name(rank, count) for rank in range(count)]


class AttemptEnd(NamedTuple):
    """How an attempt ended; `reason` is None when it completed.

    `was_preempted` if it is to start again; `progress` is known of jobs that are hit on purpose. `warnings` are of what
    Azure ML accepts.
    """

    processes: ProcessesEnded
    reason: str | None = None
    error_lines: list[str] | None = None
    was_preempted: bool = False
    progress: AttemptProgress | None = None
    warnings: tuple[str, ...] = ()


def make_folders(attempt: Attempt, cancellation: Cancellation) -> list[GivenInput]:
    """Make the attempt's folders, and put its snapshot and inputs in them; return how it was given its inputs.

    Raise `RunError` when they cannot be written, or the run is canceled.
    """
    folder = attempt.job_folder
    take_back_inputs(attempt.data_folder)
    if attempt.number == 1:
        # A runner that was killed while it linked an earlier result leaves hard links, which must not be written to.
        shutil.rmtree(folder, ignore_errors=True)
    with writing(folder):
        for part in ("data", "nodes"):
            shutil.rmtree(folder / part, ignore_errors=True)
        for part in ("data", "outputs", "user_logs", "system_logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for name, path in attempt.output_paths.items():
            if not attempt.is_file(name):
                path.mkdir(exist_ok=True)
            _link(attempt.data_folder / name, path)
        task = attempt.job.component.task
        if isinstance(task, Sweep):
            return []  # its trials have folders of their own
        given = [
            give_input(name, Path(str(attempt.inputs[name])), place, cancellation, attempt.job.use.input_mode(name))
            for name, place in attempt.input_paths.items()
        ]
        lines = f"processes: {attempt.job.scaling}\n" if attempt.job.scaling is not None else ""
        lines += "".join(f"input {put.name}: {put.how}\n" for put in given)
        attempt.note_decision(f"attempt {attempt.number}\n{lines}".rstrip())
        if isinstance(task, Parallel):
            write_settings(attempt.job, task, attempt.given_inputs, attempt.output_paths, attempt.data_folder)
        for node in range(attempt.job.counts.nodes):
            attempt.job.snapshot.copy_to(attempt.working_folder(node))
            _link_artifacts(attempt, attempt.working_folder(node))
    return given


def lose_what_a_preemption_takes(attempt: Attempt) -> None:
    """Remove what is on the machines only: `./outputs`, `./logs`, and outputs that are uploaded when a job ends."""
    for name, path in attempt.output_paths.items():
        written = attempt.job.use.job.outputs.get(name)
        own = written.data.get("mode") if written is not None and isinstance(written.data, dict) else None
        if (own or attempt.job.component.outputs[name].mode) == "upload":
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
    if "artifacts" not in attempt.job.component.outputs:
        shutil.rmtree(attempt.artifacts_folder, ignore_errors=True)


def _link_artifacts(attempt: Attempt, working_folder: Path) -> None:
    """Have `./outputs` and `./logs` there when the job starts, with what the snapshot brings."""
    for part in _KEPT_FOLDERS:
        target, place = attempt.artifacts_folder / part, working_folder / part
        target.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            shutil.copytree(place, target, dirs_exist_ok=True)
            shutil.rmtree(place)
        if not place.exists():
            _link(place, target)


def _link(place: Path, target: Path) -> None:
    """Make a link by the way from one to the other, which stays right when the run's folder is seen elsewhere."""
    place.symlink_to(os.path.relpath(target, place.parent))


def drop_empty_artifacts(attempt: Attempt) -> None:
    """Remove the folders of `./outputs` and `./logs` that nothing was put in."""
    folders = [attempt.artifacts_folder / part for part in _KEPT_FOLDERS]
    folders += [attempt.artifacts_folder] if attempt.artifacts_folder.parent == attempt.job_folder else []
    for folder in folders:
        with suppress(OSError):  # it holds something
            folder.rmdir()


# Copying this much takes a second or two.
_LARGEST_COPY_BYTES = 1 << 30
_COPIED_AT_ONCE_BYTES = 1 << 24
_WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class GivenInput(NamedTuple):
    """One input in place, and how it got there; `files` are its files with their state, the originals if linked."""

    name: str
    source: Path
    place: Path
    how: str
    is_linked: bool
    is_read_only: bool
    files: Mapping[Path, tuple[int, int]]

    def changed(self) -> Path | None:
        """Return a file that the job added or removed, or an original that it wrote to, by its name in the source.

        Python's bytecode caches are ignored: Python skips them on a read-only file system.
        """
        there = [file for file, _ in files_beneath(self.place)] if self.place.is_dir() else [self.place]
        added = {file for file in there if "__pycache__" not in file.parts} - self.files.keys()
        removed = [file for file in self.files if not file.exists()]
        changed = [*removed, *sorted(added)] if self.is_read_only else []
        if self.is_linked:
            changed += self._written()
        return next(map(self._original, changed), None)

    def rewritten(self) -> Path | None:
        """Return a read-only copy that the job wrote to, as root can, by its name in the source."""
        return next(map(self._original, self._written()), None) if self.is_read_only else None

    def _written(self) -> list[Path]:
        return [file for file, state in self.files.items() if file.exists() and _state(file) != state]

    def _original(self, file: Path) -> Path:
        return self.source / file.relative_to(self.place)


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def place_of_input(data_folder: Path, name: str, source: Path) -> Path:
    """Return `INPUT_<name>`, or for a file its own name within that folder, which keeps its extension."""
    place = data_folder / f"INPUT_{name}"
    return place / source.name if source.is_file() else place


def give_input(name: str, source: Path, place: Path, cancellation: Cancellation, mode: str) -> GivenInput:
    """Put a file or folder in place, its files read-only; links in it are followed. Raise OSError when that fails.

    Root can write to read-only files, and anyone can add some, so the state of the files is kept. A downloaded input is
    the job's own, apart from originals that it shares.
    """
    is_read_only = mode != "download"
    files = [(source, "")] if source.is_file() else list(files_beneath(source))
    size_bytes = sum(file.stat().st_size for file, _ in files)
    (place.parent if source.is_file() else place).mkdir(parents=True, exist_ok=True)
    targets = [place / relative if relative else place for _, relative in files]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    linked = size_bytes > _LARGEST_COPY_BYTES and _linked((file for file, _ in files), targets)
    if not linked:
        for (file, _), target in zip(files, targets, strict=True):
            _copy(file, target, cancellation)
            if is_read_only:
                target.chmod(target.stat().st_mode & ~_WRITE_BITS)
    how = f"{len(files)} files, {size_bytes} bytes, {'hard-linked' if linked else 'copied'}"
    return GivenInput(name, source, place, how, linked, is_read_only, {target: _state(target) for target in targets})


def _copy(source: Path, target: Path, cancellation: Cancellation) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        while piece := read.read(_COPIED_AT_ONCE_BYTES):
            cancellation.check()
            written.write(piece)
    shutil.copystat(source, target)


def take_back_inputs(data_folder: Path) -> None:
    """Remove what was given; the originals stay. Copies of data would double the size of a run."""
    for place in data_folder.glob("INPUT_*"):
        shutil.rmtree(place, ignore_errors=True)


def _linked(files: Iterable[Path], targets: Iterable[Path]) -> bool:
    """Hard-link files; False, with nothing in place, where the system cannot (another file system)."""
    done: list[Path] = []
    try:
        for file, target in zip(files, targets, strict=True):
            os.link(os.path.realpath(file), target)
            done.append(target)
    except OSError:
        for target in done:
            target.unlink()
        return False
    return True
