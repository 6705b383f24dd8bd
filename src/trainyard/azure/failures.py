"""What Azure refused, in one message with what to do about it, at its place in the YAML where the answer tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.azure.workspace import Workspace
from trainyard.errors import UserError
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import Node
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.spec.model import Component

_STORAGE_HOSTS = (".blob.core.windows.net", ".dfs.core.windows.net")
_HINTS_BY_STATUS = {
    401: "sign in again with `az login`, in the tenant of the subscription (`az login --tenant TENANT`)",
    403: "ask for the role 'AzureML Data Scientist' on {workspace}",
    404: "check the name",
    409: "wait until the other operation has ended, then submit again",
    429: "Azure limits requests; wait a few minutes, then submit again",
}
_HINTS_BY_CODE = {
    "SubscriptionNotFound": "`az account list` shows your subscriptions",
    "InvalidSubscriptionId": "`az account list` shows your subscriptions",
    "ResourceGroupNotFound": "`az group list` shows the resource groups of the subscription",
}
_QUOTA_HINT = "`az ml compute list-usage` shows your quota; use fewer or other machines, or request more in the portal"
_SERVER_HINT = "this is a fault of the service, not of your files; submit again in a few minutes"
_REQUEST_HINT = "correct what it names, then submit again"
_NETWORK_HINT = "check the network, a proxy (HTTPS_PROXY) and the firewall"
_STORAGE_HINT = "ask for the role 'Storage Blob Data Contributor', and let its firewall in"
# How urllib3 and the operating system name a connection that was not made.
_NO_CONNECTION = re.compile(
    r"Unable to connect to proxy|Failed to establish a new connection[^'\")]*|Failed to resolve[^'\")]*|"
    r"Connection refused|Connection reset by peer|Name or service not known|timed out"
)
# The client knows the types of a component's outputs only where it has the component's file.
_CLIENT_HINTS = {
    "Failed to find referenced source for input binding": "; give the input a type: {type: uri_folder, path: …}",
}
_CLIENT_NOISE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class ServiceError:
    """One error of an answer: the service's code and message, and the part of the request it is about, if it says."""

    code: str
    message: str
    target: str = ""


@contextmanager
def explaining_refusals(workspace: Workspace, file: Path | None) -> Iterator[None]:
    """Raise what Azure's client raises in the block in words for users."""
    from azure.core.exceptions import AzureError

    try:
        yield
    except (AzureError, json.JSONDecodeError) as error:
        raise in_words(error, workspace, file) from error


def in_words(error: Exception, workspace: Workspace, file: Path | None) -> UserError | SpecError:
    """Return what a failed call means to the user, who submits `file` if there is one.

    SpecError where the answer names something in the file; else UserError. An error that is not of Azure's
    client is a bug, and is raised as it is.
    """
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        HttpResponseError,
        ServiceRequestError,
        ServiceResponseError,
    )

    if isinstance(error, json.JSONDecodeError):
        return UserError(f"no answer from Azure: what came instead is not JSON; {_NETWORK_HINT}")
    if not isinstance(error, AzureError):
        raise error
    is_network = isinstance(error, (ServiceRequestError, ServiceResponseError))
    has_answer = isinstance(error, HttpResponseError) and error.status_code is not None
    reason = _NO_CONNECTION.search(str(error))
    if is_network or (reason and not has_answer):
        said = reason.group() if reason else _client_message(error).partition("\n")[0]
        return UserError(f"no answer from Azure: {said}; {_NETWORK_HINT}")
    if isinstance(error, ClientAuthenticationError) and not has_answer:
        return UserError(_not_signed_in(error))
    if has_answer:
        return _refused(error, workspace, file)
    message = _client_message(error)
    hint = next((hint for beginning, hint in _CLIENT_HINTS.items() if message.startswith(beginning)), "")
    return UserError(f"the client refuses {file or workspace}: {message}{hint}")


def _not_signed_in(error: Exception) -> str:
    """Return what to do without a usable credential; azure-identity lists every kind that it tried."""
    tried = re.findall(r"^\s*(\w+Credential: [^\n]*(?:AADSTS|expired|failed)[^\n]*)", str(error), re.MULTILINE)
    reasons = f" ({'; '.join(tried)})" if tried else ""
    advice = "run `az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
    return f"not signed in to Azure: no credential was found{reasons}; {advice}"


