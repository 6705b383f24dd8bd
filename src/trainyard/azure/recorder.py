"""Runs a script of Azure ML's Python SDK with a client that sends nothing, and records what it is given.

`python -m trainyard.azure.recorder SCRIPT [ARGUMENT]...` writes JSON to stdout: `files`, each as group, name and YAML,
and `error`, which says why the script failed. The script has the process for itself; what it prints goes to stderr.
"""

from __future__ import annotations

import ast
import io
import json
import os
import runpy
import sys
import traceback
from types import SimpleNamespace
from typing import Any

from trainyard.azure.workspace import azure_ml
from trainyard.errors import UserError

_GROUPS = {"Job": "jobs", "Component": "components", "Environment": "environments", "Compute": "compute"}
_GROUPS |= {"Data": "data", "Model": "models"}
"""The client's group of operations for a class."""

# Beginnings of the names of `sys.audit`'s events. A program could submit what the script itself does not.
_REFUSED = ("socket.connect", "socket.get", "socket.send", "subprocess.", "os.system", "os.exec", "os.posix_spawn")

_files: list[tuple[str, str, str]] = []
_created: dict[tuple[str, str], Any] = {}


class _Reference(str):
    """`azureml:NAME:VERSION`: the client takes this where it takes the object that Azure ML keeps."""


def _reference(name: str, version: str | None, label: str | None = None, place: str = "azureml:") -> _Reference:
    by_version, by_label = (":", "@") if place == "azureml:" else ("/versions/", "/labels/")
    found = _Reference(place + name + (f"{by_version}{version}" if version else f"{by_label}{label or 'latest'}"))
    vars(found).update(name=name, version=version or label, id=str(found), path=str(found))
    return found


class _Client:
    """Stands in for MLClient, and for each group of its operations, such as `jobs`."""

    def __init__(self, *_: Any, group: str = "", registry_name: str | None = None, **__: Any) -> None:
        self._group, self._registry = group, registry_name

    @classmethod
    def from_config(cls, *_: Any, **__: Any) -> _Client:
        return cls()

    def begin_create_or_update(self, entity: Any, **options: Any) -> Any:
        return _ended(self.create_or_update(entity, **options))

    def create_or_update(self, entity: Any, **options: Any) -> Any:
        """Keep what an object is as YAML, and return it as the service would."""
        group = next((_GROUPS[each.__name__] for each in type(entity).__mro__ if each.__name__ in _GROUPS), "other")
        # The client does both before it sends a job.
        written = entity._to_job() if hasattr(type(entity), "_to_job") else entity
        for option in {"description", "compute", "tags", "experiment_name"} & options.keys():
            setattr(written, option, options[option])
        text = io.StringIO()
        written.dump(text)
        name = entity.name or getattr(entity, "display_name", None) or ""
        _files.append((group, name, text.getvalue()))
        if group == "jobs":
            outputs = {key: _reference(f"azureml_{name}_output_data_{key}", "1") for key in written.outputs}
            # Scripts wait until a job has ended.
            entity = SimpleNamespace(name=name, status="Completed", studio_url="", outputs=SimpleNamespace(**outputs))
        elif group in ("data", "environments", "models"):
            entity = _reference(name, entity.version or "1")
        _created[group, name] = entity
        return entity

    def get(self, name: str, version: str | None = None, label: str | None = None, **_: Any) -> Any:
        if (self._group, name) not in _created and self._group == "compute" and not _is_tried():
            from azure.ai.ml.entities import AmlCompute

            return AmlCompute(name=name)
        if (self._group, name) not in _created and self._group in ("jobs", "components", "compute"):
            # Scripts create the cluster that is not found.
            from azure.core.exceptions import ResourceNotFoundError

            raise ResourceNotFoundError(f"Azure ML is not asked for {self._group}, and the script creates no '{name}'")
        place = f"azureml://registries/{self._registry}/{self._group}/" if self._registry else "azureml:"
        return _created.get((self._group, name)) or _reference(name, version, label, place)

    def __getattr__(self, name: str) -> Any:
        if not self._group:
            return _Client(group=name, registry_name=self._registry)
        return lambda *_, **__: _ended(None) if name.startswith("begin_") else []


def _ended(result: Any) -> SimpleNamespace:
    """An operation of the service that has ended."""
    asked = dict.fromkeys(("result", "wait", "done"), lambda *_, **__: result)
    return SimpleNamespace(**asked, status=lambda: "Succeeded")


def _is_tried() -> bool:
    """Whether the script handles exceptions of the line that it is at, or of one that called the function there."""
    file = str(sys.modules["__main__"].__file__)
    lines = [line for frame, line in traceback.walk_stack(None) if frame.f_code.co_filename == file]
    with open(file, encoding="utf-8") as script:
        tries = [node for node in ast.walk(ast.parse(script.read())) if isinstance(node, ast.Try) and node.handlers]
    spans = [(node.body[0].lineno, node.body[-1].end_lineno or 0) for node in tries]
    return any(first <= line <= last for line in lines for first, last in spans)


def _refuse(event: str, _: Any) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(f"an import has no network and starts no programs ({event})")


def record(script: str, arguments: list[str]) -> str:
    """Run a script as `python SCRIPT` does, and return why it failed, or an empty string."""
    try:
        azure_ml().MLClient = _Client
        import azure.identity
        import yaml

        for name in filter(lambda name: name.endswith("Credential"), dir(azure.identity)):
            setattr(azure.identity, name, lambda *_, **__: SimpleNamespace(get_token=lambda *_, **__: None))
        yaml.Dumper.add_representer(_Reference, lambda dumper, text: dumper.represent_str(str(text)))
        sys.argv = [script, *arguments]
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        sys.addaudithook(_refuse)
        runpy.run_path(script, run_name="__main__")
    except UserError as missing:
        return str(missing)
    except SystemExit as ended:
        return f"{script} exits with {ended.code}" if ended.code else ""
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
        return (f"{script}:{lines[-1]}: " if lines else "") + traceback.format_exception_only(error)[-1].strip()
    return ""


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stdout:
        os.dup2(2, 1)
        json.dump({"error": record(sys.argv[1], sys.argv[2:]), "files": _files}, stdout)
