"""AutoML jobs: settings that the service refuses, though the client takes each of them."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Node, shorten
from trainyard.spec.expressions import only_binding
from trainyard.spec.literals import whole_number
from trainyard.spec.model import PARAMETER_TYPES
from trainyard.spec.rule import Rule
from trainyard.spec.rules.keys import UNKNOWN_KEY

# The first may not exceed the second.
_LIMITS = (
    ("max_concurrent_trials", "max_trials", "trials at a time", "trials in total"),
    ("trial_timeout_minutes", "timeout_minutes", "minutes for a trial", "minutes for the whole job"),
)
_DATA = ("training_data", "validation_data", "test_data")


AUTOML_CONTRADICTION = Rule("AML327", "automl-contradiction", "warning").explained(
    summary="The settings of an AutoML job contradict each other, or lack what its task needs.",
    why="The client sends them as they are, and the service refuses the job. A forecast needs the column of times; the "
    "data of AutoML are MLTables; an algorithm is either allowed or blocked; a part of a limit is not more than the "
    "whole.",
    example="""\
type: automl
task: ‸forecasting
primary_metric: normalized_root_mean_squared_error
target_column_name: sales
training_data: {type: mltable, path: "azureml:sales:3"}
compute: azureml:cpus
forecasting: {‹⇒time_column_name: day, ›forecast_horizon: 14}
""",
)


@check("file")
def _automl_contradiction(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    root = file.document.root
    for job in (root, *(entry.value for entry in root.entries_of("jobs").values())):
        kind = job.get("type") if job.is_mapping else None
        if kind is not None and kind.text.lower() == "automl":
            yield from _forecast(job)
            yield from _positive_label(job)
            yield from _limits(job)
            yield from _algorithms(job)
            yield from _tables(job, root)
            yield from _validation(job)
            yield from _exit_score(job)
            yield from _outputs(job)


def _forecast(job: Node) -> Iterator[Diagnostic]:
    task, settings = job.get("task"), job.get("forecasting")
    if task is None or task.text.lower() != "forecasting":
        return
    if settings is None or (settings.is_mapping and settings.get("time_column_name") is None):
        message = "a forecast needs the column of times, and there is no 'time_column_name'"
        yield AUTOML_CONTRADICTION.at(task.span, message, "Write `forecasting: {time_column_name: …}`.")


def _positive_label(job: Node) -> Iterator[Diagnostic]:
    """The label that counts as positive, which only a classification has."""
    task, label = job.get("task"), job.entries.get("positive_label")
    if task is not None and label is not None and task.text.lower() in ("regression", "forecasting"):
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
    score, task = job.find("limits", "exit_score"), job.get("task")
    is_share = task is not None and "classification" in task.text.lower()
    if score is not None and isinstance(score.data, (int, float)) and score.data > 1 and is_share:
        message = f"no trial reaches an exit_score of {score.text}: the metrics of classification end at 1"
        yield AUTOML_CONTRADICTION.at(score.span, message, f"Write {float(score.data) / 100:g}, if this is per cent.")


def _outputs(job: Node) -> Iterator[Diagnostic]:
    """Outputs: an AutoML job has one, the best model, in MLflow's form."""
    for name, entry in job.entries_of("outputs").items():
        if name != "best_model":
            message = f"an AutoML job has one output, named 'best_model', and not '{shorten(name)}'"
            yield AUTOML_CONTRADICTION.at(entry.key.span, message, "Name it 'best_model'.")
        kind = entry.value.get("type") if entry.value.is_mapping else None
        if name == "best_model" and kind is not None and kind.text.lower() in ("custom_model", "triton_model"):
            message = f"AutoML's best model is an mlflow_model, not a {kind.text}"
            yield AUTOML_CONTRADICTION.at(kind.span, message, "Write mlflow_model.", replacement="mlflow_model")


def _limits(job: Node) -> Iterator[Diagnostic]:
    for smaller, larger, what, whole in _LIMITS:
        part, most = job.find("limits", smaller), job.find("limits", larger)
        least, limit = (whole_number(node.data) if node is not None else None for node in (part, most))
        if part is not None and most is not None and least is not None and limit is not None and least > limit:
            message = f"{least} {what}, but only {limit} {whole}"
            related = [Related(most.span, f"'{larger}' is set here")]
            yield AUTOML_CONTRADICTION.at(part.span, message, f"Write {limit} or less.", related)


def _algorithms(job: Node) -> Iterator[Diagnostic]:
    allowed, blocked = (job.find("training", f"{which}_training_algorithms") for which in ("allowed", "blocked"))
    names = {item.text.lower(): item for item in allowed.items} if allowed is not None else {}
    for item in blocked.items if blocked is not None else ():
        if item.text.lower() in names:
            message = f"'{item.text}' is both allowed and blocked"
            related = [Related(names[item.text.lower()].span, "it is allowed here")]
            yield AUTOML_CONTRADICTION.at(item.span, message, "Remove it from one of the two lists.", related)


def _tables(job: Node, root: Node) -> Iterator[Diagnostic]:
    """Inputs of a pipeline that are not an mltable, and that AutoML reads; the schema knows what stands in place."""
    for key in _DATA:
        data = job.get(key)
        binding = only_binding(data.text) if data is not None and data.is_text else None
        if binding is None or binding.path[:2] != ("parent", "inputs"):
            continue
        kind = root.find("inputs", ".".join(binding.path[2:]), "type")
        if kind is not None and kind.text.lower() not in ("mltable", *PARAMETER_TYPES) and "${{" not in kind.text:
            message = f"AutoML reads its {key.replace('_', ' ')} as an MLTable, and this is a {kind.text}"
            hint = "Write `type: mltable`, and put a file MLTable into the folder."
            yield AUTOML_CONTRADICTION.at(kind.span, message, hint)
