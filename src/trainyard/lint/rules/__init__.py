"""The rules, a file per family: tables with an example each, and the checks that no reader of `spec` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainyard.lint.rule import by_id
from trainyard.lint.rules import (
    bindings,
    deepspeed,
    keys,
    local_run,
    machines,
    references,
    safety,
    script,
    silencing,
    sweeps,
    types,
    yaml_text,
)
from trainyard.lint.surroundings import Surroundings
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Document
from trainyard.spec.kinds import Kind
from trainyard.spec.seen import SeenCommand, SeenPipeline

RULES = by_id(
    yaml_text.RULES,
    keys.RULES,
    bindings.RULES,
    types.RULES,
    sweeps.RULES,
    references.RULES,
    script.RULES,
    safety.RULES,
    machines.RULES,
    deepspeed.RULES,
    silencing.RULES,
    local_run.RULES,
)

COMMAND_CHECKS: tuple[Callable[[SeenCommand, Surroundings], Iterator[Diagnostic]], ...] = (
    bindings.check_command,
    types.check_command,
    references.check_command,
    script.check_command,
    safety.check_command,
    machines.check_command,
    deepspeed.check_command,
)
PIPELINE_CHECKS: tuple[Callable[[SeenPipeline, Surroundings], Iterator[Diagnostic]], ...] = (
    bindings.check_pipeline,
    types.check_pipeline,
    types.check_values_within,
    references.check_pipeline,
    script.check_pipeline,
    machines.check_pipeline,
    deepspeed.check_pipeline,
    sweeps.check_pipeline,
)
DOCUMENT_CHECKS: tuple[Callable[[Document, Kind, Surroundings], Iterator[Diagnostic]], ...] = (
    yaml_text.check_document,
    references.check_document,
    machines.check_document,
    safety.check_document,
    sweeps.check_document,
)
