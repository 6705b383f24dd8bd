"""One process of a job in a container: the same command, variables and paths as without one."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainyard.rehearse.attempts import Attempt
from trainyard.rehearse.command import PROGRAMS
from trainyard.rehearse.container_images import ContainerEngine, ContainerImage, bind_mount
from trainyard.rehearse.digests import digest_of
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.rank_processes import Process
from trainyard.rehearse.tracking_store import RunIdentity
from trainyard.spec.documents import Value
from trainyard.spec.resolved import settled

_DIGITS = 12
_DEFAULT_SHARED_MEMORY = "2g"  # Azure ML's, without `shm_size`
# The first process of a container gets no signal that it has no handler for, and whatever it leaves is killed with it.
# So it passes SIGTERM to all, as the runner does without a container, and waits for them. `wait` returns when a signal
# arrives; asked again, it knows the exit code, or says 127 if it has told it already. There is one
# stream of output, because engines pass on two in any order.
FIRST_PROCESS = """\
exec 2>&1
stopped=
trap 'trap "" TERM; stopped=1; kill -TERM 0' TERM
"$@" &
wait $!; code=$?
if [ -n "$stopped" ]; then
    wait $!; again=$?
    [ "$again" -eq 127 ] || code=$again
    while kill -0 -1 2>/dev/null; do sleep 0.1; done
fi
exit "$code"
"""
# What the engine's own program needs of this machine's variables.
_OF_THE_CLIENT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS"}
)
_PREFIXES_OF_THE_CLIENT = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "PODMAN_", "REGISTRY_", "XDG_", "BUILDAH_")


def run_label(run: RunIdentity) -> str:
    """Return the label of all containers of a pipeline's run."""
    return f"trainyard.run={run.root_run_id}"


def job_label(run: RunIdentity) -> str:
    """Return the label of the containers of one job, or of one trial of a sweep."""
    return f"trainyard.job={run.run_id}"


def in_container(
    attempt: Attempt, image: ContainerImage, process: Process, *, containers_per_node: int, folders: Sequence[Path]
) -> Process:
    """Return a process in a container of its own, which sees the job's files and these `folders` only.

    Processes of one node share the machine's memory files when they are in several containers; a single container has
    the job's `shm_size`. Raise `RunError` for `docker_args` with an open quote.
    """
    engine = image.engine
    variables = {**_identity(engine), **process.environment}
    is_client = {name: name in _OF_THE_CLIENT or name.startswith(_PREFIXES_OF_THE_CLIENT) for name in os.environ}
    client = {name: value for name, value in os.environ.items() if is_client[name]}
    name = f"trainyard-{digest_of(str(attempt.job_folder), attempt.number)[:_DIGITS]}-{process.rank}"
    words = [
        *(engine.program, "run", "--rm", "--pull", "never", "--name", name),
        *("--label", run_label(attempt.run), "--label", job_label(attempt.run)),
        # Ranks meet on the loopback, and SELinux would keep the job from its own folder.
        *("--network", "host", "--security-opt", "label=disable"),
        *engine.user_words,
        *(("--ipc", "host") if containers_per_node > 1 else ("--shm-size", _shared_memory(attempt))),
        *(engine.all_gpus if attempt.gpus else ()),
        *("--workdir", str(process.working_folder)),
        *_mounts(attempt, process, folders),
        *_environment(variables, client),
        *_docker_arguments(attempt),
        *("--entrypoint", "/bin/sh", image.digest, "-c", FIRST_PROCESS, "sh"),
    ]
    return replace(
        process,
        environment={**variables, **client},
        prefix=tuple(words),
        shell=image.shell,
        ending=(engine.program, "kill", name),
    )


class ContainerSessions:
    """The sessions of an attempt's containers, asked of the engine until each has a first process, which leads one.

    An engine on a virtual machine names processes that are not on this one: only those with another view of process ids
    than the runner's are containers here.
    """

    def __init__(self, attempt: Attempt, engine: ContainerEngine) -> None:
        self._attempt = attempt
        self._engine = engine
        self._leaders: set[int] = set()

    def __call__(self, started: Sequence[int]) -> set[int]:
        """Return the leaders' process ids, where `started` are the engine's own programs, one for each container."""
        if len(self._leaders) < len(started):
            label = f"label={job_label(self._attempt.run)}"
            names = self._engine.ask("ps", "--quiet", "--filter", label).stdout.split()
            if names:
                said = self._engine.ask("inspect", "--format", "{{.State.Pid}}", *names).stdout
                self._leaders = {int(word) for word in said.split() if _is_of_a_container_here(word)}
        return self._leaders


def _is_of_a_container_here(process_id: str) -> bool:
    try:
        return Path("/proc", process_id, "ns", "pid").stat().st_ino != Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return False


def _identity(engine: ContainerEngine) -> dict[str, str]:
    """What a user that the image does not know cannot look up: a home that can be written, and a name."""
    if not engine.user_words:
        return {}
    name = getpass.getuser()
    return {"HOME": "/tmp", "USER": name, "LOGNAME": name}


def _environment(variables: Mapping[str, str], client: Mapping[str, str]) -> list[str]:
    """Pass variables by name, so that no secret is in a command line that others see; the client's own by value."""
    given = [f"{name}={value}" if name in client else name for name, value in sorted(variables.items())]
    return [word for variable in given for word in ("--env", variable)]


def _mounts(attempt: Attempt, process: Process, folders: Sequence[Path]) -> list[str]:
    """The job's own folder, its inputs within it read-only, the MLflow store, and programs that the runner starts."""
    store = Path(unquote(urlsplit(attempt.run.tracking_uri).path))
    written = [attempt.job_folder, store, *folders]
    read = sorted({attempt.data_folder / f"INPUT_{name}" for name in attempt.input_paths})
    if str(PROGRAMS) in process.command or attempt.without_gpus:
        read.append(PROGRAMS)
    mounts = [bind_mount(path) for path in written] + [bind_mount(path, read_only=True) for path in read]
    return [word for mount in mounts for word in mount]


def _shared_memory(attempt: Attempt) -> str:
    resources = attempt.job.resources
    if resources is None or resources.shm_size is None:
        return _DEFAULT_SHARED_MEMORY
    return str(settled(attempt.job.use.resolve(resources.shm_size))).strip()


def _docker_arguments(attempt: Attempt) -> list[str]:
    written: Value | None = attempt.job.resources.docker_args if attempt.job.resources is not None else None
    if written is None:
        return []
    texts = written.data if isinstance(written.data, list) else [written.data]
    try:
        return [word for text in texts for word in shlex.split(str(text))]
    except ValueError as error:
        raise RunError(f"{attempt.job.name}: docker_args: {error}: {written.data}; close the quote") from error
