"""From a file to the model: the functions that everybody else calls."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.spec.components import read_component
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import Document
from trainyard.spec.file_kinds import KIND_NAMES, Kind, is_other_resource, kind_of
from trainyard.spec.findings import DocumentStore, Findings
from trainyard.spec.model import Component, Pipeline
from trainyard.spec.parsed import DATA_NOT_FOUND, NOT_SEEN_OFFLINE, Parsed, Reading
from trainyard.spec.pipelines import ComponentCache, read_pipeline, read_standalone_job
from trainyard.spec.ports import RUN_OUTPUT_NOT_FOUND
from trainyard.spec.rules import (
    BAD_ASSET_NAME,
    BAD_TEXT,
    MISSING_KEY,
    NOT_A_CHOICE,
    NOT_RUN_LOCALLY,
    OUT_OF_BOUNDS,
    UNKNOWN_KEY,
    UNKNOWN_KIND,
    WRONG_TYPE,
    YAML_TRAP,
)
from trainyard.spec.schema_checks import check_schema

_STANDALONE_JOBS: tuple[Kind, ...] = ("command_job", "sweep_job", "other_job")
_RUNS_HERE: tuple[Kind, ...] = (*_STANDALONE_JOBS, "pipeline", "pipeline_component")


def load_job(
    file: Path, store: DocumentStore | None = None, *, strict: bool = False, on_azure: bool = False
) -> Pipeline:
    """Read a pipeline and every component it names, or a standalone job as a pipeline with one job, and check bindings.

    `store` holds files that were read already. Paths in the model, and in what is raised, are absolute. Raises
    SpecError with all that Azure ML refuses, and if `strict` with all that is wrong: YAML, bindings, types of literals,
    missing files, cycles, and what only Azure ML has (components and code kept there, AutoML and data transfer). The
    latter not if it is for a run `on_azure`: such jobs have no component then, or none with code.
    """
    reading = _open(file, _RUNS_HERE, "pipeline", store or DocumentStore())
    kind = kind_of(reading.document) or "pipeline"
    read = read_standalone_job if kind in _STANDALONE_JOBS else read_pipeline
    components = ComponentCache()
    pipeline = read(reading.document.root, reading, components)
    tolerated = _TOLERATED | _NOT_HERE if on_azure else _TOLERATED
    _raise_findings(reading, kind, components, tolerated, strict=strict)
    if not pipeline.jobs and not pipeline.reference:
        # Azure ML's client takes it, and there is nothing to run.
        raise SpecError(MISSING_KEY.at(pipeline.span, "the pipeline has no jobs", "Write `jobs:`."))
    return pipeline


def require_job(file: Path, store: DocumentStore, *, on_azure: bool = False) -> Kind | None:
    """Return the kind of a pipeline or another job; None if its content does not tell.

    Raise SpecError for a component, an environment, a deployment and everything else that is not a job. A pipeline
    component runs here as a job would, but not `on_azure`.
    """
    readable = (*_STANDALONE_JOBS, "pipeline") if on_azure else _RUNS_HERE
    return kind_of(_open(file, readable, "pipeline", store).document)


def load_component(file: Path) -> Component:
    """Read a command component. Raises SpecError with all that is wrong."""
    reading = _open(file, ("component", "command_job"), "component", DocumentStore())
    component = read_component(reading.document.root, reading)
    _raise_findings(reading, "component", ComponentCache(), _TOLERATED, strict=True)
    return component


def _open(file: Path, readable: tuple[Kind, ...], wanted: Kind, store: DocumentStore) -> Reading:
    """Read a file that is of one of these kinds; without a `$schema`, files that declare ports look like files that
    set them."""
    findings = Findings()
    document = store.read_mapping(Path(os.path.abspath(file)))
    findings.diagnostics.extend(document.problems)
    kind = kind_of(document)
    is_other = kind is None and is_other_resource(document.root)
    if is_other or (kind is not None and kind not in readable):
        findings.add(_wrong_kind(document, kind, wanted))
        raise SpecError(findings.diagnostics)
    return Reading(document, store, findings, Parsed())


def _wrong_kind(document: Document, found: Kind | None, wanted: Kind) -> Diagnostic:
    root = document.root
    type_node = root.get("type")
    is_what = KIND_NAMES[found] if found is not None else "another resource"
    message = f"this is {is_what}, not {KIND_NAMES[wanted]}"
    hint = ""
    if wanted == "pipeline" and found in ("component", "command_job"):
        hint = "Name a file of `type: pipeline`, with a job that uses this."
    return UNKNOWN_KIND.at(type_node.span if type_node is not None else root.span, message, hint=hint)


# A string that YAML misread is worth a word from the linter; what is sent is clear enough to run. Data that is not
# there may still be given from outside (`run --set inputs.X=PATH`); whoever needs it says that it is missing.
_TOLERATED = frozenset({YAML_TRAP.id, DATA_NOT_FOUND.id, RUN_OUTPUT_NOT_FOUND.id})
_NOT_HERE = frozenset({NOT_SEEN_OFFLINE.id, NOT_RUN_LOCALLY.id})


# What a reader leaves out, a schema reports as one of these.
_WRONG_SHAPES = frozenset(
    {rule.id for rule in (MISSING_KEY, WRONG_TYPE, NOT_A_CHOICE, OUT_OF_BOUNDS, BAD_TEXT, BAD_ASSET_NAME)}
)


def _raise_findings(
    reading: Reading, kind: Kind, components: ComponentCache, tolerated: frozenset[str], *, strict: bool
) -> None:
    """Raise SpecError if there are findings. `kind` is what the file was read as, `components` what it names."""
    findings = reading.findings
    if findings.left_out:
        findings.diagnostics.extend(_wrong_shapes(reading.document, kind))
        for file in reading.store.files:
            named = components.kind_of_read(file)
            if named is not None:
                findings.diagnostics.extend(_wrong_shapes(reading.store.peek(file), named))
    errors = [error for error in findings.errors() if strict or stops_a_run(error)]
    if any(error.rule not in tolerated for error in errors):
        raise SpecError(errors)


def _wrong_shapes(document: Document, kind: Kind) -> list[Diagnostic]:
    """The errors that the schema of a kind of file finds in the shape of its values."""
    found = check_schema(document, kind)
    return [error for error in found if error.rule in _WRONG_SHAPES and error.severity == "error"]


def stops_a_run(diagnostic: Diagnostic) -> bool:
    """Return whether Azure ML refuses a file for this error.

    The client refuses unknown keys of jobs, not those of components: lint's message says which.
    """
    if diagnostic.rule == UNKNOWN_KEY.id:
        return "client refuses the file" in diagnostic.message
    if diagnostic.rule == BAD_TEXT.id and "${{" in diagnostic.message:
        return False  # a bound count, as components of Azure ML's own registry have: a run knows its value
    return diagnostic.stops_a_run
