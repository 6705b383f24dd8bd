"""What a workspace must have before anything is uploaded: itself, and the clusters that a pipeline names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.azure.workspace import Workspace
from trainyard.errors import UserError
from trainyard.settings.quantities import counted
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import Value
from trainyard.spec.model import Pipeline
from trainyard.spec.resolution import Resolution
from trainyard.spec.resolved import Known

_RULE = "workspace"
"""The rule that diagnostics of this package carry."""
# Not clusters: the service finds machines itself.
_SERVERLESS = frozenset({"serverless", ""})


@dataclass(frozen=True)
class ClusterUse:
    """A cluster by the name that the YAML says, where it says so, and the most nodes that a job takes of it."""

    name: str
    written: Value
    nodes: int


def cluster_uses(pipeline: Pipeline) -> list[ClusterUse]:
    """Return the clusters that the jobs of a pipeline run on, each once, with the largest number of nodes.

    A job whose component is kept in Azure ML counts with one node: how many it takes is not known here.
    """
    uses: dict[str, ClusterUse] = {}
    for job in Resolution(pipeline).leaves.values():
        compute = job.compute
        if not isinstance(compute, Known):
            continue
        name = str(compute.value).removeprefix("azureml:")
        nodes = job.processes().nodes
        if name not in _SERVERLESS and "/" not in name and (name not in uses or nodes > uses[name].nodes):
            uses[name] = ClusterUse(name, compute.written, nodes)
    return list(uses.values())


def check_workspace(client: Any, workspace: Workspace, pipeline: Pipeline | None) -> None:
    """Ask for the workspace and for each cluster of a pipeline.

    Raise UserError for an unknown workspace, SpecError for clusters that do not exist or are too small, and what the
    client raises for everything else.
    """
    from azure.core.exceptions import ResourceNotFoundError

    try:
        client.workspaces.get(workspace.name)
    except ResourceNotFoundError as error:
        if getattr(error.error, "code", "") not in ("ResourceNotFound", "NotFound"):
            raise
        known = "`az ml workspace list` shows the workspaces of your subscription"
        raise UserError(f"unknown {workspace} in subscription {workspace.subscription}; {known}") from error
    problems = [] if pipeline is None else list(_cluster_problems(client, workspace, pipeline))
    if problems:
        raise SpecError(problems)


def _cluster_problems(client: Any, workspace: Workspace, pipeline: Pipeline) -> Iterator[Diagnostic]:
    from azure.core.exceptions import ResourceNotFoundError

    for use in cluster_uses(pipeline):
        try:
            cluster = client.compute.get(use.name)
        except ResourceNotFoundError:
            known = sorted(each.name for each in client.compute.list())
            hint = (
                f"{close_match(use.name, known)} It has {', '.join(known) or 'none'}. To create one: "
                "az ml compute create -f compute/gpu_cluster.yaml"
            )
            message = f"{workspace} has no cluster '{use.name}'"
            yield Diagnostic(use.written.span, _RULE, message, hint=hint.strip())
            continue
        most = getattr(cluster, "max_instances", None)
        if most is not None and most < use.nodes:
            message = (
                f"a job takes {counted(use.nodes, 'node')} and would wait forever: '{use.name}' has at most {most}"
            )
            hint = f"az ml compute update --name {use.name} --max-instances {use.nodes}"
            yield Diagnostic(use.written.span, _RULE, message, hint=hint)
