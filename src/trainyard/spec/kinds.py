"""What kind of Azure ML file a YAML document is, by what stands in it."""

from __future__ import annotations

import re
from typing import Literal

from trainyard.spec.documents import Document, Node

Kind = Literal["pipeline", "component", "pipeline_component", "command_job", "environment", "compute", "profile"]

COMPUTE_TYPES = ("amlcompute", "computeinstance", "kubernetes", "virtualmachine", "synapsespark")
COMPONENT_TYPES = ("command", "parallel", "spark", "automl", "sweep", "import", "data_transfer", "flow_parallel")

# The addresses that Microsoft's examples give as `$schema`.
_KIND_BY_SCHEMA: tuple[tuple[str, Kind], ...] = (
    ("pipelineComponent", "pipeline_component"),
    ("pipelineJob", "pipeline"),
    ("commandComponent", "component"),
    ("Component", "component"),
    ("commandJob", "command_job"),
    ("environment", "environment"),
    ("amlCompute", "compute"),
    ("computeInstance", "compute"),
    ("compute", "compute"),
)
_SCHEMA_NAME = re.compile(r"azureml\S*/([A-Za-z]+)\.schema\.json")


def kind_of(document: Document) -> Kind | None:
    """The kind of a document, or None when it is none that is known here.

    What stands in it decides: `type`, `jobs`, `command`, `image`, and where these leave it open, `$schema`.
    """
    root = document.root
    if not root.is_mapping:
        return None
    keys = root.entries.keys()
    named = _kind_by_schema(root)
    type_text = _text(root, "type").lower()
    if document.file.parent.name == "profiles" and "type" not in keys and "$schema" not in keys:
        return "profile" if keys & {"sku", "extends", "nodes", "cluster"} else None
    if type_text in COMPUTE_TYPES:
        return "compute"
    if type_text == "pipeline":
        if named in ("pipeline", "pipeline_component"):
            return named
        return "pipeline_component" if _looks_like_component(root) else "pipeline"
    if type_text == "command":
        if named in ("component", "command_job"):
            return named
        return "component" if _looks_like_component(root) else "command_job"
    if named is not None:
        return named
    return _kind_without_type(root, type_text)


def _kind_without_type(root: Node, type_text: str) -> Kind | None:
    keys = root.entries.keys()
    if type_text in COMPONENT_TYPES and "name" in keys and keys & {"task", "entry", "inputs"}:
        return "component"
    if type_text and keys & {"jobs"} and _holds_azure_jobs(root):
        return "pipeline"
    if type_text and keys & {"command"} and keys & {"environment", "code"}:
        return "component" if _looks_like_component(root) else "command_job"
    if type_text:
        return None
    if "jobs" in keys and "on" not in keys and _holds_azure_jobs(root):
        return "pipeline"
    if "command" in keys and "environment" in keys:
        return "component" if _looks_like_component(root) else "command_job"
    if keys & {"image", "build"} and "services" not in keys and keys <= _ENVIRONMENT_KEYS and "name" in keys:
        return "environment"
    return None


_ENVIRONMENT_KEYS = frozenset(
    {
        "name",
        "version",
        "image",
        "build",
        "conda_file",
        "description",
        "tags",
        "inference_config",
        "os_type",
        "datastore",
        "properties",
        "creation_context",
        "id",
        "latest_version",
        "auto_delete_setting",
        "$schema",
    }
)


def _holds_azure_jobs(root: Node) -> bool:
    """Whether `jobs` are those of a pipeline: GitHub's have `runs-on` and `steps`, Azure DevOps' are a list."""
    jobs = root.get("jobs")
    if jobs is None or not jobs.is_mapping:
        return False
    return any(
        entry.value.is_mapping
        and entry.value.entries.keys() & {"component", "command", "trial", "type"}
        and not entry.value.entries.keys() & {"runs-on", "steps", "uses"}
        for entry in jobs.entries.values()
    )


def _looks_like_component(root: Node) -> bool:
    """Whether ports are declared, as in a component, rather than set, as in a job."""
    keys = root.entries.keys()
    if keys & {"is_deterministic", "version", "additional_includes"}:
        return True
    if keys & {"compute", "experiment_name", "settings", "limits", "services", "component"}:
        return False
    inputs = root.get("inputs")
    if inputs is not None and inputs.is_mapping and inputs.entries:
        return not any(_is_set(entry.value) for entry in inputs.entries.values())
    return "name" in keys


def _is_set(node: Node) -> bool:
    return not node.is_mapping or bool(node.entries.keys() & {"path", "value"})


def _kind_by_schema(root: Node) -> Kind | None:
    match = _SCHEMA_NAME.search(_text(root, "$schema"))
    if match is None:
        return None
    return next((kind for part, kind in _KIND_BY_SCHEMA if part in match[1]), None)


def _text(root: Node, key: str) -> str:
    node = root.get(key)
    return node.text if node is not None and node.is_text else ""
