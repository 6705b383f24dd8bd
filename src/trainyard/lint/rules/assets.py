"""References to registered assets and to data: their form, their versions, curated environments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trainyard.lint.checks import DATA_OR_MODEL, LintContext, LintedFile, check, known_words
from trainyard.lint.rules.data_paths import data_in
from trainyard.project_files import root_of
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, closest, misspelt_name, only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Node, beginning_of, shorten
from trainyard.spec.parsed import BAD_REFERENCE, ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.rules import MISSING_KEY

_CURATED: list[str] = known_words("curated_environments")
_CURATED_OF_OLD: dict[str, str] = known_words("curated_environments_of_old")
_FAMILY = regex(r"(acpt|tensorflow|sklearn)-")
_VERSIONED = regex(r"(pytorch-|tensorflow-|sklearn-|cuda)([0-9]+(?:\.[0-9]+)?)")
_REGISTRY_ENVIRONMENT = regex(r"azureml://registries/azureml/environments/([^/]+)(?:/|$)")
_NAME_ONLY = regex(r"azureml:(?!/)[^:@/\s]+")
_DATA_ADDRESS = regex(r"azureml://([^/]*)")
_DATASTORE_FOLDER = regex(r"azureml://datastores/([^/$]*)/([^/$]+)(?:/|$)")
_DATA_ADDRESSES = ("datastores", "subscriptions", "registries", "locations", "jobs")
_ASSET = regex(r"azureml:[^:@/\s]+(?::[^:@/\s]+|@[^:@/\s]+)|azureml:/+(?:subscriptions|locations)/.*", re.IGNORECASE)
_NAME_AND_VERSION = regex(r"(?:azureml:)?(?!file:|https?:)[A-Za-z0-9][\w.-]*(?::[\w.-]+|@[A-Za-z]\w*)")
_LOCAL_WITH_SIGN = regex(r"(?![A-Za-z][A-Za-z0-9+.-]*:|[/~])(?=.*/)[^${}\\]*[:@][^${}\\]*")
_REGISTRY_ASSET = regex(r"azureml://registries/[^/]+/([^/]+)(?:/[^/]+(?:/([^/]+)(?:/[^/]+)?)?)?/?$")
_ASSET_FOLDERS = ("components", "environments", "models", "data", "codes")
_LABELLED = regex(r"(azureml:[^:@/\s]+)@([^:@/\s]+)")
_LATEST_AS_VERSION = regex(r"azureml:(?!/)[^:@/\s]+:latest")
_ASSET_NAME = regex(r"""^name:[ \t]*["']?([\w.-]+)""", re.MULTILINE)
_MOST_FOLDERS = 20_000
_LATEST = regex(r"/labels/latest$|@latest$", re.IGNORECASE)


NO_VERSION = Rule("AML409", "no-version", "error").explained(
    summary="A reference to a registered asset has no version.",
    why="`azureml:NAME` alone loads, but Azure ML's client refuses it on submission. Write `azureml:NAME:VERSION` or "
    "`azureml:NAME@latest`. This is a warning in a registry's address, and for names that begin with `AzureML-`: the "
    "client sends those as they are.",
)


