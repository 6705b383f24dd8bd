"""The rules, a file per family: tables with an example each, and the checks that no reader of `spec` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trainyard.lint.context import LintContext
from trainyard.lint.rules import (
    bindings,
    deepspeed,
    machines,
    references,
    safety,
    script,
    silencing,
    sweeps,
    types,
    yaml_text,
)
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Document
from trainyard.spec.kinds import Kind
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.rules import bindings as spec_bindings
from trainyard.spec.rules import documents as spec_documents
from trainyard.spec.rules import keys as spec_keys
from trainyard.spec.rules import references as spec_references
from trainyard.spec.rules import values as spec_values

_MODULES = (
    *(spec_documents, spec_keys, spec_bindings, spec_values, spec_references),
    *(yaml_text, bindings, types, sweeps, references, script, safety, machines, deepspeed, silencing),
)
RULES: Mapping[str, Rule] = {
    rule.id: rule for module in _MODULES for rule in vars(module).values() if isinstance(rule, Rule)
}

COMMAND_CHECKS: tuple[Callable[[ParsedCommand, LintContext], Iterator[Diagnostic]], ...] = (
    bindings.check_command,
    types.check_command,
    references.check_command,
    script.check_command,
    safety.check_command,
    machines.check_command,
    deepspeed.check_command,
)
PIPELINE_CHECKS: tuple[Callable[[ParsedPipeline, LintContext], Iterator[Diagnostic]], ...] = (
    bindings.check_pipeline,
    types.check_pipeline,
    types.check_values_within,
    references.check_pipeline,
    script.check_pipeline,
    machines.check_pipeline,
    deepspeed.check_pipeline,
    sweeps.check_pipeline,
)
DOCUMENT_CHECKS: tuple[Callable[[Document, Kind, LintContext], Iterator[Diagnostic]], ...] = (
    yaml_text.check_document,
    references.check_document,
    machines.check_document,
    safety.check_document,
    sweeps.check_document,
)
