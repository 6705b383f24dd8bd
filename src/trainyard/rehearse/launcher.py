"""Runs an attempt of a job: its processes, each with its environment, and all that these need meanwhile."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.rehearse.attempts import Attempt, AttemptEnd, GivenInput, drop_empty_artifacts, take_back_inputs
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.command import WITHOUT_GPUS
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.guardian import remove_containers
from trainyard.rehearse.job_variables import process_environment
from trainyard.rehearse.local_distributions import local_distribution
from trainyard.rehearse.machine import reserved_port
from trainyard.rehearse.machine_use import machine_use_sampled
from trainyard.rehearse.outcome import outcome
from trainyard.rehearse.rank_processes import Process, ProcessesEnded, run_processes

if TYPE_CHECKING:
    from trainyard.rehearse.container_images import ContainerImage


def launch(attempt: Attempt, given: Sequence[GivenInput], cancellation: Cancellation) -> AttemptEnd:
    """Run the attempt to its end, in folders made by `make_folders`, which returned what it was `given`.

    Raise `RunError` when it cannot start.
    """
    try:
        try:
            processes = _run(attempt, given, cancellation)
        except OSError as error:
            raise RunError(f"{attempt.job.name}: its processes cannot be started: {error.strerror or error}") from error
        end = outcome(attempt, processes, given, cancellation.reason)
        return end._replace(progress=attempt.faults.end()) if attempt.faults is not None else end
    finally:
        take_back_inputs(attempt.data_folder)
        drop_empty_artifacts(attempt)


def _run(attempt: Attempt, given: Sequence[GivenInput], cancellation: Cancellation) -> ProcessesEnded:
    job, counts = attempt.job, attempt.job.counts
    here = local_distribution(job.distribution)
    if attempt.without_gpus:
        attempt.note_decision(f"without GPUs: the CPU stands in for them in PyTorch, from {WITHOUT_GPUS}")
    with ExitStack() as stack:
        ports = job.distribution.ports(counts) if job.distribution is not None else 0
        first = job.distribution.first_port if job.distribution is not None else 0
        candidates = range(first, first + 1000)  # all below 32768, where Linux begins to assign ports to clients
        outputs, faults = attempt.job_folder / "outputs", attempt.faults
        attempt = attempt._replace(
            ports=[stack.enter_context(reserved_port(candidates)) for _ in range(ports)],
            events_url=faults.begin(attempt.logs[0], attempt.tracked, outputs, stack) if faults is not None else None,
        )
        processes: Sequence[Process] = [
            Process(
                rank,
                attempt.command,
                process_environment(attempt, rank, here.variables, os.environ),
                attempt.working_folder(attempt.node_of(rank)),
                attempt.logs[rank],
            )
            for rank in range(job.processes)
        ]
        processes, folders = here.arranged(attempt, processes, stack)
        if attempt.image is not None:
            processes = _in_containers(attempt, attempt.image, processes, folders, stack)
        else:
            read_only = _read_only_prefix([str(put.place) for put in given if put.is_read_only])
            processes = [replace(process, prefix=read_only) for process in processes]
        ended = run_processes(
            processes,
            cancellation,
            grace_seconds=attempt.grace_seconds,
            beneath=attempt.job_folder,
            timeout_seconds=job.timeout_seconds,
            helpers=job.distribution.helpers(counts) if job.distribution is not None else (),
            faults=attempt.faults,
            on_started=_watch_machine_use(attempt, stack),
        )
    return here.ended(attempt, ended)


def _in_containers(
    attempt: Attempt, image: ContainerImage, processes: Sequence[Process], folders: Sequence[Path], stack: ExitStack
) -> list[Process]:
    """The same processes in containers, which are gone with the attempt, however it ends."""
    from trainyard.rehearse.containers import in_container, job_label

    attempt.note_decision(f"containers: {image.engine.name}, {image}")
    stack.callback(remove_containers, image.engine.program, job_label(attempt.run))
    per_node = -(-len(processes) // attempt.job.counts.nodes)
    return [
        in_container(attempt, image, process, containers_per_node=per_node, folders=folders) for process in processes
    ]


def _watch_machine_use(attempt: Attempt, stack: ExitStack) -> Callable[[list[int]], None]:
    """What samples the processes when they have started. Those of containers are not beneath the ones started here."""
    arguments = (attempt.job_folder, attempt.number, attempt.gpus)
    if attempt.image is None:
        return stack.enter_context(machine_use_sampled(*arguments))
    from trainyard.rehearse.containers import ContainerSessions

    sessions = ContainerSessions(attempt, attempt.image.engine)
    return stack.enter_context(machine_use_sampled(*arguments, sessions))


# A mount that fails leaves the input as it is: what the job wrote to it is looked for when it has ended.
_MOUNT_AND_RUN = (
    'mount=$1; shift; for place; do shift; [ "$place" = -- ] && break; '
    '"$mount" -o bind,ro "$place" "$place" 2>/dev/null; done; exec "$@"'
)


def _read_only_prefix(places: Sequence[str]) -> tuple[str, ...]:
    """Return the words before a command that runs it with these files and folders read-only; none where it cannot.

    Azure ML mounts inputs so: https://learn.microsoft.com/azure/machine-learning/how-to-read-write-data-v2#modes. Here
    they are mounted over themselves, where only the processes of the job see it.

    The command keeps the process id, and its mounts end with the last process that it leaves. Others than root need no
    mounts: they cannot write to the files, and what they add to a folder is found when the job has ended.
    """
    unshare, shell, mount = (shutil.which(program) or "" for program in ("unshare", "sh", "mount"))
    words = (unshare, "--mount", "--", shell, "-c", _MOUNT_AND_RUN, shell, mount)
    can_mount = places and os.geteuid() == 0 and unshare and mount and _works(words)
    return (*words, *places, "--") if can_mount else ()


@functools.cache
def _works(words: tuple[str, ...]) -> bool:
    """Whether root may mount here, as most containers do not allow, and this mount(8) knows how."""
    with tempfile.TemporaryDirectory() as folder:
        writing = [*words, folder, "--", "sh", "-c", 'touch "$0/file" || echo refused', folder]
        tried = subprocess.run(writing, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return tried.stdout == "refused\n"
