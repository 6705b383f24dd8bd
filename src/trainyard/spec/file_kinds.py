"""What kind of Azure ML file a YAML document is, judged by its content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

from trainyard.resources import shared_definitions, word_tables
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match
from trainyard.spec.documents import Document, Node
from trainyard.spec.model import PARAMETER_TYPES

Kind = Literal[
    "pipeline",
    "component",
    "pipeline_component",
    "command_job",
    "sweep_job",
    "other_job",
    "schedule",
    "asset",
    "environment",
    "compute",
    "profile",
    "settings",
    "online_endpoint",
    "batch_endpoint",
    "online_deployment",
    "batch_deployment",
    "datastore",
    "workspace",
    "registry",
    "feature_store",
    "feature_set",
    "feature_store_entity",
]

COMPUTE_TYPES = ("amlcompute", "computeinstance", "kubernetes", "virtualmachine", "synapsespark")
COMPONENT_TYPES = ("command", "parallel", "spark", "automl", "sweep", "import", "data_transfer", "flow_parallel")

_IRREGULAR_NAMES: dict[Kind, str] = word_tables("spec")["names_of_kinds"]["words"]
KIND_NAMES: dict[Kind, str] = {
    kind: f"{'an' if kind[0] in 'aeo' else 'a'} {kind.replace('_', ' ')}" for kind in get_args(Kind)
} | _IRREGULAR_NAMES

_KIND_BY_SCHEMA: Mapping[str, Kind] = word_tables("spec")["kinds_of_schemas"]["words"]
# The comment that tells an editor of a settings file's schema.
_SETTINGS_SCHEMA = regex(r"^# *yaml-language-server: *\$schema=\S*\bsettings/(\w+)\.schema\.json", re.MULTILINE)
_LONGEST_COMMENTS = 4_000
_SCHEMA_NAME = regex(r"azureml\S{0,200}/([A-Za-z]{1,60})(?:\.schema)?\.json")


def kind_of(document: Document) -> Kind | None:
    """The kind of a document, or None when it is none that is known here.

    Its content decides: `type`, `jobs`, `command`, `image`, and where these leave it open, `$schema`.
    """
    root = document.root
    if step_of_settings(document) is not None:
        return "settings"
    if not root.is_mapping:
        return None
    keys = root.entries.keys()
    resource = _resource_kind(root)
    if resource is not None:
        return resource
    if is_other_resource(root):
        return None
    named = kind_by_schema(root)
    type_text = root.text_of("type").lower()
    if document.file.parent.name == "profiles" and "type" not in keys and "$schema" not in keys:
        return "profile" if keys & {"sku", "extends", "nodes", "cluster"} else None
    if type_text in COMPUTE_TYPES:
        return "compute"
    if type_text == "pipeline":
        return _form(root, named, "pipeline_component", "pipeline")
    if type_text == "command":
        return _form(root, named, "component", "command_job")
    if type_text == "spark" and keys & {"entry", "conf"}:
        return _form(root, named, "component", "other_job")
    if type_text == "sweep" and "trial" in keys:
        return "component" if named == "component" or _looks_like_component(root) else "sweep_job"
    if (type_text in _ASSET_TYPES or type_text.startswith("uri_")) and "path" in keys and "name" in keys:
        return "asset"
    if "trigger" in keys and keys & {"create_job", "import_data", "create_monitor"}:
        return "schedule"
    # A job or component may have a `type` that is not of the kind that its `$schema` is for.
    is_known = type_text in ("pipeline", *COMPONENT_TYPES)
    if named is not None and (not is_known or type_text in _TYPES_OF_KIND.get(named, ())):
        return named
    return _kind_without_type(root, type_text) or named


_TYPES_OF_KIND: Mapping[Kind, list[str]] = word_tables("spec")["types_of_kinds"]["words"]


def step_of_settings(document: Document) -> str | None:
    """The step that a file holds the settings of, by the schema that its comment names; None for other files."""
    if "yaml-language-server" not in document.text:
        return None
    match = _SETTINGS_SCHEMA.search(document.text, 0, _LONGEST_COMMENTS)
    return match[1] if match is not None else None


def _kind_without_type(root: Node, type_text: str) -> Kind | None:
    keys = root.entries.keys()
    if type_text == "automl" and not keys & {"inputs", "entry"} and keys & _AUTOML_JOB_KEYS:
        return "other_job"
    if type_text in COMPONENT_TYPES and "name" in keys and keys & {"task", "entry", "inputs"}:
        return "component"
    if type_text in _JOB_TYPES and keys & {"task", "entry", "primary_metric"}:
        return "other_job"
    if type_text == "import" and keys >= {"source", "output"} and root.find("source", "type") is not None:
        return "other_job"
    if type_text in ("conda", "environment") and "name" in keys and ("conda_file" in keys or _names_software(root)):
        return "environment"
    if "jobs" in keys and (type_text or "on" not in keys) and _holds_azure_jobs(root):
        return "pipeline"
    if "command" in keys and ("environment" in keys or (type_text and "code" in keys)):
        return _form(root, None, "component", "command_job")
    if type_text:
        return None
    if {"trial", "search_space"} <= keys:
        return "sweep_job"
    if "name" in keys and "services" not in keys and _names_software(root):
        # A key may be mistyped; what has keys of its own is somebody else's file.
        known = shared_definitions()["environment_keys"]["properties"]
        is_environment = all("conda" in key or close_match(key, known) for key in keys - known.keys())
        return "environment" if is_environment else None
    return None


def _names_software(root: Node) -> bool:
    """Whether `image` or `build` are those of an environment: configurations of vision models have an `image` too."""
    build = root.get("build")
    return root.find_text("image") is not None or (build is not None and build.is_mapping)


_ASSET_TYPES = frozenset({"uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model"})
_JOB_TYPES = frozenset({"parallel", "spark", "automl", "data_transfer"})
_AUTOML_JOB_KEYS = frozenset({"primary_metric", "training_data", "target_column_name", "compute"})


def _holds_azure_jobs(root: Node) -> bool:
    """Whether `jobs` are those of a pipeline: GitHub's have `runs-on` and `steps`, Azure DevOps' are a list."""
    return any(
        entry.value.is_mapping
        and entry.value.entries.keys() & {"component", "command", "trial", "type"}
        and not entry.value.entries.keys() & {"runs-on", "steps", "uses"}
        for entry in root.entries_of("jobs").values()
    )


def _form(root: Node, named: Kind | None, component: Kind, job: Kind) -> Kind:
    """Component or job: by keys that only one of them has, else by `$schema`, else by how ports are written."""
    keys = root.entries.keys()
    says_component, says_job = keys & _COMPONENT_KEYS, keys & (_SPARK_JOB_KEYS if job == "other_job" else _JOB_KEYS)
    if component == "component" and not says_job and _declares_parameters(root):
        return component
    if job == "command_job" and component == named and says_job == {"compute"} and "name" in keys:
        return component  # whose `compute` is a key of jobs, which Azure ML ignores
    if len(says_component) != len(says_job):
        return component if len(says_component) > len(says_job) else job
    if named in (component, job):
        return named
    if job == "pipeline" and "name" not in keys:
        return job  # a component that is a pipeline of its own has a name; most pipeline jobs have none
    return component if _looks_like_component(root) else job


_COMPONENT_KEYS = frozenset({"is_deterministic", "additional_includes", "version"})
_JOB_KEYS = frozenset({"compute", "experiment_name", "limits", "services", "identity"})
_SPARK_JOB_KEYS = _JOB_KEYS | {"resources"}


def _looks_like_component(root: Node) -> bool:
    """Whether ports are declared, as in a component, rather than set, as in a job."""
    keys = root.entries.keys()
    if keys & _COMPONENT_KEYS:
        return True
    if keys & {"compute", "experiment_name", "settings", "limits", "services", "component"}:
        return False
    inputs = root.entries_of("inputs")
    return not any(_is_set(entry.value) for entry in inputs.values()) if inputs else "name" in keys


def _declares_parameters(root: Node) -> bool:
    """Whether an input has the type of a literal and no value, which a job's never has."""
    return any(
        not _is_set(entry.value) and entry.value.text_of("type") in PARAMETER_TYPES
        for entry in root.entries_of("inputs").values()
    )


