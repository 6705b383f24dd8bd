"""The container engine of this machine, and the image of each environment: as it is, built, or with conda on top."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from trainyard.printing import last_lines
from trainyard.rehearse.digests import ContentDigests, digest_of
from trainyard.rehearse.errors import RunError, UsageError, error_at, writing
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.settings.files import open_lock_file
from trainyard.settings.quantities import duration
from trainyard.spec.model import Environment, Spark

_OPTION = "--environments docker"
_ANSWER_SECONDS = 60
_LOOPBACK = frozenset({None, "", "localhost", "127.0.0.1", "::1"})


class _Kind(NamedTuple):
    """What differs between engines: how `info` says that one runs without root, and how a container gets all GPUs."""

    name: str
    rootless_format: str
    rootless_answer: str
    all_gpus: tuple[str, ...]


_KINDS = (
    _Kind("docker", "{{json .SecurityOptions}}", "name=rootless", ("--gpus", "all")),
    _Kind("podman", "{{.Host.Security.Rootless}}", "true", ("--device", "nvidia.com/gpu=all")),
)


class ContainerEngine(NamedTuple):
    """An engine that answers: its name and program, and the words that give a container all GPUs.

    `user_words` make a container's files belong to the person who runs this, where root's would not: Azure ML's jobs
    are root.
    """

    name: str
    program: str
    all_gpus: tuple[str, ...]
    user_words: tuple[str, ...]

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call it and return what it said."""
        return subprocess.run([self.program, *words], capture_output=True, text=True, check=False)

    def succeeds(self, log: Path, *words: str) -> bool:
        """Call it for something that takes a while, with its output in a file; return whether it went well."""
        called = [self.program, *words]
        with log.open("w", encoding="utf-8") as stream:
            print(*called, file=stream, flush=True)
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
        # Podman may be installed under Docker's name.
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.lower()
        found = next((known for known in _KINDS if known.name in version), kind)
        ask = [program, "info", "--format", found.rootless_format]
        try:
            said = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            silent.append(f"{kind.name}: no answer within {_ANSWER_SECONDS} s")
            continue
        if said.returncode == 0:
            is_mine = found.rootless_answer in said.stdout or os.getuid() == 0
            user_words = () if is_mine else ("--user", f"{os.getuid()}:{os.getgid()}")
            return ContainerEngine(found.name, program, found.all_gpus, user_words)
        silent.append(f"{kind.name}: {_last_line(said.stderr)}")
    if silent:
        raise RunError(
            f"{_OPTION}: no container engine answers ({'; '.join(silent)}); start it, "
            "or set DOCKER_HOST to one that runs"
        )
    raise RunError(f"{_OPTION} needs docker or podman, and neither is on PATH; install one, or use --environments venv")


_DIGITS = 16
# Of a curated environment, which has an image of this name and version in Microsoft's public registry
# (Azure/azureml-assets, wiki/Environments: `image.name: azureml/curated/…`).
_CURATED = re.compile(r"azureml://registries/azureml/environments/([^/]+)/(?:versions|labels)/([^/]+)", re.IGNORECASE)
_CURATED_IMAGE = "mcr.microsoft.com/azureml/curated"
# What Azure ML builds for `image` with `conda_file` (azureml-cheatsheets, docker-build), but for repairs of old conda.
_CONDA_DOCKERFILE = """\
FROM {base}
USER root
WORKDIR /
COPY conda.yaml azureml-environment-setup/conda.yaml
RUN conda env create --prefix {prefix} --file azureml-environment-setup/conda.yaml && conda clean --all --yes
ENV PATH={prefix}/bin:$PATH
ENV LD_LIBRARY_PATH={prefix}/lib:$LD_LIBRARY_PATH
ENV AZUREML_CONDA_ENVIRONMENT_PATH={prefix} CONDA_PREFIX={prefix} CONDA_DEFAULT_ENV={prefix}
CMD ["bash"]
"""
# What a job's container needs: the shell that is there, and whether `mpirun` is Open MPI's.
_QUESTIONS = "command -v bash || command -v sh; mpirun --version 2>&1; true"


