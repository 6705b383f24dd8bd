"""Whether a workspace has what a pipeline needs: its clusters and quota for their machines, and what is kept there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trainyard.azure.workspace import Workspace, connect
from trainyard.errors import UserError
from trainyard.settings.quantities import counted
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Value
from trainyard.spec.model import code_of
from trainyard.spec.resolution import Resolution
from trainyard.spec.resolved import DataPath, Known

_RULE = "workspace"
"""The rule that diagnostics of this package carry."""
# Not clusters: the service finds machines itself.
_SERVERLESS = frozenset({"serverless", ""})
_MODEL_TYPES = frozenset({"mlflow_model", "custom_model", "triton_model"})
_OPERATIONS = {"environment": "environments", "component": "components", "data": "data", "model": "models"}
"""The client's operations on each kind of asset, which are also its folder in a registry's addresses."""
_REFERENCE = re.compile(
    r"azureml:(?://registries/(?P<registry>[^/]+)/(?:environments|components|data|models)/)?"
    r"(?P<name>[^:@/]+)(?P<by>:|@|/versions/|/labels/)(?P<which>[^:@/]+)"
)


class UnknownWorkspace(UserError):
    """The subscription has no workspace of this name."""


@dataclass(frozen=True)
class _Asset:
    """What a pipeline takes from a workspace, or from a registry if it names one, and where that is written."""

    kind: str
    reference: str
    span: Span

    @property
    def parts(self) -> Mapping[str, str]:
        """The registry if it names one, the name, and which version; nothing for addresses of another kind."""
        found = _REFERENCE.fullmatch(self.reference)
        return {} if found is None else {key: part for key, part in found.groupdict().items() if part}

    @property
    def which(self) -> Mapping[str, str]:
        """The version, or the label in place of it."""
        return {"version" if self.parts["by"] in (":", "/versions/") else "label": self.parts["which"]}


def workspace_problems(
    client: Any,
    workspace: Workspace,
    resolution: Resolution | None = None,
    sizes: Mapping[str, str] = MappingProxyType({}),
) -> list[Diagnostic]:
    """Ask for the workspace and for all that a pipeline takes of it; return why it cannot run as it was planned.

    Clusters may not exist, have failed, be too small, have another VM size than `sizes` says by their names, or lack
    the quota to grow; environments, data, models and components may not be there. What this login may not read is
    noted, as severity `info`. Raise UnknownWorkspace, and what the client raises for everything else.
    """
    from azure.core.exceptions import ResourceNotFoundError

    try:
        client.workspaces.get(workspace.name)
    except ResourceNotFoundError as error:
        if getattr(error.error, "code", "") not in ("ResourceNotFound", "NotFound"):
            raise
        known = "`az ml workspace list` shows the workspaces of your subscription"
        raise UnknownWorkspace(f"unknown {workspace} in subscription {workspace.subscription}; {known}") from error
    if resolution is None:
        return []
    return [*_cluster_problems(client, workspace, resolution, sizes), *_asset_problems(client, workspace, resolution)]


def _cluster_problems(
    client: Any, workspace: Workspace, resolution: Resolution, sizes: Mapping[str, str]
) -> Iterator[Diagnostic]:
    from azure.core.exceptions import ResourceNotFoundError

    for name, (written, nodes) in _cluster_uses(resolution).items():
        try:
            cluster = client.compute.get(name)
        except ResourceNotFoundError:
            known = sorted(each.name for each in client.compute.list())
            hint = (
                f"{close_match(name, known)} It has {', '.join(known) or 'none'}. To create one: "
                "az ml compute create -f compute/gpu_cluster.yaml"
            )
            yield Diagnostic(written.span, _RULE, f"{workspace} has no cluster '{name}'", hint=hint.strip())
            continue
        if cluster.provisioning_state == "Failed":
            hint = f"`az ml compute show --name {name}` says why."
            yield Diagnostic(written.span, _RULE, f"the cluster '{name}' could not be created", hint=hint)
        size, planned = getattr(cluster, "size", None), sizes.get(name)
        if size and planned and size.lower() != planned.lower():
            hint = f"A cluster keeps its size: name another one, or plan for {size}."
            yield Diagnostic(written.span, _RULE, f"'{name}' has {size}, the plan is of {planned}", hint=hint)
        most = getattr(cluster, "max_instances", None)
        if most is not None and most < nodes:
            message = f"a job takes {counted(nodes, 'node')} and would wait forever: '{name}' has at most {most}"
            hint = f"az ml compute update --name {name} --max-instances {nodes}"
            yield Diagnostic(written.span, _RULE, message, hint=hint)
        elif size and (getattr(cluster, "tier", None) or "dedicated").lower() == "dedicated":
            yield from _quota_problems(client, cluster, nodes, written.span)


def _cluster_uses(resolution: Resolution) -> dict[str, tuple[Value, int]]:
    """Return the clusters of a pipeline by name: where the YAML names each, and the most nodes that a job takes of it.

    A job whose component is kept in Azure ML counts with one node: how many it takes is not known here.
    """
    uses: dict[str, tuple[Value, int]] = {}
    for job in resolution.leaves.values():
        compute = job.compute
        if not isinstance(compute, Known):
            continue
        name = str(compute.value).removeprefix("azureml:")
        nodes = job.processes().nodes
        if name not in _SERVERLESS and "/" not in name and (name not in uses or nodes > uses[name][1]):
            uses[name] = compute.written, nodes
    return uses


def _quota_problems(client: Any, cluster: Any, nodes: int, span: Span) -> Iterator[Diagnostic]:
    """Yield each quota, of the size's family or of the region, that keeps a cluster from growing to so many nodes."""
    from azure.core.exceptions import HttpResponseError

    try:
        missing = nodes - len(list(client.compute.list_nodes(cluster.name)))
        listed = client.compute.list_sizes(location=cluster.location) if missing > 0 else ()
        size = next((each for each in listed if each.name.lower() == cluster.size.lower()), None)
        usages = list(client.compute.list_usage(location=cluster.location)) if size is not None else []
    except HttpResponseError as error:
        message = f"the quota for '{cluster.name}' was not checked: Azure answered {error.status_code}"
        yield Diagnostic(span, _RULE, message, severity="info", hint="`az ml compute list-usage` shows it.")
        return
    if size is None:
        return
    # Named as in the body by this version of the client, in Python's way by others.
    cores = missing * int(vars(size).get("vCPUs") or size.v_cp_us)
    for name, used, limit in _usages(usages):
        is_of_family = bool(size.family) and name.startswith(_letters(size.family))
        if (is_of_family or name.startswith("totalclusterdedicatedregional")) and 0 <= limit < used + cores:
            of_what = f"the family {size.family}" if is_of_family else "all dedicated machines"
            message = (
                f"'{cluster.name}' would have to start {counted(missing, 'node')} with {cores} vCPUs; the quota of "
                f"{of_what} in {cluster.location} has {max(0, limit - used)} of {limit} left"
            )
            hint = "Use fewer or other machines, or request more: Quotas in https://ml.azure.com."
            yield Diagnostic(span, _RULE, message, hint=hint)


