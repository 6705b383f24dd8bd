"""Submitting a job with Azure ML's client: once, under a name that is known before anything is sent."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainyard.azure.failures import explaining_refusals, in_words
from trainyard.azure.workspace import Workspace, azure_ml, connect
from trainyard.azure.workspace_checks import workspace_problems
from trainyard.errors import UserError
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.resolution import Resolution


@dataclass(frozen=True)
class Submitted:
    """A job that Azure ML has accepted."""

    name: str
    studio_url: str


class Submission:
    """A file, and the workspace it goes to. Every method raises UserError or SpecError for what Azure refuses.

    `values` replace those of the file, by their dotted keys.
    """

    def __init__(
        self,
        file: Path,
        workspace: Workspace,
        name: str | None = None,
        values: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._file = file
        self._workspace = workspace
        self._client = connect(workspace)
        with self._explaining:
            self._job = _load(file, values)
        self._is_name_chosen = bool(name or self._job.name)
        self._job.name = name or self._job.name or _drawn_name(file)

    def problems(self, resolution: Resolution | None, sizes: Mapping[str, str]) -> list[Diagnostic]:
        """Ask Azure for everything that can be known before an upload, and return what would keep jobs from running.

        `sizes` are the VM sizes that clusters should have, by their names.
        """
        with self._explaining:
            found = workspace_problems(self._client, self._workspace, resolution, sizes)
            earlier = self._found() if self._is_name_chosen else None
        if earlier is not None:
            raise UserError(
                f"{self._workspace} already has a job '{earlier.name}': {earlier.studio_url}; "
                "nothing was submitted; give another --name, or none"
            )
        return found

    def send(self) -> Submitted:
        """Upload what the job needs and submit it.

        If the answer to the last request is lost, Azure is asked for the job by its name rather than sent another.
        """
        from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError

        try:
            return _submitted(self._client.jobs.create_or_update(self._job))
        except AzureError as error:
            reason = error
        try:
            accepted = self._found()
        except AzureError:
            accepted = None
            if isinstance(reason, (ServiceRequestError, ServiceResponseError)):
                command = f"az ml job show --name {self._job.name} {self._workspace.az_arguments}"
                raise UserError(
                    f"the connection broke before Azure confirmed job '{self._job.name}'; see whether it is there "
                    f"before you submit again: {command}"
                ) from reason
        if accepted is not None:
            return accepted
        raise in_words(reason, self._workspace, self._file) from reason

    def stream(self) -> None:
        """Print the job's logs until it has ended; raise UserError if it failed."""
        from azure.ai.ml.exceptions import JobException

        with self._explaining:
            try:
                self._client.jobs.stream(self._job.name)
            except JobException as error:
                if isinstance(error.__cause__, KeyboardInterrupt):
                    raise KeyboardInterrupt from error
                raise UserError(f"job '{self._job.name}' failed: {_reason(str(error))}") from error

    @property
    def _explaining(self) -> AbstractContextManager[None]:
        return explaining_refusals(self._workspace, self._file)

    def _found(self) -> Submitted | None:
        """Return the job of this name, if the workspace has one."""
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return _submitted(self._client.jobs.get(self._job.name))
        except ResourceNotFoundError:
            return None


def cluster_sizes(workspace: Workspace) -> dict[str, str]:
    """Ask for a workspace, once and not for long; return the VM sizes of its clusters, empty for those without.

    Raise UserError if it does not answer, and where azure-ai-ml is not installed.
    """
    client = connect(workspace, retry_total=0, connection_timeout=5, read_timeout=15)
    with explaining_refusals(workspace, None):
        workspace_problems(client, workspace)
        return {each.name: getattr(each, "size", None) or "" for each in client.compute.list()}


def _load(file: Path, values: Mapping[str, str]) -> Any:
    """Return a job as the client reads it, with values in place of the file's, as `az ml job create --set` does."""
    return azure_ml().load_job(os.fspath(file), params_override=[{key: value} for key, value in values.items()])


def bodies_of(file: Path, values: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return what a submission of a file would send, without a network: the job, and the components of its nodes.

    `values` replace those of the file, by their dotted keys.

    A node's `componentId` is the key of its component here, because the service's id comes with the upload, and the
    reference of one that is kept in Azure ML; `code` is the folder that would be uploaded.
    """
    azure_ml()
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    try:
        job = _load(file, values)
        body = to_rest_job_object(job).as_dict()
    except Exception as error:
        raise in_words(error, Workspace("", "", ""), file) from error
    nodes = getattr(job, "jobs", {})
    components = {
        name: node.component._to_rest_object().as_dict()
        for name, node in nodes.items()
        if getattr(getattr(node, "component", None), "_to_rest_object", None) is not None
    }
    for name, node in nodes.items():
        if name in components:
            body["properties"]["jobs"][name]["componentId"] = f"components.{name}"
        elif isinstance(reference := getattr(node, "component", None), str):
            body["properties"]["jobs"][name]["componentId"] = f"azureml:{reference.removeprefix('azureml:')}"
    return dict(json.loads(json.dumps({"job": body, "components": components}, default=str)))


def _submitted(job: Any) -> Submitted:
    return Submitted(str(job.name), str(job.studio_url or ""))


def _drawn_name(file: Path) -> str:
    """Return a name that no other job has: the file's, the time, and four random characters."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", file.stem).strip("-_") or "job"
    return f"{stem}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _reason(text: str) -> str:
    """Return the message in what the client raises for a failed job, which is JSON after a word."""
    found = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        error = json.loads(found.group()) if found else {}
        return str(error.get("error", error)["message"])
    except (ValueError, KeyError, AttributeError):
        return " ".join(text.split())
