"""Profiles: what differs from cluster to cluster, read with its places, checked, and joined with the catalogue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.catalogue.skus import Sku, UnknownSku, closest_current, find_sku
from trainyard.errors import UsageError, unknown_name
from trainyard.render import rules
from trainyard.render.batch_scaling import Sharing, keep_batches
from trainyard.render.layers import KeyPath, Layers, read_layers
from trainyard.render.profile_schema import (
    accepted_settings,
    check_against_schema,
    rendered_names,
    settings_file,
    shared_by_workers,
)
from trainyard.render.project import Project
from trainyard.render.settings import as_argument
from trainyard.render.steps import step_descriptions
from trainyard.render.values import origin_of, written
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import Document, read_document
from trainyard.spec.parsed import is_remote
from trainyard.spec.set_arguments import COMMAND_LINE

# What an Azure image for machine learning sets for its GPUs' libraries, and what only the host has: NCCL's topology
# and graph files lie on the VM, where containers do not see them, and NCCL ends a job whose file is missing.
_HOST_FILES = frozenset({"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"})
# Source: Azure's azhpc-images and azurehpc-health-checks. eth0 carries the bootstrap, and gloo's exchanges in
# main memory; InfiniBand is found by itself.
_EVERY_GPU = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
_EVERY_NVIDIA_GPU = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

_PROCESS_KEYS = frozenset({"nodes", "sku", "processes_per_node"})
"""What of `--set` changes the number of processes."""


@dataclass(frozen=True)
class Cluster:
    """A cluster besides that of the trainings: its name, its VM size, and the most machines it scales up to."""

    name: str
    sku_name: str
    nodes: int


@dataclass(frozen=True)
class Profile:
    """One profile with what it extends and `--set` laid over it; values know the line they come from.

    `files` are the profile's own file and those it extends, nearest first. `sku` is None where there is no cluster.
    `clusters` are those besides `cluster`, by what runs there (`prepare`). `environments` are by step, with a
    `default`. `adjustments` say what was changed to keep the global batches where `--set` changes the number of
    processes.
    """

    name: str
    files: tuple[Path, ...]
    settings: Mapping[str, object]
    description: str
    cluster: str
    nodes: int
    processes_per_node: int
    spot: bool
    tier: str
    precision: str
    shm_size: str
    environments: Mapping[str, str]
    pipelines: Mapping[str, Mapping[str, Any]]
    clusters: Mapping[str, Cluster]
    idle_seconds: int = 300
    subnet: str | None = None
    sku: Sku | None = None
    sku_name: str | None = None
    adjustments: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Processes of one training, over all nodes."""
        return self.nodes * self.processes_per_node

    @property
    def environment_variables(self) -> dict[str, str]:
        """What the GPUs' communication library needs to know on these machines; empty without GPUs."""
        if self.sku is None or not self.sku.gpu_count:
            return {}
        own = {name: value for name, value in self.sku.nccl_settings.items() if name not in _HOST_FILES}
        return {**_EVERY_GPU, **(_EVERY_NVIDIA_GPU if self.sku.gpu_vendor == "NVIDIA" else {}), **own}

    def environment_of(self, step: str) -> str:
        """The environment that a step's component names, as the profile gives it."""
        return self.environments.get(step, self.environments["default"])


def profile_names(project: Project) -> list[str]:
    """The names of all profiles, sorted."""
    return sorted(file.stem for file in project.profiles.glob("*.yaml"))


