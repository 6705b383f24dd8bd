"""The rules: stable ids, what each means, and how much it matters. The one table that docs and reporters read."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec import rule_ids
from trainyard.spec.diagnostic import Severity


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong. `severity` is None for what stops a local run, but is no mistake in the YAML."""

    id: str
    name: str
    severity: Severity | None
    meaning: str


_TABLE = (
    Rule(rule_ids.UNREADABLE_FILE, "unreadable-file", "error", "The file cannot be read."),
    Rule(rule_ids.YAML_SYNTAX, "yaml-syntax", "error", "The text is not YAML."),
    Rule(rule_ids.WRONG_ENCODING, "wrong-encoding", "error", "The file is not text in UTF-8."),
    Rule(rule_ids.TOO_LARGE, "too-large", "error", "The file, its nesting or what its aliases stand for is too large."),
    Rule(rule_ids.NOT_ONE_DOCUMENT, "not-one-document", "error", "Azure ML reads files of exactly one YAML document."),
    Rule(rule_ids.NOT_A_MAPPING, "not-a-mapping", "error", "An Azure ML file consists of keys with values."),
    Rule(rule_ids.DUPLICATE_KEY, "duplicate-key", "error", "A key is written twice: the last one wins in silence."),
    Rule(rule_ids.UNKNOWN_TAG, "unknown-tag", "error", "A YAML tag that Azure ML's client does not read."),
    Rule(rule_ids.KEY_NOT_TEXT, "key-not-text", "error", "A key is a list or a mapping."),
    Rule(rule_ids.YAML_TRAP, "yaml-trap", "warning", "YAML 1.1 reads an unquoted text as something else."),
    Rule(rule_ids.UNKNOWN_KIND, "unknown-kind", "error", "The file is of another kind than it is used as."),
    Rule(rule_ids.UNKNOWN_KEY, "unknown-key", "error", "A key that Azure ML does not know, and ignores or refuses."),
    Rule(rule_ids.MISSING_KEY, "missing-key", "error", "A key that has to be there is not, or is empty."),
    Rule(rule_ids.WRONG_TYPE, "wrong-type", "error", "A value is of the wrong kind: a list for a text, for example."),
    Rule(rule_ids.NOT_A_CHOICE, "not-a-choice", "error", "A value is none of those that can stand here."),
    Rule(rule_ids.BAD_TEXT, "bad-text", "error", "A text does not have the form it has to have."),
    Rule(rule_ids.OUT_OF_BOUNDS, "out-of-bounds", "error", "A number is smaller or larger than it can be."),
    Rule(rule_ids.IGNORED_KEY, "ignored-key", "error", "A key that Azure ML takes and does nothing with."),
    Rule(rule_ids.NAME_CLASH, "name-clash", "error", "Two names that Azure ML takes for the same."),
    Rule(rule_ids.BAD_ASSET_NAME, "bad-asset-name", "warning", "A name that Azure ML refuses when it is registered."),
    Rule(rule_ids.RESERVED_NAME, "reserved-name", "error", "An output's name replaces a variable that each job needs."),
    Rule(rule_ids.MALFORMED_EXPRESSION, "malformed-expression", "error", "A '${{' or '$[[' that is broken."),
    Rule(rule_ids.UNKNOWN_SCOPE, "unknown-scope", "error", "A binding whose first names mean nothing where it stands."),
    Rule(rule_ids.UNKNOWN_PIPELINE_PORT, "unknown-pipeline-port", "error", "The pipeline has no such input or output."),
    Rule(rule_ids.UNKNOWN_JOB, "unknown-job", "error", "The pipeline has no such job."),
    Rule(rule_ids.UNKNOWN_JOB_PORT, "unknown-job-port", "error", "The job that is bound to has no such port."),
    Rule(rule_ids.UNKNOWN_COMMAND_PORT, "unknown-command-port", "error", "The command uses a port that is undeclared."),
    Rule(rule_ids.CYCLE, "cycle", "error", "Jobs wait for each other."),
    Rule(rule_ids.MISSING_INPUT, "missing-input", "error", "A required input is not set."),
    Rule(rule_ids.UNKNOWN_INPUT, "unknown-input", "error", "An input is set that the component does not have."),
    Rule(rule_ids.UNKNOWN_OUTPUT, "unknown-output", "error", "An output is bound that the component does not have."),
    Rule(rule_ids.WRONG_LITERAL, "wrong-literal", "error", "A literal is not of its input's type."),
    Rule(rule_ids.LITERAL_OUT_OF_RANGE, "literal-out-of-range", "error", "A literal is beyond its input's min or max."),
    Rule(rule_ids.LITERAL_NOT_A_CHOICE, "literal-not-a-choice", "error", "A literal is not in its input's enum."),
    Rule(rule_ids.COMPONENT_NOT_FOUND, "component-not-found", "error", "A component's file is not there."),
    Rule(rule_ids.CODE_NOT_FOUND, "code-not-found", "error", "The code's folder is not there."),
    Rule(
        rule_ids.ENVIRONMENT_FILE_NOT_FOUND,
        "environment-file-not-found",
        "error",
        "An environment's file is absent.",
    ),
    Rule(rule_ids.DATA_NOT_FOUND, "data-not-found", "warning", "An input's local data is not there."),
    Rule(rule_ids.BAD_REFERENCE, "bad-reference", "error", "A reference that Azure ML's client does not follow."),
    Rule(rule_ids.NOT_SEEN_OFFLINE, "not-seen-offline", None, "Kept in Azure ML, so that it cannot be seen from here."),
    Rule(rule_ids.NOT_RUN_LOCALLY, "not-run-locally", None, "A kind of job that a local run does not take."),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _TABLE}
