"""Computes: jobs without one, names that no compute has, names that differ by a typo from the project's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from trainyard.lint.checks import LintContext, LintedFile, check, known_words
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import misspelt_name, slips
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Node, shorten
from trainyard.spec.literals import whole_number
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.rules import MISSING_KEY, NOT_A_CHOICE, OUT_OF_BOUNDS

_COMPUTE_NAME = regex(r"azureml:[^:@/\s]+")
_RESOURCE_ID = regex(
    r"(azureml:)?/subscriptions/|azureml://(?:subscriptions|locations)/|azureml:(?://)?virtualclusters/", re.IGNORECASE
)
# The names of computes have no underscores: 2 to 32 letters, digits and hyphens.
_VM_SIZE = regex(r"(?:azureml:)?Standard_[A-Za-z]+[0-9]+\w*", re.IGNORECASE)
_MISSPELT = regex(r"(az[a-z]*):+")
_DEVICE = regex("[cg]pu")
_DEEPEST_PIPELINE = 20
_SHORTEST_IDLE = 60
_LOCATIONS: list[str] = known_words("locations")
_HAVE_A_LOCATION = frozenset({"compute", "workspace", "registry", "feature_store"})
# `ComputeDefaults.VMSIZE` of azure-ai-ml 1.35.2.
_DEFAULT_SIZE = "Standard_DS3_v2"
# A nested pipeline's jobs have their own computes; Spark jobs may have `resources` instead.
_NEED_A_COMPUTE = frozenset({"command", "parallel", "sweep", "automl", "import", "data_transfer"})


COMPUTE_FORM = Rule("AML412", "compute-form", "warning").explained(
    summary="This is not a valid reference to a compute.",
    why="Computes have neither versions nor registries: write `azureml:NAME`, `serverless`, `local`, or the full "
    "resource id.",
)


@check("file")
def _compute_of_job(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    if file.kind in ("command_job", "sweep_job", "other_job", "batch_deployment"):
        yield from _reference(file.root.get("compute"), file.document.file, context)
    if file.kind == "schedule":
        settings = file.root.find("create_job", "settings", "default_compute")
        yield from _typo(settings, file.document.file, context)


@check("pipeline")
def _computes_of_pipeline(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job in pipeline.model.jobs.values():
        yield from _reference(job.node.get("compute"), pipeline.reading.file, context)
    yield from _reference(pipeline.body.find("settings", "default_compute"), pipeline.reading.file, context)


def _reference(node: Node | None, file: Path, context: LintContext) -> Iterator[Diagnostic]:
    if node is not None and node.is_text:
        yield from _form(node)
        yield from _typo(node, file, context)


def _form(node: Node) -> Iterator[Diagnostic]:
    misspelt = _MISSPELT.match(node.text)
    if misspelt is not None and slips(misspelt[1], "azureml") in (1, 2):
        right = f"azureml:{node.text[misspelt.end() :].lstrip(':')}"
        yield COMPUTE_FORM.at(node.span, f"'{shorten(node.text)}' is not a compute", f"Did you mean '{right}'?")
        return
    if "standard_" in node.text.lower() and _VM_SIZE.fullmatch(node.text) is not None:
        message = f"'{shorten(node.text)}' is a VM size, and a compute has a name of its own"
        yield COMPUTE_FORM.at(node.span, message, "Name a cluster, or write `resources: {instance_type: …}`.")
        return
    if not _is_reference(node) or _COMPUTE_NAME.fullmatch(node.text) or _RESOURCE_ID.match(node.text):
        return
    name = node.text.removeprefix("azureml:").strip("/").split("/")[-1].split(":")[0].split("@")[0]
    yield COMPUTE_FORM.at(
        node.span, f"'{node.text}' is not a compute: computes only have names", f"Write azureml:{name}."
    )


@check("file")
def _settings_of_compute(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A time to wait of less than a minute, which is meant in minutes, and a size that nobody chose."""
    root = file.root
    if file.kind != "compute":
        return
    idle, kind = root.get("idle_time_before_scale_down"), root.get("type")
    seconds = whole_number(idle.data) if idle is not None else None
    if idle is not None and seconds is not None and 0 < seconds < _SHORTEST_IDLE:
        message = f"idle machines are given back after {seconds} seconds, before the next job of a pipeline starts"
        yield OUT_OF_BOUNDS.at(idle.span, message, f"Write {seconds * 60}, if these are minutes.", severity="warning")
    has_size = any("size" in name for name in root.entries)  # a misspelt one is reported as that
    if kind is not None and kind.text.lower() in ("amlcompute", "computeinstance") and not has_size:
        message = f"there is no 'size', and Azure ML's client takes {_DEFAULT_SIZE}"
        yield MISSING_KEY.at(root.key_span("type"), message, f"Write `size: {_DEFAULT_SIZE}`.", severity="info")