def load_profile(
    project: Project,
    name: str,
    settings: Mapping[str, object] | None = None,
    read: Callable[[Path], Document] = read_document,
) -> Profile:
    """Read a profile, what it extends, and lay `settings` (dotted keys, as in `--set`) over it.

    `read` returns the document of a file, for callers that have read it, or that replace its text.
    Raise UsageError for an unknown profile and invalid settings, SpecError with every mistake in the files.
    """
    known = profile_names(project)
    if name not in known:
        raise unknown_name("profile", name, known)
    given = dict(settings or {})
    if "extends" in given:
        setting = as_argument("extends", given["extends"])
        raise UsageError(f"--set {setting}: name the profile itself, as in: trainyard render {name}")
    layers = read_layers(project, name, given, read)
    _raise_if_any(check_against_schema(project, layers))
    _raise_if_any(
        [
            *_machine_problems(layers),
            *_cluster_problems(layers),
            *_environment_problems(project, layers),
            *_deepspeed_problems(layers, rendered_names(project, "components/deepspeed", ".json.j2")),
            *_settings_file_problems(project, layers),
        ]
    )
    adjustments: tuple[str, ...] = ()
    if not given.keys().isdisjoint(_PROCESS_KEYS):
        before, after = _sharing(read_layers(project, name, {}, read).data), _sharing(layers.data)
        if before is not None and after is not None and before != after:
            pipelines = accepted_settings(project), shared_by_workers(project)
            adjustments = tuple(keep_batches(layers, *pipelines, given, (before, after)))
    return replace(_assemble(name, layers, given), adjustments=adjustments)


def _sharing(data: Mapping[str, Any]) -> Sharing | None:
    """Return how many share a batch; None where the profile alone does not say."""
    nodes, per_node, gpus = data.get("nodes"), data.get("processes_per_node"), 0
    if "sku" in data:
        with contextlib.suppress(UnknownSku):
            gpus = find_sku(data["sku"]).gpu_count
    per_node = gpus or per_node
    if type(nodes) is not int or type(per_node) is not int:
        return None
    return Sharing(nodes * per_node, workers=nodes if gpus else nodes * per_node, gpus_per_worker=gpus or 1)


def _raise_if_any(problems: Sequence[Diagnostic]) -> None:
    """Say what is wrong with `--set` as wrong use, what is wrong with files at their lines."""
    asked_wrongly = [problem for problem in problems if problem.span.file == COMMAND_LINE]
    if asked_wrongly:
        sentences = (f"{problem.message.removesuffix('.')}. {problem.hint}".strip() for problem in asked_wrongly)
        raise UsageError("\n".join(sentences))
    if problems:
        raise SpecError(problems)


def _machine_problems(layers: Layers) -> Iterator[Diagnostic]:
    """What the catalogue says against a profile: no such size, a retired one, bf16 without hardware for it."""
    data = layers.data
    processes = data.get("processes_per_node")
    if "sku" not in data:
        if processes is None:
            message = "a profile names its machines (sku) or how many processes it takes (processes_per_node)"
            yield layers.problem((), rules.PROFILE_KEY, message, "For GPUs: `trainyard skus` lists the sizes.")
        return
    sku = yield from _usable_sku(layers, ("sku",), data["sku"])
    if sku is None:
        return
    if sku.gpu_count and processes is not None:
        message = f"{sku.name} has {sku.gpu_count} GPUs, and each gets one process: processes_per_node says that again"
        yield layers.problem(("processes_per_node",), rules.PROFILE_KEY, message, "Remove processes_per_node.")
    elif not sku.gpu_count and processes is None:
        message = f"{sku.name} has no GPUs that would say how many processes to start"
        yield layers.problem(("sku",), rules.PROFILE_KEY, message, "Add processes_per_node.")
    elif sku.gpu_count and data["precision"] == "bf16" and not sku.bf16:
        message = f"bf16 needs hardware for it, which the {sku.gpu_model} of {sku.name} does not have"
        yield layers.problem(("precision",), rules.PROFILE_VALUE, message, "Use fp16 or fp32.")


def _cluster_problems(layers: Layers) -> Iterator[Diagnostic]:
    """What the catalogue says against the other clusters: no such size, or one with GPUs that would be idle."""
    for use, cluster in layers.data.get("clusters", {}).items():
        path = ("clusters", use, "sku")
        sku = yield from _usable_sku(layers, path, cluster["sku"])
        if sku is not None and sku.gpu_count:
            message = f"{sku.name} has {sku.gpu_count} GPUs, which preparation leaves idle"
            yield layers.problem(path, rules.PROFILE_VALUE, message, "Use a size without GPUs.")
        if cluster["name"] == layers.data["cluster"]:
            message = f"'{cluster['name']}' is the cluster of the trainings, whose machines are of another size"
            yield layers.problem(("clusters", use, "name"), rules.PROFILE_VALUE, message, "Use another name.")


