"""Files and assets that are named: components, code, environments, data. Found by the readers of `spec`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainyard.foundation.suggestions import close_match, closest, only_close
from trainyard.lint.context import LintContext
from trainyard.lint.scripts import CalledScript
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Document, Node, shorten
from trainyard.spec.kinds import Kind
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Example, Rule
from trainyard.spec.rules.references import (
    BAD_REFERENCE,
    SCRIPT_NOT_FOUND,
)
from trainyard.spec.script_steps import python_files

_TRAIN = """\
=== train.yaml
type: command
name: train
command: python train.py
environment: azureml:torch:3
"""


SCRIPT_LEFT_OUT = Rule(
    "AML407",
    "script-left-out",
    "error",
    "The script is kept out of the snapshot by .amlignore or .gitignore.",
    "It lies in the folder, and is not uploaded: the job does not find it. `.amlignore` counts before `.gitignore`.",
    Example("""\
type: command
name: train
code: ./src
command: python ‸train.py
environment: azureml:torch:3
=== src/train.py
print("training")
=== src/.amlignore
‹*.py
⇒notebooks/
›"""),
)
MODULE_NOT_FOUND = Rule(
    "AML408",
    "module-not-found",
    "error",
    "The module that the command starts is not in its package.",
    "Said only when the package lies in the code; one that the environment brings along cannot be seen from here.",
    Example(
        """\
type: command
name: train
code: ./src
command: python -m digits.‹trian⇒train›
environment: azureml:torch:3
=== src/digits/__init__.py
=== src/digits/train.py
print("training")
""".replace("digits.‹", "‸digits.‹")
    ),
)
NO_VERSION = Rule(
    "AML409",
    "no-version",
    "warning",
    "A registered asset is named without a version.",
    "`azureml:NAME` alone loads, and is refused when the job is submitted. Write `azureml:NAME:VERSION`, or "
    "`azureml:NAME@LABEL`.",
    Example(
        """\
type: command
name: train
command: python train.py
environment: azureml:torch‹⇒:3›
""".replace("azureml:torch", "‸azureml:torch")
    ),
)
MOVING_VERSION = Rule(
    "AML410",
    "moving-version",
    "warning",
    "The version of an asset is whatever is newest.",
    "A training that ran today may not run tomorrow, and steps are run again whenever it moves. Name the version.",
    Example("""\
type: command
name: train
command: python train.py
environment: ‸azureml://registries/azureml/environments/sklearn-1.5/‹labels/latest⇒versions/17›
"""),
)
UNKNOWN_CURATED = Rule(
    "AML411",
    "unknown-curated-environment",
    "warning",
    "Azure ML's registry has no curated environment of this name, as far as is known here.",
    "Said of names that resemble those of the families ACPT, TensorFlow and scikit-learn. New ones appear: check with "
    "`az ml environment list --registry-name azureml`.",
    Example("""\
type: command
name: train
command: python train.py
environment: ‸azureml://registries/azureml/environments/‹acpt-pytorch-2.8-cuda12.4⇒acpt-pytorch-2.8-cuda12.6›/versions/7
"""),
)
COMPUTE_FORM = Rule(
    "AML412",
    "compute-form",
    "warning",
    "A compute is named in a form that no compute has.",
    "Computes have no versions and no registry: `azureml:NAME`, `serverless`, `local`, or the resource's full id.",
    Example("""\
type: pipeline
jobs:
  train:
    component: azureml:train:1
    compute: ‸azureml:gpu-cluster‹:1⇒›
"""),
)
UNKNOWN_COMPUTE = Rule(
    "AML413",
    "unknown-compute",
    "warning",
    "A compute whose name differs by a slip from one of the project's.",
    "The compute files beside the pipeline have a cluster of almost the same name, and none of this.",
    Example("""\
type: pipeline
jobs:
  train:
    component: azureml:train:1
    compute: ‸azureml:gpu-‹clutser⇒cluster›
=== compute/gpu.yaml
type: amlcompute
name: gpu-cluster
size: Standard_ND96asr_v4
"""),
)
NO_COMPUTE = Rule(
    "AML414",
    "no-compute",
    "error",
    "A job has no compute, and its pipeline names none for all.",
    "Azure ML's client refuses the pipeline: `Compute not set`. Write `settings: {default_compute: azureml:NAME}`, or "
    "`compute:` at the job. Spark's jobs may have `resources` in its place.",
    Example("""\
