"""A stand-in for Azure on loopback: the client connects to the real host names through it, and every request is kept.

It is an HTTPS proxy that answers by itself. A process with `LoopbackAzure.variables` in its environment runs
unchanged: its client asks the proxy for management.azure.com, *.blob.core.windows.net and so on, and is answered here
over TLS, with a certificate that REQUESTS_CA_BUNDLE makes it trust. A host that is not Azure's is refused, so nothing
leaves the machine.

What it shows is what the client sends. What the service accepts, it cannot show.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
GROUP, WORKSPACE, TENANT = "group", "workspace", "00000000-0000-0000-0000-00000000000a"
WORKSPACE_PATH = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.MachineLearningServices/"
    f"workspaces/{WORKSPACE}"
)
HOSTS = (
    "management.azure.com", "login.microsoftonline.com", "ml.azure.com", "*.blob.core.windows.net",
    "*.api.azureml.ms", "*.experiments.azureml.net",
)  # fmt: skip
_ASSET = re.compile(r"(environments|data|models|components)/[^/]+(/versions/[^/]+)?$")
_SIZES = [
    {"name": "Standard_NC64as_T4_v3", "family": "standardNCASv3_T4Family", "vCPUs": 64},
    {"name": "Standard_D8s_v5", "family": "standardDSv5Family", "vCPUs": 8},
]
_STORAGE = "https://storage.blob.core.windows.net"


@dataclass(frozen=True)
class Request:
    """One request, as it arrived."""

    method: str
    host: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} https://{self.host}{self.path}"

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Answer:
    """A status with a body: an object becomes JSON. `cut` closes the connection instead; the delay comes first."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    delay_seconds: float = 0


@dataclass
class Fault:
    """An answer that is given instead of the usual one, to requests that match, so many times.

    With `after`, the usual work is done first, and only its answer is replaced.
    """

    method: str
    path: str
    answer: Answer
    times: int = 1_000_000
    after: bool = False

    def matches(self, request: Request) -> bool:
        return self.times > 0 and request.method == self.method and re.search(self.path, request.path) is not None


def error_body(code: str, message: str, **more: Any) -> dict[str, Any]:
    """An error as Azure's resource manager states it."""
    return {"error": {"code": code, "message": message, **more}}


