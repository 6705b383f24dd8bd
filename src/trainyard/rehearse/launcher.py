"""Runs an attempt of a job: its processes, each with its environment, and all that these need meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from trainyard.rehearse.attempts import Attempt, AttemptEnd, drop_empty_artifacts, note_decision
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.contract import ProcessContext, container_environment, process_environment
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.given_inputs import GivenInput, take_back_inputs
from trainyard.rehearse.guardian import remove_containers
from trainyard.rehearse.kinds.mpi_jobs import by_rank, open_mpi, under_mpirun
from trainyard.rehearse.kinds.ray_jobs import with_ray
from trainyard.rehearse.machine import AZURE_ML_MASTER_PORT, available_gpus, gpus_of_node, reserved_port
from trainyard.rehearse.machine_use import machine_use_sampled
from trainyard.rehearse.outcome import outcome
from trainyard.rehearse.processes import ProcessesEnded, ProcessStart, run_processes
from trainyard.rehearse.resolution import ResolvedJob
from trainyard.rehearse.steps_seen import StepsSeen
from trainyard.spec.distributions import Ray

if TYPE_CHECKING:
    from trainyard.rehearse.containers.images import ContainerImage


def launch(attempt: Attempt, given: Sequence[GivenInput], cancellation: Cancellation) -> AttemptEnd:
    """Run the attempt to its end, in folders made by `make_folders`, which returned what it was `given`.

    Raise `RunError` when it cannot start.
    """
    try:
        try:
            processes = _run(attempt, cancellation)
        except OSError as error:
            raise RunError(f"{attempt.job.name}: its processes cannot be started: {error.strerror or error}") from error
        end = outcome(attempt, processes, given, cancellation.reason)
        return replace(end, progress=attempt.faults.end()) if attempt.faults is not None else end
    finally:
        take_back_inputs(attempt.job_folder / "data")
        drop_empty_artifacts(attempt)


def _run(attempt: Attempt, cancellation: Cancellation) -> ProcessesEnded:
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(_ports_needed(attempt.job))]
        events_url = _watch_for_faults(attempt, stack)
        starts = [_process(attempt, rank, ports, events_url) for rank in range(attempt.job.processes)]
        folders: list[Path] = []
        ray = attempt.job.use.job.effective_distribution
        if isinstance(ray, Ray):
            temporary = Path(stack.enter_context(TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)))
            folders.append(temporary)
            log = attempt.job_folder / "system_logs" / "ray_head.log"
            starts = with_ray(starts, ray, ports[0], temporary, log)
        mpirun = _mpirun(attempt) if attempt.job.distribution == "mpi" else None
        if attempt.job.distribution == "mpi":
            how = f"started by {mpirun}" if mpirun else "no mpirun of Open MPI, its variables only"
            note_decision(attempt, f"mpi: {how}")
        if mpirun is not None:
            starts = [under_mpirun(mpirun, starts, attempt.job_folder / "data", _mpi_log(attempt))]
        if attempt.image is not None:
            starts = _in_containers(attempt, attempt.image, starts, folders, stack)
        processes = run_processes(
            starts,
            cancellation,
            grace_seconds=attempt.grace_seconds,
            beneath=attempt.job_folder,
            timeout_seconds=attempt.job.timeout_seconds,
            helpers=_helpers(attempt.job),
            faults=attempt.faults,
            on_started=_watch_machine_use(attempt, stack),
        )
    return by_rank(processes, _mpi_log(attempt), attempt.job.processes) if mpirun is not None else processes


def _in_containers(
    attempt: Attempt, image: ContainerImage, starts: Sequence[ProcessStart], folders: Sequence[Path], stack: ExitStack
) -> list[ProcessStart]:
    """The same processes in containers, which are gone with the attempt, however it ends."""
    from trainyard.rehearse.containers.container import in_container, job_label

    note_decision(attempt, f"containers: {image.engine.name}, {image}")
    stack.callback(remove_containers, image.engine.program, job_label(attempt.run))
    per_node = -(-len(starts) // attempt.job.nodes)
    return [in_container(attempt, image, start, containers_per_node=per_node, folders=folders) for start in starts]


def _mpirun(attempt: Attempt) -> str | None:
    """Open MPI's program that starts the ranks, in the job's image where it has one."""
    if attempt.image is None:
        return open_mpi()
    return "mpirun" if attempt.image.has_open_mpi else None


def _watch_machine_use(attempt: Attempt, stack: ExitStack) -> Callable[[list[int]], None]:
    """What samples the processes when they have started. Those of containers are not beneath the ones started here."""
    arguments = (attempt.job_folder, attempt.number, available_gpus(os.environ))
    if attempt.image is None:
        return stack.enter_context(machine_use_sampled(*arguments))
    from trainyard.rehearse.containers.container import ContainerSessions

    sessions = ContainerSessions(attempt, attempt.image.engine)
    return stack.enter_context(machine_use_sampled(*arguments, sessions))


def _watch_for_faults(attempt: Attempt, stack: ExitStack) -> str | None:
    """Have the attempt's faults, if it has any, begin to watch it; return where they announce a preemption."""
    if attempt.faults is None:
        return None
    from trainyard.rehearse.metadata_service import metadata_service  # only such runs need a server

    service = stack.enter_context(metadata_service())
    tracked = attempt.tracked or attempt.job_folder
    attempt.faults.begin(StepsSeen(attempt.logs[0], tracked, attempt.job_folder / "outputs"), service)
    return service.events_url


def _helpers(job: ResolvedJob) -> range:
    """The ranks that only serve the others: TensorFlow's parameter servers, and Ray's nodes but the head."""
    workers = 1 if job.distribution == "ray" else job.processes - job.parameter_servers
    return range(workers, job.processes)


def _ports_needed(job: ResolvedJob) -> int:
    """PyTorch's ranks, and Ray's nodes, meet at one port; each task of TensorFlow listens at one of its own."""
    return {"tensorflow": job.processes, None: 0}.get(job.distribution, 1)


def _mpi_log(attempt: Attempt) -> Path:
    return attempt.job_folder / "system_logs" / "mpirun.log"


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
        working_folder=attempt.working_folder(node),
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
    own, image = job.environment_variables, attempt.image
    if image is not None:
        environment = container_environment(context, own, os.environ, image.environment)
    else:
        environment = process_environment(context, own, os.environ, attempt.python)
    return ProcessStart(rank, attempt.command, environment, context.working_folder, attempt.logs[rank])