type: pipeline
‹⇒settings: {default_compute: azureml:cpus}
›jobs:
  ‸train:
    component: azureml:train:1
"""),
    suppressed_by_errors=True,
)
RULES = (
    SCRIPT_LEFT_OUT,
    MODULE_NOT_FOUND,
    NO_VERSION,
    MOVING_VERSION,
    UNKNOWN_CURATED,
    COMPUTE_FORM,
    UNKNOWN_COMPUTE,
    NO_COMPUTE,
)

# The names of these families as of 2026-11, with earlier ones that files still name:
# https://learn.microsoft.com/azure/machine-learning/resource-curated-environments
_CURATED = (
    *("acpt-pytorch-2.8-cuda12.6", "acpt-pytorch-2.2-cuda12.1", "acpt-pytorch-2.1-cuda12.1"),
    *("acpt-pytorch-2.0-cuda11.7", "acpt-pytorch-1.13-cuda11.7", "acpt-pytorch-1.13-py38-cuda11.7-gpu"),
    *("acpt-pytorch-1.12-cuda11.6", "acpt-pytorch-1.12-py39-cuda11.6-gpu", "acpt-pytorch-1.11-cuda11.3"),
    *("acpt-pytorch-1.11-py38-cuda11.3-gpu", "acpt-pytorch-1.11-py38-cuda11.5-gpu"),
    *("tensorflow-2.16-cuda12", "tensorflow-2.12-cuda11", "tensorflow-2.11-cuda11"),
    *("sklearn-1.5", "sklearn-1.1", "sklearn-1.0"),
)
_FAMILY = re.compile(r"(acpt|tensorflow|sklearn)-")
_REGISTRY_ENVIRONMENT = re.compile(r"azureml://registries/azureml/environments/([^/]+)(?:/|$)")
_NAME_ONLY = re.compile(r"azureml:(?!/)[^:@/\s]+")
_DATA_ADDRESS = re.compile(r"azureml://([^/]*)")
_DATASTORE_FOLDER = re.compile(r"azureml://datastores/([^/$]+)/([^/$]+)/")
_DATA_ADDRESSES = ("datastores", "subscriptions", "registries", "locations", "jobs")
_ASSET = re.compile(
    r"azureml:[^:@/\s]+(?::[^:@/\s]+|@[^:@/\s]+)|azureml:/+(?:subscriptions|locations)/.*", re.IGNORECASE
)
_REGISTRY_ASSET = re.compile(r"azureml://registries/[^/]+/([^/]+)(?:/[^/]+(?:/([^/]+)(?:/[^/]+)?)?)?/?$")
_ASSET_FOLDERS = ("components", "environments", "models", "data", "codes")
_LATEST = re.compile(r"/labels/latest$|@latest$", re.IGNORECASE)
_COMPUTE_NAME = re.compile(r"azureml:[^:@/\s]+")
_RESOURCE_ID = re.compile(r"(azureml:)?/subscriptions/|azureml://(?:subscriptions|locations)/", re.IGNORECASE)


def check_command(seen: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """The script that a command calls, and the environment it runs in."""
    for called in context.calls_of(seen):
        if called.file is None:
            yield from _missing_script(called, seen)
        elif context.is_left_out(called.root, called.file):
            span = called.span(called.call.script)
            message = f"'{called.call.script.text}' is not uploaded: the code's ignore file leaves it out"
            yield SCRIPT_LEFT_OUT.at(span, message, "Write a line `!…` for it, or a narrower pattern.")
    environment = seen.node.get("environment")
    if environment is not None and environment.is_text:
        yield from _environment(environment)


def check_document(document: Document, kind: Kind, context: LintContext) -> Iterator[Diagnostic]:
    """How data is named, the inputs and outputs of jobs and pipelines; whether jobs have a compute."""
    if kind == "pipeline":
        yield from _no_compute(document, context)
    if kind in ("command_job", "sweep_job", "other_job"):
        yield from _compute(document.root.get("compute"), document.file, context)
    if kind in ("pipeline", "command_job", "sweep_job", "other_job"):
        jobs = document.root.get("jobs")
        holders = [document.root, *(entry.value for entry in (jobs.entries.values() if jobs is not None else ()))]
        for holder in holders:
            for key in ("inputs", "outputs"):
                ports = holder.get(key) if holder.is_mapping else None
                for entry in ports.entries.values() if ports is not None else ():
                    path = entry.value.get("path") if entry.value.is_mapping else None
                    if path is not None and path.is_text:
                        yield from _data_path(path)


_DEEPEST_PIPELINE = 20
# A pipeline's jobs have computes of their own; Spark's may have `resources`.
_NEED_A_COMPUTE = frozenset({"command", "parallel", "sweep", "automl", "import", "data_transfer"})


def _no_compute(document: Document, context: LintContext) -> Iterator[Diagnostic]:
    """A pipeline's first job that says nothing of where it runs, in the pipelines within it too."""
    pipeline = document.root
    settings, jobs = pipeline.get("settings"), pipeline.get("jobs")
    default = settings.get("default_compute") if settings is not None else None
    if jobs is None or any(node is not None and node.data is not None for node in (default, pipeline.get("compute"))):
        return
    if settings is not None and any("compute" in key for key in settings.entries if key != "default_compute"):
        return  # told as an unknown key
    for name, entry in jobs.entries.items():
        missing = _without_compute(entry.value, document.file, context, depth=0)
        if missing is None:
            continue
        message = f"the job '{shorten(name)}' has no compute, and the pipeline names none for all"
        related = []
        if missing is not entry.value:
            message = f"a job within '{shorten(name)}' has no compute, and this pipeline names none for all"
            related = [Related(missing.span, "this job has none")]
        hint = "Write `settings: {default_compute: azureml:NAME}`, or `compute:` at the job."
        yield NO_COMPUTE.at(entry.key.span, message, hint, related)
        return


