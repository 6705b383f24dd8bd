"""Settings of pipelines and jobs: the jobs that run first and last, services, and what only private features accept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from trainyard.lint.checks import LintContext, LintedFile, check, known_words, number_of
from trainyard.lint.placements import Placement
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Node, shorten
from trainyard.spec.expressions import bindings_of_value, job_bound_to
from trainyard.spec.model import Job, Pipeline
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.rules import OUT_OF_BOUNDS

_KEYS = ("on_init", "on_finalize")


INIT_JOB = Rule("AML218", "init-job", "error").explained(
    summary="`on_init` and `on_finalize` name jobs of the pipeline that are not bound to others.",
    why="They run before all others and after them, so they are two different jobs that are bound to no other, beside "
    "at least one more. Azure ML's client refuses anything else.",
)


@check("pipeline")
def _init_job(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    if not isinstance(pipeline.model, Pipeline):
        return
    jobs = pipeline.model.jobs
    named = {key: node for key in _KEYS if (node := pipeline.body.find("settings", key)) is not None and node.data}
    for key, node in named.items():
        if node.text not in jobs:
            message = f"'{key}' names the job '{shorten(node.text)}', which the pipeline does not have"
            yield INIT_JOB.at(node.span, message, did_you_mean(node.text, jobs))
        elif (bound := _bound_to(jobs[node.text], jobs)) is not None:
            message = f"the job of '{key}' must not be bound to others, but '{node.text}' is bound to '{bound.name}'"
            hint = "Name a job that is bound to the pipeline's own inputs alone."
            yield INIT_JOB.at(node.span, message, hint, [Related(bound.key_span, f"'{bound.name}' is here")])
    if len(named) == len(_KEYS) and len({node.text for node in named.values()}) == 1:
        node = named["on_finalize"]
        message = f"'{node.text}' is both 'on_init' and 'on_finalize'"
        related = [Related(named["on_init"].span, "'on_init' is set here")]
        yield INIT_JOB.at(node.span, message, "Name two different jobs.", related)
    elif named and jobs and not jobs.keys() - {node.text for node in named.values()}:
        key, node = next(iter(named.items()))
        message = f"the pipeline has no job besides those of {' and '.join(repr(each) for each in named)}"
        yield INIT_JOB.at(node.span, message, "Add the jobs that they run before or after.")


def _bound_to(job: Job, jobs: Mapping[str, Job]) -> Job | None:
    """A job that this one reads from, or that reads from it."""
    read = _jobs_read_by(job)
    others = (other for name, other in jobs.items() if name != job.name)
    return next((other for other in others if other.name in read or job.name in _jobs_read_by(other)), None)


def _jobs_read_by(job: Job) -> set[str]:
    return {job_bound_to(binding) for value in job.inputs.values() for binding in bindings_of_value(value.data)}


_NEEDED: dict[str, list[str]] = known_words("needed_by_services")
_TYPES = ("tensor_board", "ssh", "jupyter_lab", "vs_code")


JOB_SERVICE = Rule("AML328", "job-service", "warning").explained(
    summary="A service of a job lacks what it needs, or its type has no underscore.",
    why="The client takes `tensorboard` and `TensorBoard` and drops the service, and sends one without `log_dir`, "
    "which then shows nothing. The job runs without it.",
)


@check("file")
def _job_service(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for holder in file.jobs:
        for name, entry in holder.entries_of("services").items():
            kind = entry.value.find_text("type")
            if kind is not None:
                yield from _service(name, kind, entry.value)


def _service(name: str, kind: Node, service: Node) -> Iterator[Diagnostic]:
    written = kind.text.lower()
    # Any other type is reported by the schema.
    meant = next((known for known in _TYPES if known != written and known.replace("_", "") == written), None)
    if meant is not None:
        message = f"there is no service '{shorten(kind.text)}', and Azure ML's client drops the type"
        yield JOB_SERVICE.at(kind.span, message, f"Write {meant}.", replacement=meant)
    elif written in _NEEDED and service.get(_NEEDED[written][0]) is None and service.get("properties") is None:
        key, what, hint = _NEEDED[written]
        message = f"'{name}' has no '{key}', which says {what}"
        yield JOB_SERVICE.at(kind.span, message, f"Write `{hint}`.")


# The start of Python, torch and NCCL on every machine takes about as long.
_SHORT_SECONDS = 60


@check("placement")
def _ends_at_once(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    """A distributed training that is cancelled before it has begun, most often by minutes taken for seconds."""
    limit = placement.node.find("limits", "timeout") if placement.distribution is not None else None
    seconds = number_of(limit)
    if limit is not None and seconds is not None and 0 < seconds < _SHORT_SECONDS:
        message = f"Azure ML cancels this training after {limit.text} seconds"
        hint = f"It is in seconds: {limit.text} minutes are {60 * seconds:g}."
        yield OUT_OF_BOUNDS.at(limit.span, message, hint, severity="warning")


# azure/ai/ml/constants/_common.py: AZUREML_PRIVATE_FEATURES_ENV_VAR
_VARIABLE = "AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED"
_PRIVATE_NODES = frozenset({"do_while", "if_else", "parallel_for", "import"})
_HINT = f"Set {_VARIABLE}=true where you submit it; the linter is then silent too."


PRIVATE_FEATURE = Rule("AML112", "private-feature", "error").explained(
    summary="Azure ML's client refuses this unless its private features are switched on.",
    why="Jobs of the types `do_while`, `if_else`, `parallel_for` and `import`, and code in a git repository, are in "
    f"private preview: the client accepts them only with the environment variable `{_VARIABLE}=true`. Not reported "
    "where that variable is set.",
)


@check("pipeline")
def _private_feature(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    if _is_switched_on():
        return
    for job in pipeline.model.jobs.values():
        kind = job.node.word("type")
        if kind in _PRIVATE_NODES:
            message = f"jobs of the type {kind} are a private feature of Azure ML's client"
            yield PRIVATE_FEATURE.at(job.node.entries["type"].value.span, message, _HINT)


@check("file")
def _code_in_git(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """Code in a git repository. The client looks at a component's when it is loaded, at a job's on submission."""
    code = file.root.get("code")
    if code is None or not code.text.startswith("git+") or _is_switched_on():
        return
    message = "code in a git repository is a private feature of Azure ML's client"
    severity: Severity = "error" if file.kind == "component" else "warning"
    yield PRIVATE_FEATURE.at(code.span, message, _HINT, severity=severity)


@check("file")
def _jobs_of_their_own(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """Jobs that only work inside a pipeline, or not at all."""
    kind = file.root.get("type")
    if kind is None or file.kind != "other_job":
        return
    if file.root.word("type") == "data_transfer":
        message = "Azure ML's client takes data_transfer only as a job of a pipeline"
        name = file.root.text_of("name") or "copy"
        hint = f"Write it under `jobs: {{{name}: …}}` of a file of `type: pipeline`."
        yield PRIVATE_FEATURE.at(kind.span, message, hint)
    elif file.root.word("type") == "import" and not _is_switched_on():
        message = "import jobs are a private feature: Azure ML's client reads this file, and does not submit it"
        hint = "Use a data_transfer job in a pipeline, with `task: import_data`."
        yield PRIVATE_FEATURE.at(kind.span, message, hint, severity="warning")


def _is_switched_on() -> bool:
    return os.environ.get(_VARIABLE) in ("True", "true")