def _is_set(node: Node) -> bool:
    return not node.is_mapping or bool(node.entries.keys() & {"path", "value"})


_RESOURCES = frozenset[Kind](word_tables("spec")["resources"]["words"])
# The whole names of schemas that others contain: `workspaceConnection` is not a workspace.
_RESOURCE_BY_SCHEMA: Mapping[str, Kind] = {"workspace": "workspace", "registry": "registry"}
_DATASTORE_TYPES = frozenset({"azure_blob", "azure_file", "azure_data_lake_gen1", "azure_data_lake_gen2", "one_lake"})
_DATASTORE_KEYS = frozenset({"account_name", "store_name", "one_lake_workspace_name"})
_ONLINE_KEYS = frozenset[str](word_tables("spec")["online_keys"]["words"])
_BATCH_KEYS = frozenset(
    {"compute", "settings", "mini_batch_size", "output_action", "retry_settings", "component", "job_definition"}
)


def _resource_kind(root: Node) -> Kind | None:
    """The kind of an endpoint, a deployment, a datastore or similar; None for all else."""
    match = _SCHEMA_NAME.search(root.text_of("$schema"))
    if match is None:
        return _resource_by_keys(root)
    named = _RESOURCE_BY_SCHEMA.get(match[1].lower()) or kind_by_schema(root)
    if named not in _RESOURCES or match[1].lower().endswith(("spec", "specification")):
        return None  # the specification of a feature set is a file of the asset
    if named.endswith("_endpoint") and "endpoint_name" in root.entries:
        return _resource_by_keys(root) or named
    return named


