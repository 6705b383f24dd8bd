"""The workspace that a command is about: how it is found, its client, and whether it has what a pipeline needs.

Azure ML's packages are imported where they are needed, without their remarks on themselves.
"""

from __future__ import annotations

import configparser
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainyard.errors import UsageError, UserError
from trainyard.settings.quantities import counted
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Value
from trainyard.spec.model import Pipeline
from trainyard.spec.resolution import Resolution
from trainyard.spec.resolved import Known


@dataclass(frozen=True)
class Workspace:
    """An Azure ML workspace."""

    subscription: str
    resource_group: str
    name: str

    @property
    def az_arguments(self) -> str:
        """How `az ml` is told of it, in the subscription that is chosen there."""
        return f"--resource-group {self.resource_group} --workspace-name {self.name}"

    def __str__(self) -> str:
        return f"workspace '{self.name}' of resource group '{self.resource_group}'"


@dataclass(frozen=True)
class _Setting:
    """One part of a workspace's address: what it is called, where it is looked up, and how it is set for good."""

    words: str
    flag: str
    variables: tuple[str, ...]
    az_default: str
    command: str


# AZURE_DEFAULTS_… are the Azure CLI's own; AZUREML_ARM_… are what a job on Azure ML has.
_SUBSCRIPTION = _Setting(
    "subscription",
    "--subscription",
    ("AZURE_SUBSCRIPTION_ID", "AZUREML_ARM_SUBSCRIPTION"),
    "",
    "az account set --subscription NAME",
)
_RESOURCE_GROUP = _Setting(
    "resource group",
    "--resource-group",
    ("AZURE_DEFAULTS_GROUP", "AZUREML_ARM_RESOURCEGROUP"),
    "group",
    "az configure --defaults group=NAME",
)
_NAME = _Setting(
    "workspace",
    "--workspace",
    ("AZURE_DEFAULTS_WORKSPACE", "AZUREML_ARM_WORKSPACE_NAME"),
    "workspace",
    "az configure --defaults workspace=NAME",
)


def find_workspace(
    subscription: str | None = None, resource_group: str | None = None, workspace: str | None = None
) -> Workspace:
    """Return the workspace; what is not given comes from environment variables, then from `az configure`.

    Raise UsageError that names every part that is set nowhere.
    """
    given = {_SUBSCRIPTION: subscription, _RESOURCE_GROUP: resource_group, _NAME: workspace}
    found = {setting: value or _looked_up(setting) for setting, value in given.items()}
    missing = [setting for setting, value in found.items() if not value]
    if missing:
        lines = [
            f"no {setting.words} is set; give {setting.flag}, set {setting.variables[0]}, or run: {setting.command}"
            for setting in missing
        ]
        raise UsageError("\n".join(lines))
    return Workspace(found[_SUBSCRIPTION], found[_RESOURCE_GROUP], found[_NAME])


def _looked_up(setting: _Setting) -> str:
    """Return a part of the address from where it is set, or an empty text."""
    for variable in setting.variables:
        if os.environ.get(variable):
            return os.environ[variable]
    folder = Path(os.environ.get("AZURE_CONFIG_DIR") or Path.home() / ".azure")
    return _az_default(folder, setting.az_default) if setting.az_default else _az_subscription(folder)


def _az_default(folder: Path, key: str) -> str:
    """Return what `az configure --defaults` has written, or an empty text.

    With `--scope local` it writes into the working directory; az reads that, and every folder above it, before its own
    folder (knack, config.py, `_config_file_chain`).
    """
    here = Path.cwd()
    for place in (*(above / folder.name for above in (here, *here.parents)), folder):
        config = configparser.ConfigParser(interpolation=None)
        try:
            config.read(place / "config", encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            said = f"{place / 'config'} cannot be read: {error}"
            raise UsageError(f"{said}; write it again with `az configure`") from error
        if found := config.get("defaults", key, fallback=""):
            return found
    return ""


def _az_subscription(folder: Path) -> str:
    """Return the id of the subscription that `az login` or `az account set` has chosen, or an empty text."""
    file = folder / "azureProfile.json"
    try:
        profile = json.loads(file.read_text(encoding="utf-8-sig"))
        chosen = [each["id"] for each in profile["subscriptions"] if each.get("isDefault")]
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} cannot be read; write it again with `az login`") from error
    return str(chosen[0]) if chosen else ""


def azure_ml() -> Any:
    """Return the module azure.ai.ml; raise UserError where it is not installed."""
    if not sys.stderr.isatty():
        # Progress bars are for terminals; tqdm reads this as it is imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of its own dealings with marshmallow.
        try:
            import azure.ai.ml
            import azure.identity
        except ImportError as error:
            raise UserError(
                f"{error.name} is not installed; a submission needs it: pip install 'trainyard-azureml[azure]'"
            ) from error
    # It warns of every experimental class that it reads a file with, whether or not the file uses it.
    for name in ("azure.ai.ml", "azure.identity"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return azure.ai.ml


def connect(workspace: Workspace) -> Any:
    """Return the client of a workspace, with azure-identity's default credential; nothing is sent yet.

    Raise UserError without azure-ai-ml.
    """
    sdk = azure_ml()
    from azure.identity import DefaultAzureCredential

    return sdk.MLClient(
        DefaultAzureCredential(),
        workspace.subscription,
        workspace.resource_group,
        workspace.name,
        enable_telemetry=False,
        # Without it, version 1.35.2 of the client waits forever when the upload of one file fails.
        show_progress=True,
    )


_RULE = "workspace"
"""The rule that diagnostics of this package carry."""
# Not clusters: the service finds machines itself.
_SERVERLESS = frozenset({"serverless", ""})


def _cluster_uses(pipeline: Pipeline) -> dict[str, tuple[Value, int]]:
    """Return the clusters of a pipeline by name: where the YAML names each, and the most nodes that a job takes of it.

    A job whose component is kept in Azure ML counts with one node: how many it takes is not known here.
    """
    uses: dict[str, tuple[Value, int]] = {}
    for job in Resolution(pipeline).leaves.values():
        compute = job.compute
        if not isinstance(compute, Known):
            continue
        name = str(compute.value).removeprefix("azureml:")
        nodes = job.processes().nodes
        if name not in _SERVERLESS and "/" not in name and (name not in uses or nodes > uses[name][1]):
            uses[name] = compute.written, nodes
    return uses


def workspace_problems(
    client: Any,
    workspace: Workspace,
    pipeline: Pipeline | None = None,
    sizes: Mapping[str, str] = MappingProxyType({}),
) -> list[Diagnostic]:
    """Ask for the workspace and for each cluster of a pipeline; return why clusters cannot run it as it was planned.

    They may not exist, have failed, be too small, or have another VM size than `sizes` says by their names. Raise
    UserError for an unknown workspace, and what the client raises for everything else.
    """
    from azure.core.exceptions import ResourceNotFoundError

    try:
        client.workspaces.get(workspace.name)
    except ResourceNotFoundError as error:
        if getattr(error.error, "code", "") not in ("ResourceNotFound", "NotFound"):
            raise
        known = "`az ml workspace list` shows the workspaces of your subscription"
        raise UserError(f"unknown {workspace} in subscription {workspace.subscription}; {known}") from error
    return [] if pipeline is None else list(_cluster_problems(client, workspace, pipeline, sizes))


def _cluster_problems(
    client: Any, workspace: Workspace, pipeline: Pipeline, sizes: Mapping[str, str]
) -> Iterator[Diagnostic]:
    from azure.core.exceptions import ResourceNotFoundError

    for name, (written, nodes) in _cluster_uses(pipeline).items():
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