@dataclass(frozen=True)
class ContainerImage:
    """An image on this machine: its name, the digest of what is in it, and what a job needs to know of it.

    `environment` are the variables that it sets, `shell` is a path within.
    """

    engine: ContainerEngine
    name: str
    digest: str
    environment: Mapping[str, str] = field(default_factory=dict)
    shell: str = "/bin/sh"
    has_open_mpi: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.digest})"


def images_of(
    jobs: Iterable[LocalJob],
    engine: ContainerEngine,
    folder: Path,
    shared_folder: Path,
    digests: ContentDigests,
    note: Callable[[str], None],
) -> dict[str, ContainerImage]:
    """Return the image of each job by the job's name, pulled or built where it is not on this machine yet.

    Build logs lie in `folder`. Containers must see `shared_folder`, which holds the runs. Jobs without an environment,
    and Spark jobs, whose environment Azure ML lays over its own image, have none: `note` says so, and of what is pulled
    and built. Raise `SpecError` for an environment that only a workspace knows, and `RunError` for an image that cannot
    be pulled, built or started.
    """
    images = _Images(engine, folder, digests, note)
    found: dict[str, ContainerImage] = {}
    examined: dict[str, ContainerImage] = {}
    for job in jobs:
        environment = job.component.environment
        if environment is None or isinstance(job.component.task, Spark):
            what = "Spark brings its own image" if environment is not None else "it has no environment"
            note(f"{job.name}: {what}: it runs with the Python here, in no container")
            continue
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with open_lock_file(folder / "images.lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be pulling or building the same
                name = images.present(job.name, environment)
        if name not in examined:
            examined[name] = _examined(engine, name, environment, shared_folder)
        found[job.name] = examined[name]
    return found


class _Images(NamedTuple):
    """What has images pulled and built by an engine, with logs in `folder`; `note` tells of both."""

    engine: ContainerEngine
    folder: Path
    digests: ContentDigests
    note: Callable[[str], None]

    def present(self, job: str, environment: Environment) -> str:
        """Have the image of a job's environment on this machine; return its name here.

        Raise `SpecError` if only a workspace knows it.
        """
        if environment.build_path is not None:
            dockerfile = environment.dockerfile or "Dockerfile"
            tag = _tag("build", self.digests.of_path(environment.build_path), dockerfile)
            if _inspected(self.engine, tag) is None:
                self._build(tag, environment.build_path / dockerfile, environment.build_path, environment.build_path)
            return tag
        base = _published(job, environment)
        conda = _conda_text(environment)
        if conda is None:
            return self._pulled(base, environment)
        tag = _tag("conda", base, conda, _CONDA_DOCKERFILE)
        if _inspected(self.engine, tag) is None:
            base = self._pulled(base, environment)
            context = self.folder / tag.rpartition(":")[2]
            shutil.rmtree(context, ignore_errors=True)
            context.mkdir()
            text = _CONDA_DOCKERFILE.format(base=base, prefix=f"/azureml-envs/{context.name}")
            (context / "Dockerfile").write_text(text, encoding="utf-8")
            (context / "conda.yaml").write_text(conda, encoding="utf-8")
            assert environment.package_source is not None
            self._build(tag, context / "Dockerfile", context, environment.package_source[0])
        return tag

    def _build(self, tag: str, dockerfile: Path, context: Path, place: Path) -> None:
        """Build an image; `place` is what its user knows of it."""
        log = self.folder / f"{tag.rpartition(':')[2]}.log"
        self.note(f"building the image of {place}, once ({log})")
        started = time.monotonic()
        words = ("build", "--network", "host", "--tag", tag, "--file", str(dockerfile), str(context))
        if not self.engine.succeeds(log, *words):
            raise RunError(f"{place}: its image cannot be built here: {_cause(log)}; {log} has all of it")
        self.note(f"built {tag} in {duration(time.monotonic() - started)}")

    def _pulled(self, image: str, environment: Environment) -> str:
        """Have a published image on this machine; return its name here."""
        full = _with_registry(image)
        for name in (image, full):
            if _inspected(self.engine, name) is not None:
                return name
        self.note(f"pulling {full}, once")
        log = self.folder / "pull.log"
        if not self.engine.succeeds(log, "pull", full):
            raise error_at(
                environment.span,
                f"the image {image} is not on this machine and cannot be pulled: {_cause(log)}",
                f"check its name, or sign in with `{self.engine.name} login`",
            )
        return full


def _published(job: str, environment: Environment) -> str:
    """The name of the published image that an environment is, or begins with."""
    curated = _CURATED.fullmatch(environment.reference or "")
    image = f"{_CURATED_IMAGE}/{curated[1]}:{curated[2]}" if curated is not None else environment.image
    if image is None:
        raise error_at(
            environment.span,
            f"job {job!r}: its environment is {environment.reference or 'a build elsewhere'}, whose image only the "
            "workspace knows",
            "write the environment's image or build in the file, or run without --environments docker",
        )
    return image


def _tag(*content: object) -> str:
    return f"localhost/trainyard:{digest_of(*content)[:_DIGITS]}"


def _conda_text(environment: Environment) -> str | None:
    """What conda reads: the file, or the keys written in its place."""
    if environment.conda_file is not None:
        return environment.conda_file.read_text(encoding="utf-8")
    if environment.conda is not None:
        return yaml.safe_dump(environment.conda.data, sort_keys=False)
    return None


def _with_registry(image: str) -> str:
    """An image's name with Docker Hub, where it names no registry: Podman asks which one is meant."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _inspected(engine: ContainerEngine, name: str) -> dict[str, Any] | None:
    """What the engine knows of an image on this machine; None if it is not here."""
    answer = engine.ask("image", "inspect", name)
    found = json.loads(answer.stdout) if answer.returncode == 0 else []
    return found[0] if found else None


def _examined(engine: ContainerEngine, name: str, environment: Environment, shared_folder: Path) -> ContainerImage:
    """Start an image once, to find out what it has, and whether its containers see this machine's files."""
    known = _inspected(engine, name)
    assert known is not None
    digest = f"sha256:{str(known['Id']).removeprefix('sha256:')}"
    variables = dict(variable.partition("=")[::2] for variable in (known.get("Config") or {}).get("Env") or ())
    mount = bind_mount(shared_folder, read_only=True)
    words = ("run", "--rm", "--network", "host", "--security-opt", "label=disable", *engine.user_words, *mount)
    answer = engine.ask(*words, "--entrypoint", "/bin/sh", digest, "-c", _QUESTIONS)
    if answer.returncode != 0:
        raise error_at(
            environment.span,
            f"no container of the image {name} can be started here: {_last_line(answer.stderr)}",
            f"try it: {engine.name} run --rm -v {shared_folder}:{shared_folder} --entrypoint /bin/sh {name}",
        )
    shell, _, rest = answer.stdout.partition("\n")
    return ContainerImage(engine, name, digest, variables, shell, "Open MPI" in rest)


def bind_mount(path: Path, *, read_only: bool = False) -> tuple[str, str]:
    """Return the words that show a file or folder to a container under its own path."""
    line = io.StringIO()
    fields = ["type=bind", f"source={path}", f"destination={path}", *(["readonly"] if read_only else [])]
    csv.writer(line, lineterminator="").writerow(fields)
    return "--mount", line.getvalue()


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["no reason given"])[-1]


def _cause(log: Path) -> str:
    lines = [line for line in last_lines(log, 20) if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines)[-1].strip()
