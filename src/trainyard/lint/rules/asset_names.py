"""The names of assets: references to those of the repository that differ by a typo, components without a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.settings.suggestions import misspelt_name
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Node
from trainyard.spec.model import Component, PipelineComponent
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.rules.keys import MISSING_KEY

_NAMED = re.compile(r"azureml:([A-Za-z0-9][\w.-]*)(?::([\w.-]+)|@latest)")
_ENVIRONMENT, _COMPONENT, _DATA = "environment", "component", "data or model"
_KEYS_OF_COMPONENTS = frozenset({"command", "jobs", "task", "entry"})
_SHORTEST_NAME = 6


class _Definition(NamedTuple):
    """Where a file of the repository defines an asset, and as which version."""

    name: Node
    version: Node | None


UNKNOWN_ASSET = Rule("AML422", "unknown-asset", "warning").explained(
    summary="The name of an asset differs by a typo from one that the repository defines, or its version comes later.",
    why="A file of the repository defines an environment, a component, data or a model of almost this name, and none "
    "has this name. A version above the one in the repository's only file of that name is a note: one of the two may "
    "have been forgotten.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
  train_again:
    component: ‸azureml:digits_‹trian⇒train›:3
=== train.yaml
type: command
name: digits_train
version: 3
command: echo training
environment: azureml:torch:3
""",
)


@check("command")
def _unknown_asset(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    yield from _asset(command.node.get("environment"), _ENVIRONMENT, context)


@check("pipeline")
def _components(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job in pipeline.scope.jobs.values():
        yield from _asset(job.node.get("component") or job.node.get("trial"), _COMPONENT, context)


@check("file")
def _of_deployments(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    if file.kind in ("online_deployment", "batch_deployment"):
        root = file.document.root
        for key, kind in (("environment", _ENVIRONMENT), ("component", _COMPONENT), ("model", _DATA)):
            yield from _asset(root.get(key), kind, context)


@check("file")
def _data(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    if file.kind in ("pipeline", "command_job", "sweep_job", "other_job"):
        root = file.document.root
        for holder in (root, *(entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)):
            for entry in holder.entries_of("inputs").values():
                path = entry.value.get("path") if entry.value.is_mapping else entry.value
                yield from _asset(path, _DATA, context)


def _asset(reference: Node | None, kind: str, context: LintContext) -> Iterator[Diagnostic]:
    named = _NAMED.fullmatch(reference.text) if reference is not None and reference.is_text else None
    if reference is None or named is None:
        return
    defined = context.cached("assets defined", lambda: _defined(context))[kind]
    found, name = defined.get(named[1]), named[1]
    if found is None and name not in context.names_defined and len(name) >= _SHORTEST_NAME:
        meant = misspelt_name(name, defined)
        if meant is not None:
            message = f"the repository defines no {kind} '{name}'"
            related = [Related(defined[meant][0].name.span, f"'{meant}' is defined here")]
            yield UNKNOWN_ASSET.at(reference.span, message, f"Did you mean '{meant}'?", related)
    elif found is not None and len(found) == 1 and found[0].version is not None:
        own, asked = found[0].version, named[2] or ""
        if own.text.isdecimal() and asked.isdecimal() and int(asked) > int(own.text):
            message = f"the repository defines version {own.text} of '{name}', not {asked}"
            related = [Related(own.span, "its version is set here")]
            yield UNKNOWN_ASSET.at(reference.span, message, "Raise one, or lower the other.", related, severity="info")


def _defined(context: LintContext) -> Mapping[str, dict[str, list[_Definition]]]:
    """What files define, by kind and name, as far as they were read."""
    found: dict[str, dict[str, list[_Definition]]] = {_ENVIRONMENT: {}, _COMPONENT: {}, _DATA: {}}
    files: set[Path] = set()
    for root in context.computes.store.roots():
        name, kind = root.get("name"), _kind(root)
        if name is not None and name.is_text and kind and root.span.file not in files:
            files.add(root.span.file)
            found[kind].setdefault(name.text, []).append(_Definition(name, root.get("version")))
    return found


def _kind(root: Node) -> str:
    if root.entries.keys() & {"image", "build", "conda_file"}:
        return _ENVIRONMENT
    if root.get("version") is not None and root.entries.keys() & _KEYS_OF_COMPONENTS:
        return _COMPONENT
    return _DATA if root.get("path") is not None and root.get("type") is not None else ""


@check("file")
def _without_a_name(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A component that no pipeline uses by its file is there to be registered."""
    root = file.document.root
    if file.kind not in ("component", "pipeline_component") or "name" in root.entries:
        return
    if file.document.file not in context.cached("used files", lambda: _files_of_used_components(context)):
        message = "there is no 'name': a component is registered under one"
        yield MISSING_KEY.at(next(iter(root.entries.values())).key.span, message, "Write `name: …`.")


def _files_of_used_components(context: LintContext) -> frozenset[Path]:
    jobs = (job for pipeline in context.parsed.pipelines for job in pipeline.model.jobs.values())
    named = (job.component for job in jobs if isinstance(job.component, (Component, PipelineComponent)))
    return frozenset(component.file for component in named)