def _usable_sku(layers: Layers, path: KeyPath, name: str) -> Generator[Diagnostic, None, Sku | None]:
    """Return the VM size that is named at a path; yield what is wrong, and return None, for one nobody can have."""
    try:
        sku = find_sku(name)
    except UnknownSku as error:
        yield layers.problem(path, rules.UNUSABLE_SKU, str(error))
        return None
    if sku.is_retired:
        message = f"{sku.name} was retired on {sku.retirement_date}: no new cluster can have this size"
        hint = f"Closest: {', '.join(each.name for each in closest_current(sku))}."
        yield layers.problem(path, rules.UNUSABLE_SKU, message, hint)
        return None
    return sku


def _environment_problems(project: Project, layers: Layers) -> Iterator[Diagnostic]:
    """Environments that are neither a reference nor rendered by the project, or that name an unknown step."""
    environment, own = layers.data["environment"], rendered_names(project, "environments", ".yaml.j2")
    steps = ["default", *step_descriptions(project)]
    if isinstance(environment, str):
        stated: dict[KeyPath, str] = {("environment",): environment}
    else:
        stated = {("environment", step): value for step, value in environment.items()}
        for step in [each for each in environment if each not in steps]:
            hint = did_you_mean(step, steps)
            yield layers.problem(("environment", step), rules.PROFILE_KEY, f"unknown step '{step}'", hint, at_key=True)
    for path, value in stated.items():
        if not is_remote(value) and value not in own:
            message = f"'{value}' is neither a reference (azureml:…) nor an environment of templates/environments/"
            yield layers.problem(path, rules.UNKNOWN_ENVIRONMENT, message, did_you_mean(value, own))


def _deepspeed_problems(layers: Layers, known: Sequence[str]) -> Iterator[Diagnostic]:
    for pipeline, settings in layers.data.get("pipelines", {}).items():
        config = settings.get("config")
        if config is not None and config not in known:
            message = f"unknown configuration '{config}': there is no templates/components/deepspeed/{config}.json.j2"
            path = ("pipelines", pipeline, "config")
            yield layers.problem(path, rules.PROFILE_VALUE, message, did_you_mean(config, known))


def _settings_file_problems(project: Project, layers: Layers) -> Iterator[Diagnostic]:
    profiled = layers.data.get("pipelines", {})
    for pipeline, accepted in accepted_settings(project).items():
        keys = profiled.get(pipeline, {})
        file = settings_file(pipeline, keys)
        if "settings" not in accepted or (project.root / file).is_file():
            continue
        path = ("pipelines", pipeline, "settings") if "settings" in keys else ()
        existing = [project.shown(each) for each in sorted((project.root / "settings").glob("*.yaml"))]
        message = f"there is no {file}, which says what pipelines/{pipeline}.yaml trains"
        yield layers.problem(path, rules.PROFILE_VALUE, message, did_you_mean(file, existing))


def _assemble(name: str, layers: Layers, settings: Mapping[str, object]) -> Profile:
    data = layers.written_data
    sku = find_sku(data["sku"]) if "sku" in data else None
    environment = data["environment"]
    spot = data.get("spot", False)
    has_gpus = sku is not None and sku.gpu_count
    processes = written(has_gpus, layers.value_spans.get(("sku",))) if has_gpus else data["processes_per_node"]
    return Profile(
        name=name,
        files=layers.files,
        settings=settings,
        processes_per_node=processes,
        spot=spot,
        tier=written("low_priority" if spot else "dedicated", layers.value_spans.get(("spot",))),
        environments={"default": environment} if isinstance(environment, str) else environment,
        pipelines=data.get("pipelines", {}),
        clusters={
            use: Cluster(each["name"], each["sku"], each.get("nodes", 1))
            for use, each in data.get("clusters", {}).items()
        },
        idle_seconds=data.get("idle_seconds", Profile.idle_seconds),
        subnet=data.get("subnet"),
        sku=sku,
        sku_name=written(sku.name, origin_of(data["sku"])) if sku is not None else None,
        **{key: data[key] for key in ("description", "cluster", "nodes", "precision", "shm_size")},
    )