def _without_compute(job: Node, file: Path, context: LintContext, depth: int) -> Node | None:
    """A job without a compute: this one, or one of the pipeline component that it is; None when all have theirs."""
    kind, compute = job.get("type"), job.get("compute")
    kind_text = kind.text.lower() if kind is not None else "command"
    if kind_text in _NEED_A_COMPUTE:
        return job if compute is None or compute.data is None else None
    component = job.get("component") if kind_text == "pipeline" and depth < _DEEPEST_PIPELINE else None
    if component is None:
        return None
    body = component
    if component.is_text:
        file = Path(os.path.abspath(file.parent / component.text.removeprefix("file:")))
        found = context.pipeline_in(file)
        if found is None:
            return None
        body = found.body
    jobs = body.get("jobs") if body.is_mapping else None
    inner = jobs.entries.values() if jobs is not None and jobs.is_mapping else ()
    nested = (_without_compute(entry.value, file, context, depth + 1) for entry in inner if entry.value.is_mapping)
    return next((node for node in nested if node is not None), None)


def _data_path(path: Node) -> Iterator[Diagnostic]:
    if _NAME_ONLY.fullmatch(path.text):
        message = f"'{path.text}' names no version of the data"
        yield NO_VERSION.at(path.span, message, f"Write {path.text}:VERSION, or {path.text}@latest.")
    elif path.text.startswith("azureml:") and not path.text.startswith("azureml:/"):
        yield from _asset_form(path, "data")
    match = _DATA_ADDRESS.match(path.text)
    if match is not None and match[1] not in _DATA_ADDRESSES:
        hint = close_match(match[1], _DATA_ADDRESSES) or "Data lies in azureml://datastores/NAME/paths/…"
        yield BAD_REFERENCE.at(path.span, f"there is no azureml://{match[1]}/", hint, severity="warning")
    datastore = _DATASTORE_FOLDER.match(path.text)
    if datastore is not None and datastore[2] != "paths":
        hint = f"Write azureml://datastores/{datastore[1]}/paths/…"
        message = f"'{shorten(datastore[2])}' stands where an address in a datastore has 'paths'"
        yield BAD_REFERENCE.at(path.span, message, hint, severity="warning")


def check_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """How jobs name components and computes."""
    for job in seen.scope.jobs.values():
        component = job.node.get("component") or job.node.get("trial")
        if component is not None and component.is_text:
            yield from _version(component, "component")
        yield from _compute(job.node.get("compute"), seen.reading.file, context)
    settings = seen.body.get("settings")
    if settings is not None and settings.is_mapping:
        yield from _compute(settings.get("default_compute"), seen.reading.file, context)


