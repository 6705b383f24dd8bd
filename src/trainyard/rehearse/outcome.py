"""What an attempt warns of, and how it ended, in words: from exit codes, logs, and what was written."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.printing import last_lines, plain_text
from trainyard.project_files import modules_in
from trainyard.rehearse.attempts import Attempt, AttemptEnd, GivenInput
from trainyard.rehearse.rank_processes import ProcessesEnded
from trainyard.settings.files import files_beneath
from trainyard.settings.quantities import cut
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import misspelt_name

_ERROR_LINES = 15
# A shell's exit code for a program that it does not find, and how bash and dash say so.
_NOT_FOUND_CODE = 127
_MISSING_PROGRAM = regex(r"^[^:\n]+: (?:line )?\d+: ([^:\n]+): (?:command )?not found$", re.MULTILINE)
_MISSING_MODULE = regex(r"ModuleNotFoundError: No module named '([\w.]+)'(?!; )")
# Open MPI's words, of mpirun (4) and of the prterun beneath it (5).
_REFUSES_ROOT = regex(r"^(\w+) has detected an attempt to run as root\.$", re.MULTILINE)
_MISSING_VARIABLE = regex(r"KeyError: '(\w+)'")
# What torch, Lightning and accelerate say of a machine without GPUs.
_NEEDS_GPUS = regex(
    "NCCL built in|_cuda_setDevice|only supported with GPUs|not compiled with CUDA"
    "|Found no NVIDIA driver|No CUDA GPUs are available"
    "|on a CUDA device but torch.cuda|No supported gpu backend|CUDAAccelerator. can not run|mixed precision requires a"
)
_WITHOUT_GPUS = (
    "with --without-gpus the CPU stands in for GPUs; three lines make the script do so itself: "
    "docs/coming-from/own_script.md"
)
_MOST_LINES_SEARCHED = 1 << 16
_TRACEBACK = "Traceback (most recent call last):"
# torch puts the rank before each line of a traceback.
_RANK = regex(r"^\[rank\d+\]: ?")
_READ_ONLY = "Read-only file system"
_EXCEPTION = regex(r"[A-Za-z_][\w.]*(: .*)?$")
_STEP_ERROR = regex(r"[\w.-]+: error: (.+)")
_WARNING = "warning: "
_WARNING_BYTES = _WARNING.encode()
# Plain text is without them, so the word may be written around them.
_CONTROL_BYTES = bytes(set(range(0x20)) - set(b"\t\n")) + b"\x7f"
_MOST_CAUSE_CHARACTERS = 200


def outcome(
    attempt: Attempt, processes: ProcessesEnded, given: Sequence[GivenInput], why_canceled: str | None
) -> AttemptEnd:
    """Return how the attempt ended whose processes have; `given` is how it got its inputs."""
    if processes.was_canceled:
        return AttemptEnd(processes, why_canceled)
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
        own_names[str(attempt.job_folder)] = os.path.realpath(attempt.job_folder)
        logged = last_error(attempt.logs[rank], _ERROR_LINES, own_names)
        reason = _explain(attempt, rank, processes.exit_codes[rank], logged.cause)
        for name in attempt.input_paths:
            if any(_READ_ONLY in line and str(attempt.inputs[name]) in line for line in logged.lines):
                reason += f"; it wrote to its input {name}, which Azure ML mounts read-only"
        return AttemptEnd(processes, reason, logged.lines)
    return _outcome_of_files(attempt, processes, given)


def _outcome_of_files(attempt: Attempt, processes: ProcessesEnded, given: Sequence[GivenInput]) -> AttemptEnd:
    """How an attempt ended whose processes all exited with 0, by what they wrote and what they should have."""
    for name, path in {**attempt.output_paths, "artifacts": attempt.artifacts_folder}.items():
        link = _outward_link(path, attempt.job_folder)
        if link is not None:
            shown = f"{link.relative_to(attempt.job_folder)} -> {os.readlink(link)}"
            return AttemptEnd(
                processes, f"its output {name} has a link that leads out of the job's folder, {shown}: copy the data"
            )
    # Spark writes a folder of parts under the name that a uri_file has, and Azure ML looks no closer.
    missing = [name for name, path in attempt.output_paths.items() if attempt.is_file(name) and not _is_there(path)]
    said = f"it exited with 0, but did not write its output {', '.join(missing)}"
    if any(attempt.strict or name in attempt.job.read_outputs for name in missing):
        return AttemptEnd(processes, said)
    changed = ", ".join(f"{put.name} ({file})" for put in given if (file := put.changed()) is not None)
    if changed:
        return AttemptEnd(processes, f"it wrote to an input, which Azure ML mounts read-only: {changed}")
    warnings = [said] if missing else []
    warnings += [
        f"it wrote to its input {put.name} ({file}): Azure ML mounts inputs read-only, where a write is refused"
        for put in given
        if (file := put.rewritten()) is not None
    ]
    return AttemptEnd(processes, warnings=tuple(warnings))


def empty_outputs(attempt: Attempt) -> list[str]:
    """Return a warning for each folder of a successful command job's outputs that has no files."""
    if attempt.job.component.task is not None:
        return []
    folders = {name: path for name, path in attempt.output_paths.items() if not attempt.is_file(name)}
    return [f"its output {name!r} is empty" for name, path in folders.items() if not _is_there(path)]


def _is_there(written: Path) -> bool:
    """Whether a file is there, or a folder that holds something: a store of blobs has no empty folders."""
    return written.is_file() or (written.is_dir() and next(files_beneath(written), None) is not None)


