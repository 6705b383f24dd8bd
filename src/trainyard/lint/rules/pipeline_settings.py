"""A pipeline's settings that name its jobs: the first, `on_init`, and the last, `on_finalize`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Node, shorten
from trainyard.spec.graph import bindings_of_value, job_bound_to
from trainyard.spec.model import Pipeline
from trainyard.spec.parsed import ParsedPipeline, UsedJob
from trainyard.spec.rule import Rule

_KEYS = ("on_init", "on_finalize")


INIT_JOB = Rule("AML218", "init-job", "error").explained(
    summary="`on_init` and `on_finalize` name jobs of the pipeline that are not bound to others.",
    why="They run before all others and after them, so they are two different jobs that are bound to no other, beside "
    "at least one more. Azure ML's client refuses anything else.",
    example="""\
type: pipeline
settings:
  default_compute: azureml:cpus
  on_finalize: ‹clean_up⇒cleanup›
jobs:
  train:
    component: azureml:train:1
  cleanup:
    component: azureml:cleanup:1
""",
)


@check("pipeline")
def _init_job(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    if not isinstance(pipeline.model, Pipeline):
        return
    jobs = pipeline.scope.jobs
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
        yield INIT_JOB.at(node.span, message, "Name two different jobs.", [_is_set("on_init", named["on_init"])])
    elif named and jobs and not jobs.keys() - {node.text for node in named.values()}:
        key, node = next(iter(named.items()))
        message = f"the pipeline has no job besides those of {' and '.join(repr(each) for each in named)}"
        yield INIT_JOB.at(node.span, message, "Add the jobs that it is about.")


def _is_set(key: str, node: Node) -> Related:
    return Related(node.span, f"'{key}' is set here")


def _bound_to(job: UsedJob, jobs: Mapping[str, UsedJob]) -> UsedJob | None:
    """A job that this one reads from, or that reads from it."""
    read = _jobs_read_by(job)
    others = (other for name, other in jobs.items() if name != job.name)
    return next((other for other in others if other.name in read or job.name in _jobs_read_by(other)), None)


def _jobs_read_by(job: UsedJob) -> set[str]:
    return {job_bound_to(binding) for value in job.inputs.values() for binding in bindings_of_value(value.data)}