def _missing_script(called: CalledScript, seen: ParsedCommand) -> Iterator[Diagnostic]:
    script = called.call.script
    if script.text.startswith("/") or called.call.follows_others or "${{" in script.text or not script.is_plain:
        return
    if called.call.is_module:
        yield from _missing_module(called)
        return
    names = python_files(called.root)
    if not names or seen.component.additional_includes:
        return
    meant = closest(script.text.removeprefix("./"), names)
    hint = f"Did you mean '{meant}'?" if meant is not None else f"The code is '{called.root.name}', which holds others."
    message = f"there is no '{script.text}' in the code, which is '{called.root.name}'"
    yield SCRIPT_NOT_FOUND.at(called.span(script), message, hint, replacement=only_close(script.text, names))


def _missing_module(called: CalledScript) -> Iterator[Diagnostic]:
    script = called.call.script
    if script.text.endswith(".py") and os.path.isfile(called.root / script.text):
        message = f"-m takes a module, and '{script.text}' is a file"
        yield MODULE_NOT_FOUND.at(called.span(script), message, f"Write `python {script.text}`.")
        return
    names = script.text.split(".")
    package = called.root / names[0]
    if len(names) < 2 or not os.path.isdir(package) or not any(package.glob("*.py")):
        return
    folder = called.root.joinpath(*names[:-1])
    siblings = [file.stem for file in folder.glob("*.py")] if os.path.isdir(folder) else []
    message = f"the package '{names[0]}' lies in the code, and has no module '{'.'.join(names[1:])}'"
    meant = closest(names[-1], siblings)
    hint = f"Did you mean '{'.'.join([*names[:-1], meant])}'?" if meant else ""
    yield MODULE_NOT_FOUND.at(called.span(called.call.script), message, hint)


def _environment(node: Node) -> Iterator[Diagnostic]:
    yield from _version(node, "environment")
    match = _REGISTRY_ENVIRONMENT.match(node.text)
    if match is None or match[1] in _CURATED or not _FAMILY.match(match[1]):
        return
    hint = close_match(match[1], _CURATED) or "`az ml environment list --registry-name azureml` shows them."
    yield UNKNOWN_CURATED.at(node.span, f"no curated environment '{match[1]}' is known here", hint)


def _version(node: Node, what: str) -> Iterator[Diagnostic]:
    yield from _asset_form(node, what)
    if _NAME_ONLY.fullmatch(node.text):
        message = f"'{node.text}' names no version of the {what}"
        yield NO_VERSION.at(node.span, message, f"Write {node.text}:VERSION.")
    elif _LATEST.search(node.text):
        message = f"this {what} is whatever version is the newest on the day"
        yield MOVING_VERSION.at(node.span, message, "Write /versions/N for /labels/latest, or :N for @latest.")


def _asset_form(node: Node, what: str) -> Iterator[Diagnostic]:
    """An `azureml:` reference of a form that no asset has."""
    text = node.text
    if not text.startswith("azureml:") or "${{" in text or _NAME_ONLY.fullmatch(text) or _ASSET.fullmatch(text):
        return
    registry = _REGISTRY_ASSET.match(text)
    hint = f"Write azureml:NAME:VERSION, azureml:NAME@LABEL or azureml://registries/REGISTRY/{what}s/NAME/versions/N."
    message = f"'{shorten(text)}' names no {what} in a form that Azure ML follows"
    if registry is not None and registry[1] in _ASSET_FOLDERS and registry[2] is None:
        yield NO_VERSION.at(node.span, f"this names no version of the {what}", f"Write {text}/versions/N.")
    elif registry is None or registry[1] not in _ASSET_FOLDERS or registry[2] not in ("versions", "labels"):
        found = BAD_REFERENCE.at(node.span, message, hint=hint)
        yield replace(found, severity="warning")


def _compute(node: Node | None, file: Path, context: LintContext) -> Iterator[Diagnostic]:
    if node is None or not node.is_text or "${{" in node.text or not node.text.startswith("azureml:"):
        return
    if _COMPUTE_NAME.fullmatch(node.text):
        known = context.computes.names(file)
        name = node.text.removeprefix("azureml:")
        meant = only_close(name, known) if name not in known else None
        if meant is not None:
            message = f"the project's compute files have no '{name}'"
            yield UNKNOWN_COMPUTE.at(node.span, message, f"Did you mean 'azureml:{meant}'?")
        return
    if _RESOURCE_ID.match(node.text):
        return
    name = node.text.removeprefix("azureml:").strip("/").split("/")[-1].split(":")[0].split("@")[0]
    message = f"'{node.text}' is no compute: these have names alone"
    yield COMPUTE_FORM.at(node.span, message, f"Write azureml:{name}.")