@check("file")
def _location(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A region of Azure that differs by a typo from one that there is."""
    location = file.root.find_text("location") if file.kind in _HAVE_A_LOCATION else None
    # `West Europe` is the same.
    name = location.text.replace(" ", "").lower() if location is not None else ""
    if location is not None and name:
        message = f"Azure has no location '{shorten(location.text)}'"
        yield from NOT_A_CHOICE.misspelt(location.span, name, _LOCATIONS, message, "warning")


UNKNOWN_COMPUTE = Rule("AML413", "unknown-compute", "warning").explained(
    summary="The name of a compute differs by a typo from one in the project.",
    why="The compute files next to the pipeline define a cluster of almost the same name, and none of this name.",
)


def _typo(node: Node | None, file: Path, context: LintContext) -> Iterator[Diagnostic]:
    if node is None or not _is_reference(node) or not _COMPUTE_NAME.fullmatch(node.text):
        return
    if context.computes.find(node.text, file) is not None:
        return
    name = node.text.removeprefix("azureml:")
    # `cpu-cluster` is not `gpu-cluster` misspelt.
    same_kind = [each for each in context.computes.names(file) if _DEVICE.findall(each) == _DEVICE.findall(name)]
    meant = misspelt_name(name, same_kind)
    if meant is not None:
        message = f"the project's compute files have no '{name}'"
        yield UNKNOWN_COMPUTE.at(node.span, message, f"Did you mean 'azureml:{meant}'?")


def _is_reference(node: Node) -> bool:
    return node.is_text and node.text.startswith("azureml:") and "${{" not in node.text


NO_COMPUTE = Rule("AML414", "no-compute", "error", suppressed_by_errors=True).explained(
    summary="A job has no compute, and its pipeline has no default.",
    why="Azure ML's client rejects the pipeline: `Compute not set`. Write `settings: {default_compute: azureml:NAME}`, "
    "or a `compute:` in the job. Spark jobs may have `resources` instead.",
)


@check("file")
def _no_compute(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """The first job of a pipeline that has no compute, nested pipelines included."""
    root = file.root
    defaults = (root.find("settings", "default_compute"), root.get("compute"))
    if file.kind != "pipeline" or any(node is not None and node.data is not None for node in defaults):
        return
    if any("compute" in key for key in root.entries_of("settings") if key != "default_compute"):
        return  # reported as an unknown key
    for name, entry in root.entries_of("jobs").items():
        missing = _without_compute(entry.value, file.document.file, context, depth=0)
        if missing is None:
            continue
        message = f"the job '{shorten(name)}' has no compute, and the pipeline has no default"
        related = []
        if missing is not entry.value:
            message = f"a job inside '{shorten(name)}' has no compute, and this pipeline has no default"
            related = [Related(missing.span, "this job has no compute")]
        hint = "Write `settings: {default_compute: azureml:NAME}`, or a `compute:` in the job."
        yield NO_COMPUTE.at(entry.key.span, message, hint, related)
        return


def _without_compute(job: Node, file: Path, context: LintContext, depth: int) -> Node | None:
    """A job without a compute: this one, or one inside the pipeline component that it runs; None if there is none."""
    kind, compute = job.word("type") or "command", job.get("compute")
    if kind in _NEED_A_COMPUTE:
        return job if compute is None or compute.data is None else None
    body = job.get("component") if kind == "pipeline" and depth < _DEEPEST_PIPELINE else None
    if body is not None and body.is_text:
        file = Path(os.path.abspath(file.parent / body.text.removeprefix("file:")))
        found = context.pipeline_components.get(file)
        body = found.body if found is not None else None
    entries = body.entries_of("jobs").values() if body is not None else ()
    nested = (_without_compute(entry.value, file, context, depth + 1) for entry in entries if entry.value.is_mapping)
    return next((node for node in nested if node is not None), None)
