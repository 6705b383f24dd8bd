"""The workspace that a command is about: how it is found, and its client.

Azure ML's packages are imported where they are needed, without their remarks on themselves.
"""

from __future__ import annotations

import configparser
import json
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.errors import UsageError, UserError


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


class _Setting(NamedTuple):
    """One part of a workspace's address: what it is called, the variables that may have it, and its name in `az`."""

    words: str
    variables: tuple[str, ...]
    az_default: str = ""


# AZURE_DEFAULTS_… are the Azure CLI's own; AZUREML_ARM_… are what a job on Azure ML has.
_SUBSCRIPTION = _Setting("subscription", ("AZURE_SUBSCRIPTION_ID", "AZUREML_ARM_SUBSCRIPTION"))
_RESOURCE_GROUP = _Setting("resource group", ("AZURE_DEFAULTS_GROUP", "AZUREML_ARM_RESOURCEGROUP"), "group")
_NAME = _Setting("workspace", ("AZURE_DEFAULTS_WORKSPACE", "AZUREML_ARM_WORKSPACE_NAME"), "workspace")
# Of an application or a workload, and of a machine's identity; azure-identity reads them.
_CREDENTIALS = ("AZURE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT")


def find_workspace(
    subscription: str | None = None, resource_group: str | None = None, workspace: str | None = None
) -> Workspace:
    """Return the workspace; what is not given comes from environment variables, then from `az configure`.

    Raise UsageError that names every part that is set nowhere.
    """
    given = {_SUBSCRIPTION: subscription, _RESOURCE_GROUP: resource_group, _NAME: workspace}
    found = {setting: value or _looked_up(setting) for setting, value in given.items()}
    missing = []
    for words, variables, default in (setting for setting, value in found.items() if not value):
        command = f"configure --defaults {default}=NAME" if default else "account set --subscription NAME"
        flag = words.replace(" ", "-")
        missing.append(f"no {words} is set; give --{flag}, set {variables[0]}, or run: az {command}")
    if missing:
        raise UsageError("\n".join(missing))
    return Workspace(found[_SUBSCRIPTION], found[_RESOURCE_GROUP], found[_NAME])


def is_signed_in() -> bool:
    """Return whether variables, or what `az login` has written, hold a credential; Azure is not asked."""
    return any(map(os.environ.get, _CREDENTIALS)) or bool(_az_subscription())


def _looked_up(setting: _Setting) -> str:
    for variable in setting.variables:
        if os.environ.get(variable):
            return os.environ[variable]
    return _az_default(setting.az_default) if setting.az_default else _az_subscription()


def _az_folder() -> Path:
    return Path(os.environ.get("AZURE_CONFIG_DIR") or Path.home() / ".azure")


def _az_default(key: str) -> str:
    """Return what `az configure --defaults` has written, or an empty string.

    With `--scope local` it writes into the working directory; az reads that, and every folder above it, before its own
    folder (knack, config.py, `_config_file_chain`).
    """
    here, folder = Path.cwd(), _az_folder()
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


def _az_subscription() -> str:
    """Return the id of the subscription that `az login` or `az account set` has chosen, or an empty string."""
    file = _az_folder() / "azureProfile.json"
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
            raise UserError(f"{error.name} is not installed: pip install 'trainyard-azureml[azure]'") from error
    # It warns of every experimental class that it reads a file with, whether or not the file uses it.
    for name in ("azure.ai.ml", "azure.identity"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return azure.ai.ml


def connect(place: Workspace | str, **policies: float) -> Any:
    """Return the client of a workspace, or of a registry by its name; only for the latter Azure is asked.

    `policies` are those of azure-core for each request, such as `retry_total`. Raise UserError without azure-ai-ml.
    """
    sdk = azure_ml()
    from azure.identity import DefaultAzureCredential

    names = {"registry_name": place}
    if isinstance(place, Workspace):
        names = {"subscription_id": place.subscription, "resource_group_name": place.resource_group}
        names["workspace_name"] = place.name
    # Without progress, version 1.35.2 of the client waits forever when the upload of one file fails.
    return sdk.MLClient(
        DefaultAzureCredential(**policies), enable_telemetry=False, show_progress=True, **names, **policies
    )