class LoopbackAzure:
    """One workspace with its clusters and its storage; see the module."""

    def __init__(self, folder: Path, clusters: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.blobs: dict[str, bytes] = {}
        self.blob_metadata: dict[str, dict[str, str]] = {}
        self.resources: dict[str, Any] = {}
        # None: a cluster of every name. One without `vmSize` says nothing of its size.
        self.clusters = clusters
        # None: every environment, data, model and component. Else those like `environments/torch/versions/3`.
        self.assets: set[str] | None = None
        # Likewise of registries, each with its name before: `azureml/environments/torch/versions/3`; None: all.
        self.registry_assets: set[str] | None = None
        # vCPUs in use and the limit, by the quota's name.
        self.quotas: dict[str, tuple[int, int]] = {}
        self.job_status = "Completed"
        self.logs = "train_ddp has started\n"
        self._lock = threading.Lock()
        self._authority, certificate = _certificates(folder)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        service = self

        class Handler(_Handler):
            azure = service
            context = service._context

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> LoopbackAzure:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which a process finds this Azure, its workspace and a credential."""
        return {
            "HTTPS_PROXY": f"http://127.0.0.1:{self._server.server_port}",
            "https_proxy": f"http://127.0.0.1:{self._server.server_port}",
            "NO_PROXY": "",
            "no_proxy": "",
            "REQUESTS_CA_BUNDLE": str(self._authority),
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": "client",
            "AZURE_CLIENT_SECRET": "secret",
            "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
            "AZURE_DEFAULTS_GROUP": GROUP,
            "AZURE_DEFAULTS_WORKSPACE": WORKSPACE,
        }

    def sent(self, method: str, path: str) -> list[Request]:
        """The requests of a method whose path matches, in the order of arrival."""
        return [each for each in self.requests if each.method == method and re.search(path, each.path)]

    def files_below(self, address: str) -> dict[str, bytes]:
        """The uploaded bytes below an address of the storage, by each file's path from there."""
        folder = urlsplit(address).path.rstrip("/") + "/"
        return {name.removeprefix(folder): body for name, body in self.blobs.items() if name.startswith(folder)}

    def answer(self, request: Request) -> Answer:
        """Answer a request, as a fault says where one matches."""
        with self._lock:
            self.requests.append(request)
            fault = next((each for each in self.faults if each.matches(request)), None)
            if fault is not None:
                fault.times -= 1
        if fault is not None and not fault.after:
            return fault.answer
        with self._lock:
            usual = self._usual_answer(request)
        return usual if fault is None else fault.answer

    def _usual_answer(self, request: Request) -> Answer:
        if request.host == "login.microsoftonline.com":
            return _sign_in(request)
        if request.host.endswith(".blob.core.windows.net"):
            return self._storage(request)
        if request.host.endswith(".api.azureml.ms"):
            return self._run_history(request)
        if request.host.endswith(".experiments.azureml.net"):
            return self._registry(request.path.rpartition("/registries/")[2])
        if f"/subscriptions/{SUBSCRIPTION}/providers/" in request.path:
            return self._location(request.path.rpartition("/")[2])
        prefix, separator, rest = request.path.partition(WORKSPACE_PATH)
        if request.host != "management.azure.com" or prefix or not separator:
            return Answer(404, error_body("ResourceNotFound", f"The resource {request.path} was not found."))
        return self._resource_manager(request, rest.strip("/"))

    def _resource_manager(self, request: Request, rest: str) -> Answer:
        kind = rest.partition("/")[0]
        if rest == "":
            return Answer(body=_workspace())
        if rest == "computes":
            names = sorted(self.clusters or {})
            return Answer(body={"value": [self._cluster(name).body for name in names]})
        if rest.endswith("/listNodes"):
            nodes = (self.clusters or {}).get(rest.split("/")[1], {}).get("nodes", 0)
            return Answer(body={"nodes": [{"nodeId": f"node-{number}"} for number in range(nodes)]})
        if kind == "computes" and request.method == "GET":
            return self._cluster(rest.partition("/")[2])
        if kind == "datastores":
            return _datastore(rest)
        if rest.endswith("/startPendingUpload"):
            container = re.sub(r"\W+", "-", rest.removesuffix("/startPendingUpload"))
            return Answer(body=_pending_upload(container))
        if request.method == "PUT":
            return self._put(request, rest)
        if rest in self.resources:
            return Answer(body=self.resources[rest])
        if rest.endswith("/versions") and kind != "codes":
            name = rest.removesuffix("/versions")
            is_known = self.assets is None or name in self.assets
            return Answer(body={"value": [_asset(f"{name}/versions/1")] if is_known else []})
        if rest.endswith("/versions"):
            return Answer(body={"value": self._same_code(request)})
        if request.method == "GET" and _ASSET.match(rest) and (self.assets is None or rest in self.assets):
            return Answer(body=_asset(rest))
        return Answer(404, error_body("ResourceNotFound", f"{rest} was not found in workspace {WORKSPACE}."))

    def _registry(self, rest: str) -> Answer:
        """An asset of a registry, by the registry's name and the path in it."""
        if self.registry_assets is None or rest in self.registry_assets:
            return Answer(body=_asset(rest.partition("/")[2]))
        return Answer(404, error_body("UserError", f"{rest} was not found."))

    def _location(self, what: str) -> Answer:
        """The quotas of a region, or the sizes of its machines."""
        if what == "usages":
            limits = [
                {"id": name, "currentValue": used, "limit": limit, "name": {"value": name, "localizedValue": name}}
                for name, (used, limit) in self.quotas.items()
            ]
            return Answer(body={"value": limits})
        return Answer(body={"value": _SIZES})

    def _same_code(self, request: Request) -> list[Any]:
        """What the service knows of a snapshot with the hash that the client asks for: nothing is uploaded twice."""
        asked = parse_qs(request.query).get("hash", [""])[0]
        codes = [each for name, each in self.resources.items() if name.startswith("codes/")]
        return [each for each in codes if each["properties"]["properties"]["hash_sha256"] == asked]

    def _put(self, request: Request, rest: str) -> Answer:
        properties = dict(request.json["properties"])
        if rest.startswith("jobs/"):
            link = f"https://ml.azure.com/runs/{rest.removeprefix('jobs/')}?wsid={WORKSPACE_PATH}"
            tracking = "azureml://eastus.api.azureml.ms/mlflow/v1.0"
            services = {
                "Studio": {"jobServiceType": "Studio", "endpoint": link},
                "Tracking": {"jobServiceType": "Tracking", "endpoint": tracking},
            }
            properties |= {"status": "Preparing", "services": services}
        self.resources[rest] = _resource(rest, properties)
        return Answer(201, self.resources[rest])

    def _cluster(self, name: str) -> Answer:
        if self.clusters is not None and name not in self.clusters:
            return Answer(404, error_body("ResourceNotFound", f"The compute {name} was not found."))
        settings = (self.clusters or {}).get(name, {})
        scale = {"minNodeCount": 0, "maxNodeCount": 8, **settings.get("scaleSettings", {})}
        properties = {
            "computeType": "AmlCompute",
            "provisioningState": settings.get("provisioningState", "Succeeded"),
            "properties": {"vmSize": settings.get("vmSize"), "scaleSettings": scale},
        }
        return Answer(body=_resource(f"computes/{name}", properties) | {"location": "eastus"})

    def _storage(self, request: Request) -> Answer:
        name = unquote(request.path)
        if request.method == "HEAD":
            if name not in self.blobs:
                return Answer(404, headers={"x-ms-error-code": "BlobNotFound"})
            return Answer(headers={f"x-ms-meta-{key}": value for key, value in self.blob_metadata[name].items()})
        if request.method == "PUT" and "comp=metadata" in request.query:
            found = {key[10:]: value for key, value in request.headers.items() if key.startswith("x-ms-meta-")}
            self.blob_metadata[name] = found
            return Answer()
        if request.method == "PUT":
            self.blobs[name], self.blob_metadata[name] = request.body, {}
            return Answer(201)
        if request.method == "GET" and name.startswith("/logs/"):
            return Answer(body=self.logs.encode(), headers={"Content-Type": "text/plain"})
        return Answer(400)

    def _run_history(self, request: Request) -> Answer:
        if request.path.endswith("/discovery"):
            if "/registries/" in request.path:
                return Answer(body=_registry_discovery(request.path.split("/")[-2]))
            return Answer(body={"history": "https://eastus.api.azureml.ms", "api": "https://eastus.api.azureml.ms"})
        name = request.path.rsplit("/", 2)[-2] if request.path.endswith("/details") else ""
        is_first = len([each for each in self.requests if each.path == request.path]) == 1
        return Answer(
            body={
                "runId": name,
                "status": "Running" if is_first else self.job_status,
                "logFiles": {"logs/azureml/executionlogs.txt": f"{_STORAGE}/logs/executionlogs.txt?sig=x"},
                "error": {"error": {"code": "UserError", "message": "AssertionError: accuracy 0.5 is below 0.9"}}
                if self.job_status == "Failed"
                else None,
            }
        )


class _Handler(BaseHTTPRequestHandler):
    """Takes CONNECT, speaks TLS from then on, and hands every request on."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits until its headers are acknowledged
    azure: LoopbackAzure
    context: ssl.SSLContext
    host = ""

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0]
        if not any(host == known or (known[0] == "*" and host.endswith(known[1:])) for known in HOSTS):
            self.send_error(403, f"{host} is not one of Azure's")
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.host = host
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", self.rbufsize)
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ssl.SSLError):
            self.close_connection = True  # the client went away
        finally:
            if self.host:
                self.connection.close()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        answer = self.azure.answer(Request(self.command, self.host, parts.path, parts.query, headers, body))
        time.sleep(answer.delay_seconds)
        if answer.cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        if answer.body is None or self.command == "HEAD":
            content = b""
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_PATCH = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def _sign_in(request: Request) -> Answer:
    base = f"https://login.microsoftonline.com/{TENANT}"
    if request.path.endswith("/openid-configuration"):
        endpoints = {
            "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
            "token_endpoint": f"{base}/oauth2/v2.0/token",
        }
        return Answer(body={**endpoints, "issuer": f"{base}/v2.0"})
    claims = base64.urlsafe_b64encode(json.dumps({"aud": "https://ml.azure.com", "tid": TENANT}).encode()).decode()
    token = f"e30.{claims.rstrip('=')}."
    return Answer(body={"token_type": "Bearer", "expires_in": 3600, "access_token": token})


def _resource(rest: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"{WORKSPACE_PATH}/{rest}", "name": rest.rpartition("/")[2], "properties": dict(properties)}


def _asset(path: str) -> dict[str, Any]:
    """An asset of a workspace or a registry, or what holds its versions, as the client reads it."""
    kind, name = path.split("/")[:2]
    command = {"type": "command", "name": name, "version": "1", "command": "echo", "inputs": {}, "outputs": {}}
    properties = {
        "environments": {"image": "python:3.11"},
        "data": {"dataType": "uri_folder", "dataUri": "azureml://datastores/workspaceblobstore/paths/x"},
        "models": {
            "modelType": "custom_model",
            "modelUri": "azureml://datastores/workspaceblobstore/paths/x",
            "flavors": {},
        },
        "components": {"componentSpec": command},
    }[kind]
    return _resource(path, {**properties, "latestVersion": "1"})


def _registry_discovery(name: str) -> dict[str, Any]:
    return {
        "registryName": name,
        "primaryRegionResourceProviderUri": "https://cert-eastus.experiments.azureml.net/",
        "resourceGroup": "registry-group",
        "subscriptionId": SUBSCRIPTION,
    }


def _workspace() -> dict[str, Any]:
    discovery = "https://eastus.api.azureml.ms/discovery"
    return {
        "id": WORKSPACE_PATH,
        "name": WORKSPACE,
        "location": "eastus",
        "properties": {"workspaceId": "workspace-id", "discoveryUrl": discovery, "friendlyName": WORKSPACE},
    }


def _pending_upload(container: str) -> dict[str, Any]:
    address = f"{_STORAGE}/{container}"
    return {
        "pendingUploadType": "TemporaryBlobReference",
        "blobReferenceForConsumption": {
            "blobUri": address,
            "credential": {"credentialType": "SAS", "sasUri": f"{address}?sig=x"},
            "storageAccountArmId": "storage",
        },
    }


def _datastore(rest: str) -> Answer:
    if rest.endswith("/listSecrets"):
        return Answer(body={"secretsType": "Sas", "sasToken": "sig=x"})
    properties = {
        "datastoreType": "AzureBlob", "accountName": "storage", "containerName": "workspaceblobstore",
        "endpoint": "core.windows.net", "protocol": "https", "isDefault": True,
        "credentials": {"credentialsType": "Sas"},
    }  # fmt: skip
    return Answer(body=_resource("datastores/workspaceblobstore", properties))


def _certificates(folder: Path) -> tuple[Path, Path]:
    """Write an authority's certificate, and one for Azure's hosts with its key; return both files."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def certificate(
        name: str, public: ec.EllipticCurvePublicKey, more: Callable[[x509.CertificateBuilder], x509.CertificateBuilder]
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback authority")]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        return more(builder).sign(authority_key, hashes.SHA256())

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = dict.fromkeys(
        (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
            "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
        ),
        False,
    )  # fmt: skip
    authority = certificate(
        "loopback authority",
        authority_key.public_key(),
        lambda builder: builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        ).add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), critical=True),
    )
    hosts = certificate(
        "loopback Azure",
        key.public_key(),
        lambda builder: (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        ),
    )
    authority_file, hosts_file = folder / "authority.pem", folder / "hosts.pem"
    pem = serialization.Encoding.PEM
    authority_file.write_bytes(authority.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    hosts_file.write_bytes(private + hosts.public_bytes(pem))
    return authority_file, hosts_file