def _resource_by_keys(root: Node) -> Kind | None:
    keys = root.entries.keys()
    if "endpoint_name" in keys and not keys & {"jobs", "command"}:
        is_batch = bool(keys & _BATCH_KEYS) or root.text_of("type").lower() in ("model", "pipeline")
        is_online = bool(keys & _ONLINE_KEYS)
        return None if is_batch == is_online else "batch_deployment" if is_batch else "online_deployment"
    if "auth_mode" in keys and "name" in keys and "type" not in keys:
        is_batch = "defaults" in keys or (root.text_of("auth_mode") == "aad_token" and not keys & {"traffic"})
        return "batch_endpoint" if is_batch else "online_endpoint"
    if root.text_of("type").lower() in _DATASTORE_TYPES and "name" in keys and keys & _DATASTORE_KEYS:
        return "datastore"
    return None


# Azure ML's, and nothing that runs or describes a job: `pipelineComponentBatchDeployment` is not a pipeline component.
_OTHER_RESOURCES = regex(
    "deployment|endpoint|workspace|registry|connection|datastore|hub|project|feature|package|subscription"
)
# The components of Azure ML's first SDK: `type: CommandComponent`, with a form of their own.
_EARLIER_COMPONENT = regex("[A-Z][A-Za-z]+Component(?:@.*)?")


def is_other_resource(root: Node) -> bool:
    """Whether a document is a connection, a deployment without its type or similar, which is not checked."""
    match = _SCHEMA_NAME.search(root.text_of("$schema"))
    if match is not None and _OTHER_RESOURCES.search(match[1].lower()):
        return True
    if _EARLIER_COMPONENT.fullmatch(root.text_of("type")):
        return True
    keys = root.entries.keys()
    return "endpoint_name" in keys and "jobs" not in keys and "command" not in keys


def kind_by_schema(root: Node) -> Kind | None:
    """The kind that a file's `$schema` says it is; None when it says nothing, or an address of somebody else's."""
    match = _SCHEMA_NAME.search(root.text_of("$schema"))
    if match is None:
        return None
    return next((kind for part, kind in _KIND_BY_SCHEMA.items() if part.lower() in match[1].lower()), None)