def _usages(usages: Sequence[Any]) -> Iterator[tuple[str, int, int]]:
    """Yield each quota's name in letters and digits, the vCPUs in use and the limit, -1 where there is none.

    Attributes of the client's `Usage` are named as in its versions' bodies: `current_value` or `currentValue`.
    """
    for usage in map(vars, usages):
        used = usage.get("currentValue", usage.get("current_value"))
        limit = usage.get("limit")
        # A quota that is set for one workspace is of that one alone, and may be another.
        if isinstance(used, int) and isinstance(limit, int) and "/workspaces/" not in str(usage.get("id")):
            yield _letters((usage.get("name") or {}).get("value") or ""), used, limit


def _letters(name: str) -> str:
    """Return a name as sizes and quotas have it in common: standardNCASv3_T4Family, Standard NCASv3_T4 Family …"""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _asset_problems(client: Any, workspace: Workspace, resolution: Resolution) -> Iterator[Diagnostic]:
    """Yield each asset that is not there, at the first place that names it; note registries that do not answer."""
    from azure.core.exceptions import AzureError, ResourceNotFoundError

    found = {(each.kind, each.reference): each for each in reversed(list(_assets(resolution))) if each.parts}
    clients = {"": client}
    for asset in reversed(found.values()):
        registry = asset.parts.get("registry", "")
        try:
            if registry not in clients:
                clients[registry] = connect(registry)
            is_there = _has(clients[registry], asset)
        except AzureError as error:
            if not registry:
                raise
            if isinstance(error, ResourceNotFoundError):
                yield Diagnostic(asset.span, _RULE, f"there is no registry '{registry}'", hint="Check its name.")
            else:
                reason = f"Azure answered {getattr(error, 'status_code', None) or 'nothing'}"
                message = f"the registry '{registry}' was not asked for this {asset.kind}: {reason}"
                yield Diagnostic(asset.span, _RULE, message, severity="info")
            continue
        if is_there:
            continue
        name, version = asset.parts["name"], asset.which.get("version")
        place = f"the registry '{registry}'" if registry else str(workspace)
        where = f"--registry-name {registry}" if registry else workspace.az_arguments
        message = f"{place} has no {asset.kind} '{name}{f':{version}' if version else ''}'"
        hint = f"`az ml {asset.kind} list --name {name} {where}` shows its versions."
        yield Diagnostic(asset.span, _RULE, message, hint=hint)


def _has(client: Any, asset: _Asset) -> bool:
    from azure.ai.ml.exceptions import ValidationErrorType, ValidationException
    from azure.core.exceptions import ResourceNotFoundError

    operations = getattr(client, _OPERATIONS[asset.kind])
    try:
        operations.get(asset.parts["name"], **asset.which)
    except ResourceNotFoundError:
        return False
    except ValidationException as error:  # what the client makes of a label without versions
        return bool(error.error_type != ValidationErrorType.RESOURCE_NOT_FOUND)
    return True


def _assets(resolution: Resolution) -> Iterator[_Asset]:
    """Yield what the jobs of a pipeline take from a workspace or a registry, job by job."""
    for job in resolution.leaves.values():
        written = job.job.node.get("component")
        if job.job.reference and written is not None:
            yield _Asset("component", job.job.reference, written.span)
        code = code_of(job.job.component)
        environment = code.environment if code is not None else None
        if environment is not None and environment.reference:
            yield _Asset("environment", environment.reference, environment.span)
        for given in job.inputs.values():
            if isinstance(given, Known) and isinstance(given.value, DataPath):
                kind = "model" if given.value.type in _MODEL_TYPES else "data"
                yield _Asset(kind, given.value.text, given.written.span)