@check("command")
def _environment(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    yield from _judged(command.node.get("environment"), "environment", context)


@check("pipeline")
def _components(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job in pipeline.model.jobs.values():
        yield from _judged(job.node.get("component") or job.node.get("trial"), "component", context)


@check("file")
def _of_parallel_jobs_and_deployments(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for job in file.jobs_of("parallel"):
        yield from _judged(job.find("task", "environment"), "environment", context)
    if file.kind in ("online_deployment", "batch_deployment"):
        for what in ("environment", "model", "component"):
            yield from _judged(file.root.get(what), what, context, is_of_deployment=True)


def _judged(
    node: Node | None, what: str, context: LintContext, *, is_of_deployment: bool = False
) -> Iterator[Diagnostic]:
    """What is wrong with a reference. Where a deployment's has no version, Azure ML's client takes the latest."""
    if node is None or not node.is_text:
        return
    yield from _form(node, what)
    if not is_of_deployment:
        if _NAME_ONLY.fullmatch(node.text):
            message, is_sent = f"'{node.text}' has no version", node.text.startswith("azureml:AzureML-")
            severity: Severity = "warning" if is_sent and what == "environment" else "error"
            yield NO_VERSION.at(node.span, message, f"Write {node.text}:VERSION.", severity=severity)
        if _LATEST.search(node.text):
            message = f"this {what} changes whenever a new version is registered"
            hint = "Write /versions/N instead of /labels/latest, :N instead of @latest."
            yield MOVING_VERSION.at(node.span, message, hint)
    if what == "environment":
        yield from _curated(node, context)
    yield from _unknown(node, what, context)


@check("file")
def _data(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """Data paths: the inputs and outputs of jobs and pipelines, and where an asset is."""
    for path, _, is_input in data_in(file):
        if file.kind != "asset" and _NAME_ONLY.fullmatch(path.text):
            message, hint = f"'{path.text}' has no version", f"Write {path.text}:VERSION, or {path.text}@latest."
            yield NO_VERSION.at(path.span, message, hint, severity="error" if is_input else "warning")
        if file.kind != "asset" and path.text.startswith("azureml:") and not path.text.startswith("azureml:/"):
            yield from _form(path, "data")
        yield from _wrong_address(path)
        if is_input:
            yield from _taken_otherwise(path, file)
    if file.kind in ("pipeline", "command_job", "sweep_job", "other_job"):
        for entry in (entry for job in file.jobs for entry in job.entries_of("inputs").values()):
            named = entry.value.get("path") if entry.value.is_mapping else entry.value
            yield from _unknown(named, DATA_OR_MODEL, context)


def _wrong_address(path: Node) -> Iterator[Diagnostic]:
    """An `azureml://` address that nothing can be read from. One that resembles no known one may be a newer kind."""
    address, folder = _DATA_ADDRESS.match(path.text), _DATASTORE_FOLDER.match(path.text)
    if address is not None and address[1] not in _DATA_ADDRESSES:
        message = f"'azureml://{address[1]}/' is not an address of data"
        meant = closest(address[1], _DATA_ADDRESSES)
        hint = f"Did you mean 'azureml://{meant}/'?" if meant else "Data is stored in azureml://datastores/NAME/paths/…"
        yield BAD_REFERENCE.at(path.span, message, hint, severity="error" if meant else "warning")
    elif folder is not None and not folder[1]:
        message = "this address names no datastore"
        yield BAD_REFERENCE.at(path.span, message, "Write azureml://datastores/NAME/paths/…")
    elif folder is not None and folder[2] != "paths":
        message = f"expected 'paths' after the name of the datastore, not '{shorten(folder[2])}'"
        yield BAD_REFERENCE.at(path.span, message, f"Write azureml://datastores/{folder[1]}/paths/…")


def _taken_otherwise(path: Node, file: LintedFile) -> Iterator[Diagnostic]:
    """An asset that is given for the path of a new one, and a local path that a job takes for the name of an asset.

    As azure-ai-ml 1.35.2 reads them (`_check_and_upload_path`, `_resolve_job_input`).
    """
    text = path.text
    if file.kind == "asset" and _NAME_AND_VERSION.fullmatch(text):
        if not os.path.lexists(file.document.file.parent / text):
            message = f"a new asset's path is a folder, a file or an address, and '{shorten(text)}' names an asset"
            yield BAD_REFERENCE.at(path.span, message, "Jobs name it by `path: azureml:NAME:VERSION`, without a copy.")
    elif file.kind != "asset" and _LOCAL_WITH_SIGN.fullmatch(text):
        message = "Azure ML's client takes a relative path with ':' or '@' for the name of an asset, and refuses it"
        yield BAD_REFERENCE.at(path.span, message, "Rename the folder or file.")


MOVING_VERSION = Rule("AML410", "moving-version", "warning", pedantic=True).explained(
    summary="The reference follows the latest version of an asset.",
    why="A training that runs today may fail tomorrow, and every new version makes steps run again. Pin the version.",
)


UNKNOWN_CURATED_ENVIRONMENT = Rule("AML411", "unknown-curated-environment", "warning").explained(
    summary="Azure ML's registry has no known curated environment of this name.",
    why="Only reported for names of old tutorials, with what is there today, and for names that resemble the ACPT, "
    "TensorFlow and scikit-learn families. Newer versions than those known here, and environments that this repository "
    "defines, are not reported. Check with `az ml environment list --registry-name azureml`.",
)


def _curated(environment: Node, context: LintContext) -> Iterator[Diagnostic]:
    match = _REGISTRY_ENVIRONMENT.match(environment.text)
    if match is not None and (today := _CURATED_OF_OLD.get(match[1])) is not None:
        message = f"'{match[1]}' is a name of old tutorials, which the registry does not have"
        hint = (
            f"Use azureml://registries/azureml/environments/{today}/versions/N, and test your script with its versions."
        )
        yield UNKNOWN_CURATED_ENVIRONMENT.at(environment.span, message, hint)
        return
    if match is None or match[1] in _CURATED or not _FAMILY.match(match[1]):
        return
    if not _is_newer_than_known(match[1]) and not _is_defined(match[1], environment.span.file, context):
        hint = close_match(match[1], _CURATED) or "`az ml environment list --registry-name azureml` lists them."
        yield UNKNOWN_CURATED_ENVIRONMENT.at(environment.span, f"unknown curated environment '{match[1]}'", hint)


def _is_defined(name: str, file: Path, context: LintContext) -> bool:
    """Whether the repository defines an environment: in a file that was read, or in an `asset.yaml` of a registry's."""
    if name in context.names_defined:
        return True
    root = root_of([file])
    return name in context.cached(("assets of registries", root), lambda: _names_of_registry_assets(root))


def _names_of_registry_assets(root: Path) -> frozenset[str]:
    found: set[str] = set()
    for folder, folders, names in islice(os.walk(root), _MOST_FOLDERS):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in {"asset.yaml", "asset.yml"}.intersection(names):
            found.update(_ASSET_NAME.findall(beginning_of(Path(folder, name))))
    return frozenset(found)


def _is_newer_than_known(name: str) -> bool:
    """Whether the framework or CUDA of a curated environment is newer than all known ones of its family."""
    known = [(part, _numbers(version)) for each in _CURATED for part, version in _VERSIONED.findall(each)]
    found = ((part, _numbers(version)) for part, version in _VERSIONED.findall(name))
    return any(
        version > max((other for other_part, other in known if other_part == part), default=version)
        for part, version in found
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _form(node: Node, what: str) -> Iterator[Diagnostic]:
    """An `azureml:` reference whose form no asset has."""
    text = node.text
    label = _LABELLED.fullmatch(text)
    if label is not None and label[2] != "latest" and (label[2].isdecimal() or only_close(label[2], ["latest"])):
        right = f"{label[1]}:{label[2]}" if label[2].isdecimal() else f"{label[1]}@latest"
        message = f"'{label[2]}' is not a label: the only one is '@latest', and versions follow a colon"
        yield BAD_REFERENCE.at(node.span, message, f"Write {right}.", severity="warning", replacement=right)
        return
    if _LATEST_AS_VERSION.fullmatch(text):
        right = f"{text[: -len(':latest')]}@latest"
        message = f"'latest' after a colon is a version of that name; the label is '{right}'"
        yield BAD_REFERENCE.at(node.span, message, f"Write {right}.", severity="warning", replacement=right)
        return
    if not text.startswith("azureml:") or "${{" in text or _NAME_ONLY.fullmatch(text) or _ASSET.fullmatch(text):
        return
    match = _REGISTRY_ASSET.match(text)
    if match is not None and match[1] in _ASSET_FOLDERS and match[2] is None:
        yield NO_VERSION.at(node.span, f"this {what} has no version", f"Write {text}/versions/N.", severity="warning")
    elif match is None or match[1] not in _ASSET_FOLDERS or match[2] not in ("versions", "labels"):
        message = f"'{shorten(text)}' is not a valid reference to a registered {what}"
        hint = (
            f"Write azureml:NAME:VERSION, azureml:NAME@LABEL or azureml://registries/REGISTRY/{what}s/NAME/versions/N."
        )
        yield BAD_REFERENCE.at(node.span, message, hint, severity="warning")


_NAMED = regex(r"azureml:([A-Za-z0-9][\w.-]*)(?::([\w.-]+)|@latest)")
_SHORTEST_NAME = 6


UNKNOWN_ASSET = Rule("AML422", "unknown-asset", "warning").explained(
    summary="The name of an asset differs by a typo from one that the repository defines, or its version comes later.",
    why="A file of the repository defines an environment, a component, data or a model of almost this name, and none "
    "has this name. A version above the one in the repository's only file of that name is a note: one of the two may "
    "have been forgotten.",
)


def _unknown(reference: Node | None, what: str, context: LintContext) -> Iterator[Diagnostic]:
    named = _NAMED.fullmatch(reference.text) if reference is not None and reference.is_text else None
    if reference is None or named is None:
        return
    kind = DATA_OR_MODEL if what == "model" else what
    defined = context.assets_defined[kind]
    found, name = defined.get(named[1]), named[1]
    if found is None and name not in context.names_defined and len(name) >= _SHORTEST_NAME:
        meant = misspelt_name(name, defined)
        if meant is not None:
            message = f"the repository defines no {kind} '{name}'"
            related = [Related(defined[meant][0].entries["name"].value.span, f"'{meant}' is defined here")]
            yield UNKNOWN_ASSET.at(reference.span, message, f"Did you mean '{meant}'?", related)
    elif found is not None and len(found) == 1:
        own, asked = found[0].get("version"), named[2] or ""
        if own is not None and own.text.isdecimal() and asked.isdecimal() and int(asked) > int(own.text):
            message = f"the repository defines version {own.text} of '{name}', not {asked}"
            related = [Related(own.span, "its version is set here")]
            yield UNKNOWN_ASSET.at(reference.span, message, "Raise one, or lower the other.", related, severity="info")


@check("file")
def _without_a_name(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A component that no pipeline uses by its file is there to be registered."""
    root = file.root
    if file.kind not in ("component", "pipeline_component") or "name" in root.entries:
        return
    if not context.is_named_by_pipelines(file.document.file):
        message = "there is no 'name': a component is registered under one"
        yield MISSING_KEY.at(next(iter(root.entries.values())).key.span, message, "Write `name: …`.")