def _explain(attempt: Attempt, rank: int, code: int, cause: str | None) -> str:
    """Return why the job failed in one line: the cause as in the rank's log if there is one, and how the rank ended."""
    who = f"rank {rank}" if attempt.job.processes > 1 else "its process"
    if code < 0:
        name = signal.Signals(-code).name
        explained = f"{who} was killed by {name}"
        return f"{explained} (out of memory?)" if name == "SIGKILL" else explained
    if shutil.disk_usage(attempt.job_folder).free < 1 << 16:
        return f"{who} ended with exit code {code}; the disk that holds {attempt.job_folder} is full"
    if code == _NOT_FOUND_CODE:
        program = _MISSING_PROGRAM.search("\n".join(last_lines(attempt.logs[rank], _ERROR_LINES)))
        if program is not None:
            where = "install it here" if attempt.image is None else f"{attempt.image.name} does not have it"
            return f"{program[1]}: command not found: {where} ({who} ended with exit code {code})"
    if refused := _REFUSES_ROOT.search("\n".join(last_lines(attempt.logs[rank], _ERROR_LINES))):
        return (
            f"{refused[1]} refuses to run as root ({who} ended with exit code {code}); leave it out of the command and "
            "set `distribution: {type: mpi}`, or give it --allow-run-as-root"
        )
    if cause is None:
        return f"{who} ended with exit code {code}"
    explained = f"{cause} ({who} ended with exit code {code})"
    variable = _MISSING_VARIABLE.search(cause)
    if variable is not None and variable[1] in os.environ:
        return f"{explained}; jobs do not see your shell's {variable[1]}: give it in the job's environment_variables"
    if _NEEDS_GPUS.search(cause) and not (attempt.gpus or attempt.without_gpus):
        return f"{explained}; {_WITHOUT_GPUS}"
    missing = _MISSING_MODULE.search(cause)
    if missing is None:
        return explained
    meant = misspelt_name(missing[1], modules_in(filter(None, [attempt.job.component.code])))
    if meant is not None:
        return f"{explained}; did you mean '{meant}', which is in the code?"
    if attempt.image is not None:
        return f"{explained}; add its package to the environment: {attempt.image.name} does not have it"
    from trainyard.rehearse.environment_packages import where_to_add  # packaging takes 30 ms to import

    return f"{explained}; {where_to_add(missing[1], attempt.job.component.environment, attempt.python)}"


def _outward_link(written: Path, job_folder: Path) -> Path | None:
    """Return the first link, at or beneath a path, that leads out of the job's folder or to its inputs, or None.

    Azure ML's storage has no links. Here, one would bring a file that the run does not hold (or the job's input, which
    is removed when it ends) into later jobs, the cache and the folders of datastores.
    """
    home = os.path.realpath(job_folder)
    inputs = os.path.join(home, "data", "INPUT_")
    for link in _links(written):
        target = os.path.realpath(link)
        if not target.startswith(home + os.sep) or target.startswith(inputs):
            return link
    return None


def _links(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        yield path
        return
    for folder, folders, files in os.walk(path):
        yield from (link for name in sorted([*folders, *files]) if (link := Path(folder, name)).is_symlink())


class LoggedError(NamedTuple):
    """The error that a log ends with: its message on one line, and the lines up to it."""

    cause: str | None
    lines: list[str]


def last_error(log: Path, count: int, names: Mapping[str, str]) -> LoggedError:
    """Return the last exception or error of a step in a log, with at most `count` lines that end with it.

    `names` are written in place of others, such as the user's path in place of the job's. Without an error the cause
    is None and the lines are the log's last. What a process prints after its error is omitted: it is the noise of its
    end.
    """
    lines = [_RANK.sub("", line) for line in last_lines(log, _MOST_LINES_SEARCHED)]
    for name, shown in sorted(names.items(), key=lambda pair: -len(pair[0])):  # INPUT_data begins INPUT_data_2
        lines = [line.replace(name, shown) for line in lines]
    for position in range(len(lines) - 1, -1, -1):
        if found := _STEP_ERROR.fullmatch(lines[position]):
            return LoggedError(cut(found[1], _MOST_CAUSE_CHARACTERS), lines[: position + 1][-count:])
        if lines[position] == _TRACEBACK:
            following = range(position + 1, len(lines))
            end = next((line for line in following if _EXCEPTION.fullmatch(lines[line])), None)
            if end is not None:
                return LoggedError(cut(lines[end], _MOST_CAUSE_CHARACTERS), lines[position : end + 1][-count:])
    return LoggedError(None, lines[-count:])


class WarningLines:
    """The lines `warning: …` that a process adds to its log, as far as the log is read: a part at each look."""

    _BYTES_PER_LOOK = 1 << 18

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = log.stat().st_size if log.exists() else 0
        self._cut = b""

    def new(self) -> list[str]:
        """Return what was added since the last look, without the word."""
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._position)
                added = stream.read(self._BYTES_PER_LOOK)
        except OSError:
            return []
        self._position += len(added)
        read, _, self._cut = (self._cut + added).rpartition(b"\n")
        lines = read.split(b"\n") if _may_warn(read) else []
        texts = (plain_text(line.decode("utf-8", errors="replace")).strip() for line in lines if _may_warn(line))
        return [cut(text.removeprefix(_WARNING), _MOST_CAUSE_CHARACTERS) for text in texts if text.startswith(_WARNING)]


def _may_warn(read: bytes) -> bool:
    """Return whether what was read is worth making plain, which takes 100 ms for 2 MB, twice what a short job costs."""
    return _WARNING_BYTES in read or len(read.translate(None, _CONTROL_BYTES)) < len(read)
