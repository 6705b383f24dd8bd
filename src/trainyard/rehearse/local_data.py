"""Local data that jobs read: where it lies on this machine, downloaded where it has a public address.

https://learn.microsoft.com/azure/machine-learning/reference-yaml-mltable
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import tempfile
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from trainyard.rehearse.errors import RunError, error_at, writing
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Span
from trainyard.spec.resolved import DataPath, Known
from trainyard.spec.set_arguments import COMMAND_LINE

_TIMEOUT_SECONDS = 60
_REMOTE = regex(r"^(azureml:|/subscriptions/|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_HUB_NAME = regex(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DATASTORE_PATH = regex(r"azureml://(?:subscriptions/.+/)?datastores/([^/]+)/paths/(.*)", re.IGNORECASE)
_BLOB = regex(r"wasbs?://([^@/]+)@([^/]+)/(.+)", re.IGNORECASE)
_OUTPUT_OF_RUN = regex(r"/\.trainyard/runs/([^/]+)/jobs/([^/]+)/outputs/")
_RENDERED_ASIDE = regex(r"/\.trainyard/rendered/([^/]+)/(.+)")
# What a port's data must be on disk; any other kind may be either.
_Kind = tuple[str, Callable[[Path], bool]]
_KINDS: dict[str, _Kind] = {
    "uri_file": ("file", Path.is_file),
    "uri_folder": ("folder", Path.is_dir),
}
_ANY_KIND: _Kind = ("file or folder", Path.exists)


def web_address(text: str) -> str | None:
    """Return the address under which HTTP serves this data: itself, or that of a blob (`wasbs://`); None for others."""
    if text.lower().startswith(("http://", "https://")):
        return text
    blob = _BLOB.fullmatch(text)
    return f"https://{blob[2]}/{blob[1]}/{blob[3]}" if blob else None


def download(address: str, cache: Path) -> Path:
    """Return the local copy of a file with this address, fetched if it is not in the cache yet.

    Raise `RunError`, in one line, when it cannot be fetched or kept.
    """
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(address).path)).name or "data"
    file = cache / hashlib.sha256(address.encode()).hexdigest()[:16] / name
    if file.is_file():
        return file
    from urllib.error import URLError
    from urllib.request import urlopen  # takes 20 ms to import

    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            try:
                with urlopen(address, timeout=_TIMEOUT_SECONDS) as answer:
                    shutil.copyfileobj(answer, part)
                part.close()
                os.replace(part.name, file)
            except (URLError, TimeoutError, ConnectionError) as error:
                raise RunError(f"{address}: cannot be downloaded ({getattr(error, 'reason', error)})") from error
            finally:
                Path(part.name).unlink(missing_ok=True)
    return file


def read_mltable(folder: Path) -> dict[str, Any] | None:
    """Return `paths`, each a kind and a string, and `transformations`, each a name and options; None for other data.

    Raise `RunError` for a file MLTable that cannot be read as one, and OSError, which names it, for such a folder.
    """
    file = folder / "MLTable"
    if not folder.is_dir():
        return None
    with os.scandir(folder):  # raises for a folder that cannot be read
        if not file.is_file():
            return None
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        transformations: list[dict[str, Any]] = []
        for written in document.get("transformations") or ():
            named = {written: {}} if isinstance(written, str) else written
            transformations += [{"name": name, "options": options or {}} for name, options in named.items()]
        paths = [{kind: str(path) for kind, path in entry.items()} for entry in document["paths"]]
        return {"paths": paths, "transformations": transformations}
    except (OSError, yaml.YAMLError, KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read as an MLTable: {error}") from error


@dataclass(frozen=True)
class LocalPath:
    """A file or folder on this machine that a job reads; as written, where, and the key that `--set` takes for it.

    `type` is what the input declares the data to be, where it does; a component's port may say otherwise.
    """

    path: Path
    written: str
    span: Span
    settable: str
    type: str = ""


@dataclass(frozen=True)
class KeptData:
    """Where data with an address lies on this machine: what was downloaded, and a folder for each datastore."""

    downloads: Path
    datastores: Path

    def of_datastore(self, address: str) -> Path | None:
        """Return the local place of a path in a datastore, whether or not it exists; None for other addresses."""
        found = _DATASTORE_PATH.fullmatch(address)
        if found is None:
            return None
        parts = [found[1], *found[2].strip("/").split("/")]
        return None if ".." in parts else self.datastores.joinpath(*parts)


def local_path(data: DataPath, resolved: Known) -> LocalPath:
    """Return where data is, by what is written: relative to the file that says so, or to this folder for `--set`."""
    text = data.text.removeprefix("file://").removeprefix("file:")
    span = resolved.written.span
    folder = Path.cwd() if span.file == COMMAND_LINE else span.file.resolve().parent
    return LocalPath((folder / Path(text).expanduser()).resolve(), text, span, resolved.key, data.type)


def on_this_machine(data: LocalPath, port_type: str, named: str, kept: KeptData) -> LocalPath:
    """Return an input's data with its place on this machine, fetched if it has a public address.

    Raise `SpecError`, or `UsageError` where the command line gave it, for data that is not here; `named` is the input.
    """
    given_type = data.type or port_type
    set_it = f"--set {data.settable}.path=./data"
    if data.span.file == COMMAND_LINE:
        named = f"--set {data.settable}.path={data.written}: {named}"
    in_its_place = f"give local data in its place: {set_it}"
    if _REMOTE.match(data.written):
        path, why = _local_copy(data.written, given_type, kept)
        if path is None or not _is_of(path, given_type, port_type):
            raise error_at(data.span, f"{named} is {data.written}, which {why}", in_its_place)
        return replace(data, path=path)
    if foreign := _foreign_path(data.path):
        message = f"{named} is {data.written}, whose MLTable names {foreign}, which only Azure ML can read"
        raise error_at(data.span, message, in_its_place)
    if not _is_of(data.path, given_type, port_type):
        expected, _ = _KINDS.get(given_type, _ANY_KIND)
        problem = f"no such {expected}: {data.path}"
        if data.path.exists():
            actual = "folder" if data.path.is_dir() else "file"
            problem = f"{data.path} is a {actual}; the input takes a {expected}"
        is_model = "custom_model" in (given_type, port_type)
        if data.path.is_file():
            parent = str(PurePosixPath(data.written).parent)
            raise error_at(data.span, f"{named}: {problem}", f"give the folder that holds it: {parent}")
        if is_model and _HUB_NAME.fullmatch(data.written):
            folder = f"models/{PurePosixPath(data.written).name.lower()}"
            hint = (
                f"{data.written} looks like a name on the Hugging Face Hub: `trainyard model fetch {data.written}` or "
            )
            hint += f"`hf download {data.written} --local-dir {folder}`, then --set {data.settable}.path={folder}"
            raise error_at(data.span, f"{named}: {problem}", hint)
        raise error_at(
            data.span, f"{named}: {problem}", f"{_how_to_get(data)}, or give other data in its place: {set_it}"
        )
    return data


def _how_to_get(data: LocalPath) -> str:
    """What makes data that is missing: the run whose output it is, of a pipeline beside the one that reads it."""
    found = _OUTPUT_OF_RUN.search(data.path.as_posix())
    if found is None:
        return "correct the path"
    run, job = found.groups()
    beside = sorted(data.span.file.resolve().parent.glob("*.yaml"), key=lambda file: len(file.name))
    file = next((file for file in beside if f"\n  {job}:\n" in file.read_text(encoding="utf-8")), None)
    if file is None:
        return f"run the pipeline of the job {job} first, with --name {run}"
    rendered = _RENDERED_ASIDE.search(file.as_posix())
    which = [rendered[2], "--profile", rendered[1]] if rendered is not None else [os.path.relpath(file)]
    return f"run what writes it first: trainyard run {shlex.join([*which, '--name', run])}"


def _is_of(path: Path, *types: str) -> bool:
    """Whether data of one of these types lies at a path: Azure ML goes by what the input says, not by the port."""
    return any(_KINDS.get(type, _ANY_KIND)[1](path) for type in types)


def _foreign_path(folder: Path) -> str | None:
    """The first path of a folder's MLTable that only Azure ML can read; a broken one is for the job to report."""
    try:
        table = read_mltable(folder)
    except RunError:
        return None
    paths = [path for entry in table["paths"] for path in entry.values()] if table is not None else []
    return next((path for path in paths if _REMOTE.match(path) and web_address(path) is None), None)


def _local_copy(written: str, port_type: str, kept: KeptData) -> tuple[Path | None, str]:
    """Where data with an address lies on this machine, and what to say if it does not."""
    of_datastore = kept.of_datastore(written)
    if of_datastore is not None:
        return of_datastore, f"is in a datastore of Azure ML, and not in {of_datastore}"
    address = web_address(written)
    if address is None:
        return None, "only Azure ML can read"
    if port_type == "uri_folder":
        return None, "is a folder, and folders have no listing over HTTP"
    try:
        return download(address, kept.downloads), ""
    except RunError as error:
        return None, str(error).removeprefix(f"{address}: ")
