"""One attempt of a job: what it is given, its folders, and how it ended."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.rehearse.command import fill_command
from trainyard.rehearse.errors import cannot_write
from trainyard.rehearse.given_inputs import GivenInput, give_input, place_of_input, take_back_inputs
from trainyard.rehearse.kinds.parallel_jobs import parallel_command, write_settings
from trainyard.rehearse.kinds.spark_jobs import spark_command
from trainyard.rehearse.logs import log_name
from trainyard.rehearse.machine import available_gpus
from trainyard.rehearse.resolution import ResolvedJob
from trainyard.rehearse.snapshot import Snapshot
from trainyard.rehearse.tracking_store import RunIdentity
from trainyard.settings.run_record import TrialRecord
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Parallel, Spark, Sweep

if TYPE_CHECKING:
    from trainyard.rehearse.containers.images import ContainerImage
    from trainyard.rehearse.faults import AttemptProgress, FaultWatch
    from trainyard.rehearse.processes import ProcessesEnded

# The folders of a job's working directory that Azure ML keeps.
_KEPT_FOLDERS = ("outputs", "logs")


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
    image: ContainerImage | None = None
    """Of the containers that its processes run in, in place of that Python."""
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

    @property
    def has_gpus(self) -> bool:
        """Whether this machine has GPUs for it."""
        return bool(available_gpus(os.environ))

    @property
    def logs(self) -> list[Path]:
        """One log per process, by rank."""
        count = self.job.processes
        return [self.job_folder / "user_logs" / log_name(rank, count) for rank in range(count)]


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended; `reason` is None when it completed. `trials` are those of a sweep, as in run.json.

    `was_preempted` if it is to start again; `progress` is known of jobs that are hit on purpose. `warnings` are of what
    Azure ML accepts.
    """

    processes: ProcessesEnded
    reason: str | None = None
    error_lines: list[str] | None = None
    trials: list[TrialRecord] | None = None
    was_preempted: bool = False
    progress: AttemptProgress | None = None
    warnings: tuple[str, ...] = ()


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
            if not attempt.is_file(name):
                path.mkdir(exist_ok=True)
            (folder / "data" / name).symlink_to(path)
        task = attempt.job.component.task
        if isinstance(task, Sweep):
            return []  # its trials have folders of their own
        given = [
            give_input(name, Path(str(attempt.inputs[name])), place) for name, place in attempt.input_paths.items()
        ]
        lines = f"processes: {attempt.job.scaling}\n" if attempt.job.scaling is not None else ""
        lines += "".join(f"input {each.name}: {each.how}\n" for each in given)
        note_decision(attempt, f"attempt {attempt.number}\n{lines}".rstrip())
        if isinstance(task, Parallel):
            inputs = {**attempt.parameters, **attempt.input_paths}
            write_settings(attempt.job, task, inputs, attempt.output_paths, folder / "data")
        for node in range(attempt.job.nodes):
            attempt.snapshot.copy_to(attempt.working_folder(node))
            _link_artifacts(attempt, attempt.working_folder(node))
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


def drop_empty_artifacts(attempt: Attempt) -> None:
    """Remove the folders of `./outputs` and `./logs` that nothing was put in."""
    folders = [attempt.artifacts_folder / part for part in _KEPT_FOLDERS]
    folders += [attempt.artifacts_folder] if attempt.artifacts_folder.parent == attempt.job_folder else []
    for folder in folders:
        with suppress(OSError):  # it holds something
            folder.rmdir()


def note_decision(attempt: Attempt, line: str) -> None:
    """Add what the runner decided for this attempt to the job's own log of that."""
    with (attempt.job_folder / "system_logs" / "job.log").open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")
