"""Jobs of other types: which data each kind of data transfer takes and makes, and AutoML jobs that Azure ML refuses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from trainyard.lint.checks import LintContext, LintedFile, check, contradicting_limits
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Node, shorten
from trainyard.spec.expressions import name_bound
from trainyard.spec.model import PARAMETER_TYPES
from trainyard.spec.rule import Rule
from trainyard.spec.rules import UNKNOWN_KEY

# The data that goes with each kind of source or sink outside of Azure ML.
_IMPORTED = {"database": "mltable", "file_system": "uri_folder"}
_EXPORTED = {"database": "uri_file", "file_system": "uri_folder"}


DATA_TRANSFER = Rule("AML317", "data-transfer", "error").explained(
    summary="A data transfer has data that its kind does not take or make.",
    why="`copy_data` has one output, of the type of its only input, or a uri_folder for several. `import_data` has one "
    "output `sink`: an mltable from a database, a uri_folder from a file system. `export_data` has one input `source`: "
    "a uri_file for a database. Azure ML's client refuses anything else.",
)


@check("file")
def _data_transfer(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for job in file.jobs_of("data_transfer"):
        task = job.word("task") if job.get("component") is None else ""
        if task == "copy_data":
            yield from _copy(job)
        elif task == "import_data" and file.kind != "component":
            yield from _only(job, "outputs", "sink", task)
            yield from _goes_with(job, "source", _IMPORTED, "outputs", "sink")
        elif task == "export_data" and file.kind != "component":
            yield from _only(job, "inputs", "source", task)
            yield from _goes_with(job, "sink", _EXPORTED, "inputs", "source")


def _copy(job: Node) -> Iterator[Diagnostic]:
    outputs, inputs = job.entries_of("outputs"), job.entries_of("inputs")
    if len(outputs) > 1:
        second = list(outputs.values())[1]
        message = f"copy_data has one output, and this has {len(outputs)}"
        yield DATA_TRANSFER.at(second.key.span, message, "Write a job for each.")
        return
    read = [entry.value.find_text("type") for entry in inputs.values()]
    made = next((entry.value.find_text("type") for entry in outputs.values()), None)
    if made is None or not read or None in read:
        return
    expected = "uri_folder" if len(read) > 1 else getattr(read[0], "text", "")
    if made.text != expected:
        several = "several inputs" if len(read) > 1 else f"an input of type {expected}"
        message = f"copy_data makes a {expected} of {several}, not a {made.text}"
        # The client looks at components; a job of its own is refused by the service.
        severity: Severity = "error" if job.get("name") is not None else "warning"
        yield DATA_TRANSFER.at(made.span, message, f"Write `type: {expected}`.", severity=severity)


def _only(job: Node, kind: str, name: str, task: str) -> Iterator[Diagnostic]:
    for other, entry in job.entries_of(kind).items():
        if other != name:
            message = f"{task} has one {kind.removesuffix('s')}, named '{name}', and not '{other}'"
            yield DATA_TRANSFER.at(entry.key.span, message, f"Name it '{name}'.")


def _goes_with(job: Node, outside: str, types: dict[str, str], kind: str, name: str) -> Iterator[Diagnostic]:
    place = job.word(outside, "type")
    expected, written = types.get(place), job.find_text(kind, name, "type")
    if expected is not None and written is not None and written.text != expected:
        message = f"the {name} of a {place.replace('_', ' ')} is a {expected}, not a {written.text}"
        yield DATA_TRANSFER.at(written.span, message, f"Write `type: {expected}`.")


_DATA = ("training_data", "validation_data", "test_data")


AUTOML_CONTRADICTION = Rule("AML327", "automl-contradiction", "warning").explained(
    summary="The settings of an AutoML job contradict each other, or lack what its task needs.",
    why="The client sends them as they are, and the service refuses the job. A forecast needs the column of times; the "
    "data of AutoML are MLTables; an algorithm is either allowed or blocked; a part of a limit is not more than the "
    "whole.",
)


@check("file")
def _automl_contradiction(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for job in file.jobs_of("automl"):
        findings = (_forecast, _positive_label, _algorithms, _validation, _exit_score, _outputs)
        yield from chain.from_iterable(each(job) for each in findings)
        yield from contradicting_limits(job, AUTOML_CONTRADICTION)
        yield from _tables(job, file.root)


def _forecast(job: Node) -> Iterator[Diagnostic]:
    task, settings = job.get("task"), job.get("forecasting")
    is_missing = settings is None or (settings.is_mapping and settings.get("time_column_name") is None)
    if task is not None and job.word("task") == "forecasting" and is_missing:
        message = "a forecast needs the column of times, and there is no 'time_column_name'"
        yield AUTOML_CONTRADICTION.at(task.span, message, "Write `forecasting: {time_column_name: …}`.")


def _positive_label(job: Node) -> Iterator[Diagnostic]:
    """The label that counts as positive, which only a classification has."""
    task, label = job.get("task"), job.entries.get("positive_label")
    if task is not None and label is not None and job.word("task") in ("regression", "forecasting"):
        message = f"unknown key 'positive_label' for `task: {task.text}`; Azure ML's client refuses the file"
        yield UNKNOWN_KEY.at(label.key.span, message, "Only a classification has labels.")


def _validation(job: Node) -> Iterator[Diagnostic]:
    """Folds or a share of the training data, which are for jobs without data for validation."""
    data = job.entries.get("validation_data")
    for key in ("n_cross_validations", "validation_data_size"):
        other = job.entries.get(key)
        if data is not None and other is not None and other.value.data is not None and data.value.data is not None:
            message = f"'{key}' has no effect: it splits the training data where no 'validation_data' is given"
            related = [Related(data.key.span, "the data are given here")]
            yield AUTOML_CONTRADICTION.at(other.key.span, message, "Remove one of them.", related, severity="info")


def _exit_score(job: Node) -> Iterator[Diagnostic]:
    """A score to stop at that no trial reaches, since metrics of classification are shares."""
    score, is_share = job.find("limits", "exit_score"), "classification" in job.word("task")
    if score is not None and isinstance(score.data, (int, float)) and score.data > 1 and is_share:
        message = f"no trial can reach an exit_score of {score.text}: metrics of classification are at most 1"
        yield AUTOML_CONTRADICTION.at(score.span, message, f"Write {float(score.data) / 100:g}, if it is a percentage.")


def _outputs(job: Node) -> Iterator[Diagnostic]:
    """Outputs: an AutoML job has one, the best model, in MLflow's form."""
    for name, entry in job.entries_of("outputs").items():
        if name != "best_model":
            message = f"an AutoML job has one output, named 'best_model', and not '{shorten(name)}'"
            yield AUTOML_CONTRADICTION.at(entry.key.span, message, "Name it 'best_model'.")
        kind = entry.value.get("type")
        if name == "best_model" and kind is not None and entry.value.word("type") in ("custom_model", "triton_model"):
            message = f"AutoML's best model is an mlflow_model, not a {kind.text}"
            yield AUTOML_CONTRADICTION.at(kind.span, message, "Write mlflow_model.", replacement="mlflow_model")


def _algorithms(job: Node) -> Iterator[Diagnostic]:
    allowed = {item.text.lower(): item for item in job.items_of("training", "allowed_training_algorithms")}
    for item in job.items_of("training", "blocked_training_algorithms"):
        if item.text.lower() in allowed:
            message = f"'{item.text}' is both allowed and blocked"
            related = [Related(allowed[item.text.lower()].span, "it is allowed here")]
            yield AUTOML_CONTRADICTION.at(item.span, message, "Remove it from one of the two lists.", related)


def _tables(job: Node, root: Node) -> Iterator[Diagnostic]:
    """Inputs of a pipeline that are not an mltable, and that AutoML reads; the schema knows what stands in place."""
    for key in _DATA:
        data = job.get(key)
        bound = name_bound(data.text, "parent.inputs") if data is not None else None
        kind = root.find("inputs", bound, "type") if bound is not None else None
        if kind is not None and kind.text.lower() not in ("mltable", *PARAMETER_TYPES) and "${{" not in kind.text:
            message = f"AutoML reads its {key.replace('_', ' ')} as an MLTable, and this is a {kind.text}"
            hint = "Write `type: mltable`, and put a file MLTable into the folder."
            yield AUTOML_CONTRADICTION.at(kind.span, message, hint)
