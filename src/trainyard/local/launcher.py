"""One attempt of a job: its folders, its processes with their environments, and how it ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.foundation.log_text import last_lines
from trainyard.local.cancellation import Cancellation
from trainyard.local.command import fill_command
from trainyard.local.contract import ProcessContext, process_environment
from trainyard.local.errors import RunError, cannot_write
from trainyard.local.faults import AttemptProgress, FaultWatch
from trainyard.local.given_inputs import GivenInput, give_input, place_of_input, take_back_inputs
from trainyard.local.kinds.mpi_jobs import by_rank, open_mpi, under_mpirun
from trainyard.local.kinds.parallel_jobs import parallel_command, write_settings
from trainyard.local.kinds.spark_jobs import spark_command
from trainyard.local.logs import last_error, log_name
from trainyard.local.machine import AZURE_ML_MASTER_PORT, available_gpus, gpus_of_node, reserved_port
from trainyard.local.machine_use import machine_use_sampled
from trainyard.local.processes import ProcessesEnded, ProcessStart, run_processes
from trainyard.local.resolution import ResolvedJob
from trainyard.local.snapshot import Snapshot
from trainyard.local.steps_seen import StepsSeen
from trainyard.local.tracking_store import RunIdentity
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Environment, Parallel, Spark, Sweep

_ERROR_LINES = 15
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


@dataclass(frozen=True)
class Attempt:
    """One start of a job within a run. `inputs` are literals, or paths if the input carries files."""

    job: ResolvedJob
    job_folder: Path
    snapshot: Snapshot
    inputs: Mapping[str, ParameterValue | Path]
    run: RunIdentity
    number: int
    grace_seconds: float
    strict: bool = False
    python: Path = Path(sys.executable)
    tracked: Path | None = None
    """The folder of the job's MLflow run."""
    faults: FaultWatch | None = None

    @property
    def input_paths(self) -> dict[str, Path]:
        """The paths that the job reads: `INPUT_<name>` within its own data folder."""
        return {
            name: place_of_input(self.job_folder / "data", name, path)
            for name, path in self.inputs.items()
            if isinstance(path, Path)
        }

    @property
    def output_paths(self) -> dict[str, Path]:
        """The paths that the job writes: `outputs/<port>`, a file for ports that carry a single file."""
        return {name: self.job_folder / "outputs" / name for name in self.job.component.outputs}

    @property
    def parameters(self) -> dict[str, ParameterValue]:
        """The inputs that are literals."""
        return {name: value for name, value in self.inputs.items() if not isinstance(value, Path)}

    @property
    def command(self) -> str:
        """The shell line, filled in. Raises `SpecError` for a value that would break it."""
        inputs = {**self.parameters, **self.input_paths}
        task = self.job.component.task
        if isinstance(task, Sweep):
            return str(task.trial.command.data)
        filled = fill_command(self.job.component, inputs, self.output_paths, strict=self.strict)
        if isinstance(task, Parallel):
            return parallel_command(self.job_folder / "data", filled)
        return spark_command(task, filled) if isinstance(task, Spark) else filled

    @property
    def artifacts_folder(self) -> Path:
        """What becomes of `./outputs` and `./logs`: the magic output `artifacts` holds them, if it is declared."""
        is_declared = "artifacts" in self.job.component.outputs
        return self.output_paths["artifacts"] if is_declared else self.job_folder / "artifacts"

    @property
    def logs(self) -> list[Path]:
        """One log per process, by rank."""
        count = self.job.processes
        return [self.job_folder / "user_logs" / log_name(rank, count) for rank in range(count)]


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended; `reason` is None when it completed. `trials` are those of a sweep, as in run.json.

    `was_preempted` if it is to start again; `progress` is known of jobs that are hit on purpose.
    """

    processes: ProcessesEnded
    reason: str | None = None
    error_lines: list[str] | None = None
    trials: list[dict[str, object]] | None = None
    was_preempted: bool = False
    progress: AttemptProgress | None = None


def launch(attempt: Attempt, given: Sequence[GivenInput], cancellation: Cancellation) -> AttemptEnd:
    """Run the attempt to its end, in folders made by `make_folders`, which returned what it was `given`.

    Raise `RunError` when it cannot start.
    """
    try:
        end = _launch(attempt, given, cancellation)
        return replace(end, progress=attempt.faults.end()) if attempt.faults is not None else end
    finally:
        take_back_inputs(attempt.job_folder / "data")
        _drop_empty_artifacts(attempt)


def _launch(attempt: Attempt, given: Sequence[GivenInput], cancellation: Cancellation) -> AttemptEnd:
    try:
        with ExitStack() as stack:
            ports = [stack.enter_context(reserved_port()) for _ in range(_ports_needed(attempt.job))]
            events_url = None
            if attempt.faults is not None:
                from trainyard.local.metadata_service import metadata_service  # only such runs need a server

                service = stack.enter_context(metadata_service())
                tracked = attempt.tracked or attempt.job_folder
                attempt.faults.begin(StepsSeen(attempt.logs[0], tracked, attempt.job_folder / "outputs"), service)
                events_url = service.events_url
            starts = [_process(attempt, rank, ports, events_url) for rank in range(attempt.job.processes)]
            mpirun = open_mpi() if attempt.job.distribution == "mpi" else None
            if attempt.job.distribution == "mpi":
                _note(
                    attempt, f"mpi: started by {mpirun}" if mpirun else "mpi: no mpirun of Open MPI, its variables only"
                )
            if mpirun is not None:
                starts = [under_mpirun(mpirun, starts, attempt.job_folder / "data", _mpi_log(attempt))]
            on_started = stack.enter_context(
                machine_use_sampled(attempt.job_folder, attempt.number, available_gpus(os.environ))
            )
            processes = run_processes(
                starts,
                cancellation,
                grace_seconds=attempt.grace_seconds,
                beneath=attempt.job_folder,
                timeout_seconds=attempt.job.timeout_seconds,
                helpers=range(attempt.job.processes - attempt.job.parameter_servers, attempt.job.processes),
                faults=attempt.faults,
                on_started=on_started,
            )
            if mpirun is not None:
                processes = by_rank(processes, _mpi_log(attempt), attempt.job.processes)
    except OSError as error:
        raise RunError(f"{attempt.job.name}: its processes cannot be started: {error.strerror or error}") from error
    if processes.was_canceled:
        return AttemptEnd(processes, cancellation.reason)
    if processes.timed_out:
        return AttemptEnd(processes, f"it took longer than its limits.timeout of {attempt.job.timeout_seconds} s")
    fault, rank = processes.fault, processes.failed_rank
    if fault is not None and fault.rank is None and any(processes.exit_codes.values()):
        return AttemptEnd(processes, f"preempted by {fault.option}", was_preempted=True)
    if fault is not None and rank is not None and rank == fault.rank:
        return AttemptEnd(
            processes, f"rank {rank} was killed by {fault.option}", last_lines(attempt.logs[rank], _ERROR_LINES)
        )
    if rank is not None:
        # What the job calls INPUT_source is a file or folder that its user knows by another name.
        own_names = {str(place): str(attempt.inputs[name]) for name, place in attempt.input_paths.items()}
        logged = last_error(attempt.logs[rank], _ERROR_LINES, own_names)
        reason = _explain(attempt, rank, processes.exit_codes[rank], logged.cause)
        return AttemptEnd(processes, reason, logged.lines)
    missing = [name for name, path in attempt.output_paths.items() if _is_file(attempt, name) and not path.is_file()]
    if missing:
        return AttemptEnd(processes, f"it exited with 0, but did not write its output {', '.join(missing)}")
    changed = {each.name: file for each in given if (file := each.changed()) is not None}
    if changed:
        named = ", ".join(f"{name} ({file})" for name, file in changed.items())
        return AttemptEnd(processes, f"it wrote to an input, which Azure ML mounts read-only: {named}")
    return AttemptEnd(processes)


def _ports_needed(job: ResolvedJob) -> int:
    """PyTorch's ranks meet at one port; each task of TensorFlow listens at one of its own."""
    return {"tensorflow": job.processes, None: 0}.get(job.distribution, 1)


