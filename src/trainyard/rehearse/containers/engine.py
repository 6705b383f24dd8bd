"""The container engine of this machine: Docker, or Podman, which takes the same command lines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from trainyard.rehearse.errors import RunError, UsageError

_OPTION = "--environments docker"
_ANSWER_SECONDS = 60
_LOOPBACK = frozenset({None, "", "localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class _Kind:
    """What differs between engines: how `info` says that one runs without root, and how a container gets all GPUs."""

    name: str
    rootless_format: str
    rootless_answer: str
    all_gpus: tuple[str, ...]


_KINDS = (
    _Kind("docker", "{{json .SecurityOptions}}", "name=rootless", ("--gpus", "all")),
    _Kind("podman", "{{.Host.Security.Rootless}}", "true", ("--device", "nvidia.com/gpu=all")),
)


@dataclass(frozen=True)
class ContainerEngine:
    """An engine that answers: its name and program; without root, root in its containers is who runs it."""

    name: str
    program: str
    is_rootless: bool
    all_gpus: tuple[str, ...]

    @property
    def maps_root(self) -> bool:
        """Whether what root writes in a container belongs to the person who runs this."""
        return self.is_rootless or os.getuid() == 0

    @property
    def user_words(self) -> tuple[str, ...]:
        """The words that make a container's files belong to the person who runs this; Azure ML's jobs are root."""
        return () if self.maps_root else ("--user", f"{os.getuid()}:{os.getgid()}")

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call it and return what it said."""
        return subprocess.run([self.program, *words], capture_output=True, text=True, check=False)

    def succeeds(self, log: Path, *words: str) -> bool:
        """Call it for something that takes a while, with its output in a file; return whether it went well."""
        with log.open("w", encoding="utf-8") as stream:
            stream.write(f"{' '.join([self.program, *words])}\n")
            stream.flush()
            called = [self.program, *words]
            return subprocess.run(called, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode == 0


def find_engine(environment: Mapping[str, str]) -> ContainerEngine:
    """Return the engine on PATH that answers, Docker before Podman; DOCKER_HOST says where Docker's is.

    Raise `UsageError` when that is another machine, whose containers do not see this one's files, and `RunError` when
    there is no engine, or none answers.
    """
    host = environment.get("DOCKER_HOST", "")
    address = urlsplit(host)
    if address.scheme == "ssh" or (address.scheme == "tcp" and address.hostname not in _LOOPBACK):
        raise UsageError(
            f"{_OPTION}: DOCKER_HOST is {host}, another machine, whose containers do not see the files of this one; "
            "unset it, or run there"
        )
    silent = []
    for kind in _KINDS:
        program = shutil.which(kind.name)
        if program is None:
            continue
        kind_here = _kind_of(program, kind)
        said = _answer_of(program, kind_here)
        if said is not None and said.returncode == 0:
            return ContainerEngine(
                kind_here.name, program, kind_here.rootless_answer in said.stdout, kind_here.all_gpus
            )
        lines = said.stderr.strip().splitlines() if said is not None else []
        silent.append(f"{kind.name}: {lines[-1] if lines else f'no answer within {_ANSWER_SECONDS} s'}")
    if silent:
        raise RunError(
            f"{_OPTION}: no container engine answers ({'; '.join(silent)}); start it, "
            "or set DOCKER_HOST to one that runs"
        )
    raise RunError(f"{_OPTION} needs docker or podman, and neither is on PATH; install one, or use --environments venv")


def _kind_of(program: str, kind: _Kind) -> _Kind:
    """The engine behind a program: Podman may be installed under Docker's name."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.lower()
    return next((each for each in _KINDS if each.name in version), kind)


def _answer_of(program: str, kind: _Kind) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            [program, "info", "--format", kind.rootless_format],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
