"""TensorFlow's cluster and this process's place in it, read from TF_CONFIG.

Azure ML sets it for a job with `distribution: type: tensorflow`: workers, and parameter servers if there are some.
Other launchers name the first worker `chief`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.steps.runtime.errors import SetupError

TF_CONFIG = "TF_CONFIG"
_ADDRESS = re.compile(r".+:(\d{1,5})")
_HIGHEST_PORT = 65535
_OTHER_LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class ClusterPlace:
    """The addresses of all tasks, `host:port`, and which of them this process is. Worker 0 is the chief."""

    workers: tuple[str, ...] = ("127.0.0.1:0",)
    parameter_servers: tuple[str, ...] = ()
    index: int = 0
    is_parameter_server: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """All addresses: workers first, as Azure ML counts them."""
        return self.workers + self.parameter_servers

    @property
    def number(self) -> int:
        """This process's place among all tasks."""
        return len(self.workers) + self.index if self.is_parameter_server else self.index

    def name_of(self, number: int) -> str:
        """Return what a task is called in messages."""
        workers = len(self.workers)
        name = f"worker {number}" if number < workers else f"parameter server {number - workers}"
        return f"{name} ({self.tasks[number]})"


def read_cluster(environment: Mapping[str, str]) -> ClusterPlace:
    """Return the cluster that TF_CONFIG describes; without it, this process is alone.

    SetupError if it is not what TensorFlow reads, or if another launcher has started several processes.
    """
    text = environment.get(TF_CONFIG)
    _refuse_other_launchers(environment, has_config=bool(text))
    if not text:
        return ClusterPlace()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise SetupError(f"{TF_CONFIG} is not valid JSON: {failure}") from None
    cluster, task = _part(document, "cluster"), _part(document, "task")
    if unknown := sorted(cluster.keys() - {"chief", "worker", "ps"}):
        raise SetupError(f"{TF_CONFIG}: the cluster has tasks of type {unknown[0]!r}; expected worker, ps or chief")
    chief, workers, servers = (_addresses(cluster, name) for name in ("chief", "worker", "ps"))
    if not chief + workers:
        raise SetupError(f"{TF_CONFIG}: the cluster has no worker")
    if len(chief) > 1:
        raise SetupError(f"{TF_CONFIG}: the cluster has {len(chief)} chiefs; expected one")
    found = chief + workers + servers
    if len(set(found)) < len(found):
        twice = next(address for address in found if found.count(address) > 1)
        raise SetupError(f"{TF_CONFIG}: two tasks of the cluster have the address {twice}")
    kind, index = task.get("type"), task.get("index")
    tasks_of_type = {"chief": chief, "worker": workers, "ps": servers}
    if kind not in tasks_of_type or not tasks_of_type[kind]:
        present = " or ".join(name for name, addresses in tasks_of_type.items() if addresses)
        raise SetupError(f"{TF_CONFIG}: task.type is {kind!r}; expected {present}, which the cluster has")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(tasks_of_type[kind]):
        largest = len(tasks_of_type[kind]) - 1
        raise SetupError(
            f"{TF_CONFIG}: task.index is {index!r}; expected 0 to {largest}, since the cluster has "
            f"{largest + 1} of type {kind}"
        )
    place = index + len(chief) if kind == "worker" else index
    return ClusterPlace(chief + workers, servers, place, is_parameter_server=kind == "ps")


def _refuse_other_launchers(environment: Mapping[str, str], *, has_config: bool) -> None:
    for name in _OTHER_LAUNCHERS:
        if environment.get(name, "1") not in ("", "1"):
            what = f"{name}={environment[name]} is set by another launcher"
            if has_config:
                raise SetupError(f"{what}, and {TF_CONFIG} too; start the processes with one launcher only")
            raise SetupError(
                f"{what}, and TensorFlow reads only {TF_CONFIG}; start it with `distribution: type: tensorflow`"
            )


def _part(document: Any, name: str) -> dict[str, Any]:
    part = document.get(name) if isinstance(document, dict) else None
    if not isinstance(part, dict):
        raise SetupError(f'{TF_CONFIG} has no object "{name}"; expected {{"cluster": {{…}}, "task": {{…}}}}')
    return part


def _addresses(cluster: Mapping[str, Any], name: str) -> tuple[str, ...]:
    addresses = cluster.get(name, [])
    if not isinstance(addresses, list):
        raise SetupError(f"{TF_CONFIG}: cluster.{name} is {addresses!r}; expected a list of addresses")
    for address in addresses:
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if found is None or int(found[1]) > _HIGHEST_PORT:
            raise SetupError(
                f"{TF_CONFIG}: cluster.{name} has the address {address!r}; expected host:port, with a port of at most "
                f"{_HIGHEST_PORT}"
            )
    return tuple(addresses)