def _refused(error: Any, workspace: Workspace, file: Path | None) -> UserError | SpecError:
    status = int(error.status_code or 0)
    if _host(error).endswith(_STORAGE_HOSTS):
        code = error.response.headers.get("x-ms-error-code") or error.reason
        return UserError(f"the upload to {_host(error)} was refused: {status} {code}; {_STORAGE_HINT}")
    errors = list(_errors_of(error))
    root = DocumentStore().read(_file_sent(error, file)).root if file is not None else None
    for each in errors:
        place = _place_of(each, root) if root is not None else None
        if place is not None and status in (400, 404, 409, 422):
            hint = _hint(status, errors, workspace)
            return SpecError(Diagnostic(place.span, each.code, each.message, hint=f"{hint[0].upper()}{hint[1:]}."))
    said = errors[-1].message if errors else _client_message(error).partition("\n")[0]
    code = f"{status} {errors[-1].code}" if errors else str(status)
    request = error.response.headers.get("x-ms-request-id", "") if error.response is not None else ""
    suffix = f" (request {request})" if status >= 500 and request else ""
    return UserError(f"Azure answered {code}: {said.rstrip('.')}{suffix}; {_hint(status, errors, workspace)}")


def _host(error: Any) -> str:
    return urlsplit(error.response.request.url).hostname or "" if error.response is not None else ""


def _file_sent(error: Any, file: Path) -> Path:
    """Return the file that the refused request was made of: a component's own, else the submitted one."""
    request = error.response.request if error.response is not None else None
    if request is None or "/components/" not in request.url:
        return file.resolve()
    try:
        sent = json.loads(request.content)["properties"]["componentSpec"]["command"].split()
    except (AttributeError, KeyError, TypeError, ValueError):
        return file.resolve()
    components = [job.component for job in load_job(file, strict=True, on_azure=True).jobs.values()]
    files = [each.file for each in components if isinstance(each, Component) and each.command.data.split() == sent]
    return files[0] if files else file.resolve()


def _hint(status: int, errors: list[ServiceError], workspace: Workspace) -> str:
    if any("quota" in f"{each.code} {each.message}".lower() for each in errors):
        return _QUOTA_HINT
    for each in errors:
        if each.code in _HINTS_BY_CODE:
            return _HINTS_BY_CODE[each.code]
    if status >= 500:
        return _SERVER_HINT
    return _HINTS_BY_STATUS.get(status, _REQUEST_HINT).format(workspace=workspace)


def _errors_of(error: Any) -> Iterator[ServiceError]:
    """Yield the errors of an answer, the outermost first, each followed by its details.

    The form is that of Azure's resource manager: {"error": {"code", "message", "target", "details": […]}}.
    """
    try:
        body = json.loads(error.response.text())
    except (AttributeError, ValueError):
        return
    yield from _flattened(body.get("error", body) if isinstance(body, dict) else None)


def _flattened(error: Any) -> Iterator[ServiceError]:
    if not isinstance(error, dict) or not error.get("message"):
        return
    message = " ".join(str(error["message"]).split())
    yield ServiceError(str(error.get("code") or "Error"), message, str(error.get("target") or ""))
    for detail in error.get("details") or ():
        yield from _flattened(detail)


def _place_of(error: ServiceError, root: Node) -> Node | None:
    """Return the value in a file that an error of the service is about; None if it names none.

    A target is a path into the request (`properties.jobs.train.computeId`); a message quotes names.
    """
    words = [_as_in_yaml(word) for word in re.split(r"[\s.\[\]'\"/]+", error.target) if word]
    while words and words[0] in ("$", "properties", "body"):
        words = words[1:]
    found, node = None, root
    for word in words:
        following = node.get(word)
        if following is None:
            break
        found = node = following
    return found or _named_in(error.message, root)


def _as_in_yaml(word: str) -> str:
    """Return a key of a request as it is spelt in YAML: computeId is compute, defaultCompute is default_compute."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", word).lower().removesuffix("_id") if word != "Id" else word


def _named_in(message: str, root: Node) -> Node | None:
    """Return the job, the input or the output that a message quotes, or the compute whose name it quotes."""
    names = re.findall(r"['\"`‘“]([\w.-]+)['\"`’”]", message)
    default_compute = root.find("settings", "default_compute")
    for name in names:
        if default_compute is not None and default_compute.text.removeprefix("azureml:") == name:
            return default_compute
        for section in ("jobs", "inputs", "outputs"):
            if name in root.entries_of(section):
                return root.entries_of(section)[name].key
    return None


def _client_message(error: Exception) -> str:
    """Return what the client says of a file, without colours and on one line for each sentence."""
    lines = [line.strip() for line in _CLIENT_NOISE.sub("", str(error)).split("\n")]
    return "\n".join(filter(None, lines))
