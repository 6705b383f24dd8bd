"""One attempt of a job: its folders, its processes with their environments, and what came of it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from trainyard.local.command import fill_command
from trainyard.local.contract import ProcessContext, process_environment
from trainyard.local.errors import RunError
from trainyard.local.gpus import available_gpus, gpus_of_node
from trainyard.local.interruption import StopRequest
from trainyard.local.logs import last_lines, log_name
from trainyard.local.ports import AZURE_ML_MASTER_PORT, reserved_port
from trainyard.local.processes import ProcessesEnded, ProcessStart, run_processes
from trainyard.local.records import cannot_write
from trainyard.local.resolution import ResolvedJob
from trainyard.local.snapshot import Snapshot
from trainyard.spec.literals import ParameterValue

_ERROR_LINES = 15


@dataclass(frozen=True)
class Attempt:
    """One start of a job within a run. `inputs` are literals, or paths where the input carries files."""

    job: ResolvedJob
    job_folder: Path
    snapshot: Snapshot
    inputs: Mapping[str, ParameterValue | Path]
    run_id: str
    root_run_id: str
    experiment: str
    experiment_id: str
    tracking_uri: str
    number: int
    grace_seconds: float

    @property
    def input_paths(self) -> dict[str, Path]:
        """Where the job finds its data: within its own data folder, as `INPUT_<name>`."""
        return {
            name: _place_of_input(self.job_folder / "data", name, path)
            for name, path in self.inputs.items()
            if isinstance(path, Path)
        }

    @property
    def output_paths(self) -> dict[str, Path]:
        """Where the job writes: `outputs/<port>`, a file's path for ports that are one file."""
        return {name: self.job_folder / "outputs" / name for name in self.job.component.outputs}

    @property
    def parameters(self) -> dict[str, ParameterValue]:
        """The literals."""
        return {name: value for name, value in self.inputs.items() if not isinstance(value, Path)}

    @property
    def command(self) -> str:
        """The shell line, filled in. Raises `SpecError` for what it cannot be filled with."""
        return fill_command(self.job.component, {**self.parameters, **self.input_paths}, self.output_paths)

    @property
    def logs(self) -> list[Path]:
        """One log per process, by rank."""
        count = self.job.processes
        return [self.job_folder / "user_logs" / log_name(rank, count) for rank in range(count)]


@dataclass(frozen=True)
class AttemptEnd:
    """What came of an attempt; `reason` is None when all is well."""

    processes: ProcessesEnded
    reason: str | None = None
    error_lines: list[str] | None = None


def launch(attempt: Attempt, stop: StopRequest) -> AttemptEnd:
    """Run the attempt to its end, in the folders that `make_folders` made. Raises `RunError` when it cannot start."""
    try:
        with reserved_port() if attempt.job.distribution == "pytorch" else nullcontext(AZURE_ML_MASTER_PORT) as port:
            processes = run_processes(
                [_process(attempt, rank, port) for rank in range(attempt.job.processes)],
                stop,
                grace_seconds=attempt.grace_seconds,
                beneath=attempt.job_folder,
            )
    except OSError as error:
        raise RunError(f"{attempt.job.name}: its processes cannot be started: {error.strerror or error}") from error
    if processes.was_stopped:
        return AttemptEnd(processes, stop.reason)
    rank = processes.failed_rank
    if rank is not None:
        reason = _explain(attempt, rank, processes.exit_codes[rank])
        return AttemptEnd(processes, reason, last_lines(attempt.logs[rank], _ERROR_LINES))
    missing = [name for name, path in attempt.output_paths.items() if _is_file(attempt, name) and not path.is_file()]
    if missing:
        return AttemptEnd(processes, f"it ended well, but did not write its output {', '.join(missing)}")
    return AttemptEnd(processes)


def make_folders(attempt: Attempt) -> None:
    """The attempt's folders, with its snapshot in them. Raises `RunError` when they cannot be written."""
    folder = attempt.job_folder
    if attempt.number == 1:
        # A runner that was killed while it brought an earlier result leaves hard links, not to be written through.
        shutil.rmtree(folder, ignore_errors=True)
    try:
        for part in ("data", "nodes"):
            shutil.rmtree(folder / part, ignore_errors=True)
        for part in ("data", "outputs", "user_logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for name, path in attempt.output_paths.items():
            if not _is_file(attempt, name):
                path.mkdir(exist_ok=True)
            (folder / "data" / name).symlink_to(path)
        for name, place in attempt.input_paths.items():
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(Path(str(attempt.inputs[name])))
    except OSError as error:
        raise cannot_write(folder, error) from error
    for node in range(attempt.job.nodes):
        attempt.snapshot.copy_to(_working_folder(attempt, node))


def _place_of_input(data_folder: Path, name: str, path: Path) -> Path:
    """A folder is `INPUT_<name>`; a file keeps its own name within it, for the sake of its extension."""
    place = data_folder / f"INPUT_{name}"
    return place / path.name if path.is_file() else place


def _is_file(attempt: Attempt, output: str) -> bool:
    return attempt.job.component.outputs[output].type == "uri_file"


def _working_folder(attempt: Attempt, node: int) -> Path:
    return attempt.job_folder / "nodes" / str(node)


def _process(attempt: Attempt, rank: int, port: int) -> ProcessStart:
    job = attempt.job
    node, local_rank = divmod(rank, job.processes_per_node)
    resources = job.resources
    all_gpus = available_gpus(os.environ)
    gpus = gpus_of_node(all_gpus, node, nodes=job.nodes, processes_per_node=job.processes_per_node)
    context = ProcessContext(
        run_id=attempt.run_id,
        root_run_id=attempt.root_run_id,
        experiment=attempt.experiment,
        experiment_id=attempt.experiment_id,
        tracking_uri=attempt.tracking_uri,
        distribution=job.distribution,
        nodes=job.nodes,
        processes_per_node=job.processes_per_node,
        node_rank=node,
        local_rank=local_rank,
        master_port=port,
        working_folder=_working_folder(attempt, node),
        data_folder=attempt.job_folder / "data",
        attempt=attempt.number,
        gpus=gpus,
        gpus_are_shared_out=gpus != all_gpus,
        vm_size=str(resources.instance_type.data) if resources and resources.instance_type else "local",
        input_paths=attempt.input_paths,
        output_paths=attempt.output_paths,
        parameters=attempt.parameters,
    )
    environment = process_environment(context, job.environment_variables, os.environ)
    return ProcessStart(rank, attempt.command, environment, context.working_folder, attempt.logs[rank])


def _explain(attempt: Attempt, rank: int, code: int) -> str:
    who = f"rank {rank}" if attempt.job.processes > 1 else "its process"
    if code < 0:
        name = signal.Signals(-code).name
        explained = f"{who} was killed by {name}"
        return f"{explained} (out of memory?)" if name == "SIGKILL" else explained
    if shutil.disk_usage(attempt.job_folder).free < 1 << 16:
        return f"{who} ended with exit code {code}; the disk that holds {attempt.job_folder} is full"
    return f"{who} ended with exit code {code}"
