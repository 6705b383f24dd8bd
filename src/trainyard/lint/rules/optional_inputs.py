"""Optional inputs of a pipeline component, and the jobs that need what they are bound to."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.expressions import only_binding
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Rule

OPTIONAL_TO_REQUIRED = Rule("AML219", "optional-to-required", "error").explained(
    summary="An optional input of a pipeline component is bound to a required input of a job.",
    why="When the optional input is not given, the job lacks what it requires. Azure ML's client refuses it, also if "
    "either has a default.",
    example="""\
type: pipeline
name: prepare_and_train
inputs:
  epochs: {type: integer‹, optional: true⇒›}
jobs:
  train:
    component: ./train.yaml
    inputs: {epochs: ‸"${{parent.inputs.epochs}}"}
=== train.yaml
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer}
""",
)


@check("pipeline")
def _optional_to_required(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    optional = {name: port for name, port in pipeline.scope.inputs.items() if port.optional}
    for job in pipeline.scope.jobs.values() if optional else ():
        for name, value in job.inputs.items():
            port = (job.declared_inputs or {}).get(name)
            binding = only_binding(value.text) if isinstance(value.data, str) else None
            if port is None or port.optional or job.has_own_command or binding is None:
                continue
            source = optional.get(".".join(binding.path[2:])) if binding.path[:2] == ("parent", "inputs") else None
            if source is not None:
                message = f"'{source.name}' is optional, but the job '{job.name}' requires its input '{name}'"
                hint = f"Make '{name}' optional in the component, or '{source.name}' required."
                related = [
                    Related(source.key_span, f"'{source.name}' is optional here"),
                    Related(port.key_span, f"'{name}' is required here"),
                ]
                yield OPTIONAL_TO_REQUIRED.at(value.span, message, hint, related)