def _mpi_log(attempt: Attempt) -> Path:
    return attempt.job_folder / "system_logs" / "mpirun.log"


def _note(attempt: Attempt, line: str) -> None:
    """Add what the runner decided for this attempt to the job's own log of that."""
    with (attempt.job_folder / "system_logs" / "job.log").open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")


def make_folders(attempt: Attempt) -> list[GivenInput]:
    """Make the attempt's folders, and put its snapshot and inputs in them; return how it was given its inputs.

    Raise `RunError` when they cannot be written.
    """
    folder = attempt.job_folder
    take_back_inputs(folder / "data")
    if attempt.number == 1:
        # A runner that was killed while it linked an earlier result leaves hard links, which must not be written to.
        shutil.rmtree(folder, ignore_errors=True)
    try:
        for part in ("data", "nodes"):
            shutil.rmtree(folder / part, ignore_errors=True)
        for part in ("data", "outputs", "user_logs", "system_logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for name, path in attempt.output_paths.items():
            if not _is_file(attempt, name):
                path.mkdir(exist_ok=True)
            (folder / "data" / name).symlink_to(path)
        task = attempt.job.component.task
        if isinstance(task, Sweep):
            return []  # its trials have folders of their own
        given = [
            give_input(name, Path(str(attempt.inputs[name])), place) for name, place in attempt.input_paths.items()
        ]
        lines = "".join(f"input {each.name}: {each.how}\n" for each in given)
        _note(attempt, f"attempt {attempt.number}\n{lines}".rstrip())
        if isinstance(task, Parallel):
            inputs = {**attempt.parameters, **attempt.input_paths}
            write_settings(attempt.job, task, inputs, attempt.output_paths, folder / "data")
        for node in range(attempt.job.nodes):
            attempt.snapshot.copy_to(_working_folder(attempt, node))
            _link_artifacts(attempt, _working_folder(attempt, node))
    except (OSError, shutil.Error) as error:
        reason = error if isinstance(error, OSError) and error.errno else OSError(str(error))
        raise cannot_write(folder, reason) from error
    return given


def lose_what_a_preemption_takes(attempt: Attempt) -> None:
    """Remove what is on the machines only: `./outputs`, `./logs`, and outputs that are uploaded when a job ends."""
    for name, path in attempt.output_paths.items():
        if _mode(attempt, name) == "upload":
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
    if "artifacts" not in attempt.job.component.outputs:
        shutil.rmtree(attempt.artifacts_folder, ignore_errors=True)


def _mode(attempt: Attempt, output: str) -> str | None:
    """The mode of an output: the job's own, else the component's."""
    written = attempt.job.use.job.outputs.get(output)
    own = written.data.get("mode") if written is not None and isinstance(written.data, dict) else None
    return own or attempt.job.component.outputs[output].mode


# The folders of a job's working directory that Azure ML keeps.
_KEPT_FOLDERS = ("outputs", "logs")


def _link_artifacts(attempt: Attempt, working_folder: Path) -> None:
    """Have `./outputs` and `./logs` there when the job starts, with what the snapshot brings."""
    for part in _KEPT_FOLDERS:
        target, place = attempt.artifacts_folder / part, working_folder / part
        target.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            shutil.copytree(place, target, dirs_exist_ok=True)
            shutil.rmtree(place)
        if not place.exists():
            place.symlink_to(target)


def _drop_empty_artifacts(attempt: Attempt) -> None:
    folders = [attempt.artifacts_folder / part for part in _KEPT_FOLDERS]
    folders += [attempt.artifacts_folder] if attempt.artifacts_folder.parent == attempt.job_folder else []
    for folder in folders:
        with suppress(OSError):  # it holds something
            folder.rmdir()


def _is_file(attempt: Attempt, output: str) -> bool:
    port = attempt.job.component.outputs[output]
    return port.type == "uri_file" or port.is_parameter


def _working_folder(attempt: Attempt, node: int) -> Path:
    return attempt.job_folder / "nodes" / str(node)


def _process(attempt: Attempt, rank: int, ports: Sequence[int], events_url: str | None) -> ProcessStart:
    job = attempt.job
    node, local_rank = divmod(rank, job.processes_per_node)
    resources = job.resources
    all_gpus = available_gpus(os.environ)
    gpus = gpus_of_node(all_gpus, node, nodes=job.nodes, processes_per_node=job.processes_per_node)
    context = ProcessContext(
        run=attempt.run,
        distribution=job.distribution,
        nodes=job.nodes,
        processes_per_node=job.processes_per_node,
        node_rank=node,
        local_rank=local_rank,
        master_port=ports[0] if ports else AZURE_ML_MASTER_PORT,
        task_ports=ports,
        world_size=job.processes,
        parameter_servers=job.parameter_servers,
        working_folder=_working_folder(attempt, node),
        data_folder=attempt.job_folder / "data",
        attempt=attempt.number,
        gpus=gpus,
        gpus_are_divided=gpus != all_gpus,
        vm_size=str(resources.instance_type.data) if resources and resources.instance_type else "local",
        input_paths=attempt.input_paths,
        output_paths=attempt.output_paths,
        parameters=attempt.parameters,
        events_url=events_url,
    )
    environment = process_environment(context, job.environment_variables, os.environ, attempt.python)
    return ProcessStart(rank, attempt.command, environment, context.working_folder, attempt.logs[rank])


def _explain(attempt: Attempt, rank: int, code: int, cause: str | None) -> str:
    """Return why the job failed in one line: the cause as in the rank's log if there is one, and how the rank ended."""
    who = f"rank {rank}" if attempt.job.processes > 1 else "its process"
    if code < 0:
        name = signal.Signals(-code).name
        explained = f"{who} was killed by {name}"
        return f"{explained} (out of memory?)" if name == "SIGKILL" else explained
    if shutil.disk_usage(attempt.job_folder).free < 1 << 16:
        return f"{who} ended with exit code {code}; the disk that holds {attempt.job_folder} is full"
    if cause is None:
        return f"{who} ended with exit code {code}"
    missing = _MISSING_MODULE.match(cause)
    hint = f"; {_where_to_add(missing[1], attempt.job.component.environment)}" if missing else ""
    return f"{cause} ({who} ended with exit code {code}){hint}"


def _where_to_add(module: str, environment: Environment | None) -> str:
    """Return what to do about a module that is missing here, by what the files of the job's environment list."""
    install = "install it for the Python that runs this"
    if environment is None:
        return install
    folder = environment.build_path
    beside = sorted(file for file in folder.iterdir() if file.is_file()) if folder and folder.is_dir() else []
    files = [file for file in (environment.conda_file, *beside) if file is not None and file.is_file()]
    name = re.compile(rf"(?<![\w.-]){re.escape(module).replace('_', '[-_]')}(?![\w-])", re.IGNORECASE)
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if name.search(line):
                return f"{file}:{number} lists it: {install}"
    if files:
        return f"{files[0]} does not list it: add it there, and {install}"
    return f"{install}, and check that the environment {environment.reference or environment.image} has it"
