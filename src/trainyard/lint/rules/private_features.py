"""What Azure ML's client only accepts with its private features switched on, and what it never submits on its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Severity
from trainyard.spec.documents import Node
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Rule

# azure/ai/ml/constants/_common.py: AZUREML_PRIVATE_FEATURES_ENV_VAR
_VARIABLE = "AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED"
_PRIVATE_NODES = frozenset({"do_while", "if_else", "parallel_for", "import"})
_HINT = f"Set {_VARIABLE}=true where you submit it; the linter is then silent too."


PRIVATE_FEATURE = Rule("AML112", "private-feature", "error").explained(
    summary="Azure ML's client refuses this unless its private features are switched on.",
    why="Jobs of the types `do_while`, `if_else`, `parallel_for` and `import`, and code in a git repository, are in "
    f"private preview: the client accepts them only with the environment variable `{_VARIABLE}=true`. Not reported "
    "where that variable is set.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  prepare:
    component: azureml:prepare:1
‹  repeat:
    type: ‸do_while
    body: ${{parent.jobs.prepare}}
    condition: ${{parent.jobs.prepare.outputs.again}}
    mapping: {again: data}
    limits: {max_iteration_count: 3}
⇒›""",
)


@check("pipeline")
def _private_feature(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    if _is_switched_on():
        return
    for job in pipeline.scope.jobs.values():
        kind = job.node.get("type")
        if kind is not None and kind.text.lower() in _PRIVATE_NODES:
            message = f"jobs of the type {kind.text.lower()} are a private feature of Azure ML's client"
            yield PRIVATE_FEATURE.at(kind.span, message, _HINT)


@check("file")
def _code_in_git(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """Code in a git repository. The client looks at a component's when it is loaded, at a job's on submission."""
    code = file.document.root.get("code")
    if code is None or not code.text.startswith("git+") or _is_switched_on():
        return
    message = "code in a git repository is a private feature of Azure ML's client"
    severity: Severity = "error" if file.kind == "component" else "warning"
    yield PRIVATE_FEATURE.at(code.span, message, _HINT, severity=severity)


@check("file")
def _jobs_of_their_own(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """Jobs that only work inside a pipeline, or not at all."""
    kind = file.document.root.get("type") if file.kind == "other_job" else None
    if kind is None:
        return
    if kind.text.lower() == "data_transfer":
        message = "Azure ML's client takes data_transfer only as a job of a pipeline"
        yield PRIVATE_FEATURE.at(kind.span, message, _in_a_pipeline(file.document.root))
    elif kind.text.lower() == "import" and not _is_switched_on():
        message = "import jobs are a private feature: Azure ML's client reads this file, and does not submit it"
        hint = "Use a data_transfer job in a pipeline, with `task: import_data`."
        yield PRIVATE_FEATURE.at(kind.span, message, hint, severity="warning")


def _in_a_pipeline(root: Node) -> str:
    name = root.get("name")
    return f"Write it under `jobs: {{{name.text if name is not None else 'copy'}: …}}` of a file of `type: pipeline`."


def _is_switched_on() -> bool:
    return os.environ.get(_VARIABLE) in ("True", "true")
