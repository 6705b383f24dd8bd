"""Rules about files, their keys and values, which schemas (`spec/schema_checks.py`) and several readers report."""

from trainyard.spec.rule import Rule

UNREADABLE_FILE = Rule("AML001", "unreadable-file", "error").explained(
    summary="The file cannot be read.",
    why="It does not exist, is not a regular file, or may not be opened.",
)
YAML_SYNTAX = Rule("AML002", "yaml-syntax", "error").explained(
    summary="The file is not valid YAML.",
    why="The finding is where the parser gave up; if the parser says what it was reading, that place is shown too.",
)
WRONG_ENCODING = Rule("AML003", "wrong-encoding", "error").explained(
    summary="The file is not UTF-8 text.",
    why="Azure ML's client cannot read binary files, UTF-16 or Latin-1 either.",
)
TOO_LARGE = Rule("AML004", "too-large", "error").explained(
    summary="The file, its nesting or the expansion of its aliases is too large.",
    why="Files over 2 MiB, nesting over 100 levels (20 of pipelines) and aliases that expand to more than 200,000 "
    "values are not read. A file that takes more than 5 seconds of processor time is not checked to its end.",
)
NOT_ONE_DOCUMENT = Rule("AML005", "not-one-document", "error").explained(
    summary="The file does not contain exactly one YAML document.",
    why="Azure ML's client rejects a file with two documents, and a file with none.",
)
NOT_A_MAPPING = Rule("AML006", "not-a-mapping", "error").explained(
    summary="The top level of the file is not a mapping.",
    why="An Azure ML file consists of keys with values; a list or a single string means nothing to it.",
)
DUPLICATE_KEY = Rule("AML007", "duplicate-key", "error", is_let_pass=True).explained(
    summary="A key appears twice; the last one silently wins.",
    why="A whole job can disappear this way: Azure ML's client keeps the second one and drops the first.",
)
UNKNOWN_TAG = Rule("AML008", "unknown-tag", "error").explained(
    summary="Azure ML's client does not support this YAML tag.",
    why="Its loader stops at `!tag` and `!!python/…`.",
)
KEY_NOT_TEXT = Rule("AML009", "key-not-text", "error").explained(
    summary="A key is a list or a mapping.",
    why="In YAML, braces open a mapping: a binding without its `$` becomes a mapping used as a key.",
)
YAML_TRAP = Rule("AML010", "yaml-trap", "warning").explained(
    summary="YAML 1.1 reads this unquoted text as something else.",
    why="Azure ML's client reads YAML 1.1: `no` is False, `1.10` is 1.1, `010` is 8, and `12:30` is 750. It "
    "then sends `str()` of that value. Quote it.",
)
UNKNOWN_KIND = Rule("AML011", "unknown-kind", "error").explained(
    summary="The file is of a different kind from what it is used as.",
    why="Files that do not belong to Azure ML are skipped in folders; for one named on the command line, this says "
    "that nothing in it was checked.",
)
UNKNOWN_KEY = Rule("AML101", "unknown-key", "error", is_let_pass=True).explained(
    summary="Azure ML does not know this key, and ignores or rejects it.",
    why="In a component the key is silently dropped, and the setting keeps its default; on a job that names a "
    "component it is sent and ignored; elsewhere the client rejects the file.",
)
MISSING_KEY = Rule("AML102", "missing-key", "error").explained(
    summary="A required key is missing or empty.",
    why="The client rejects the file, or Azure ML rejects it on submission.",
)
WRONG_TYPE = Rule("AML103", "wrong-type", "error").explained(
    summary="A value has the wrong type, such as a list where a string is expected.",
    why="The client rejects the file, or sends something other than what was meant.",
)
NOT_A_CHOICE = Rule("AML104", "not-a-choice", "error").explained(
    summary="The value is not one of the allowed ones.",
    why="The types of inputs are `string integer number boolean` and `uri_file uri_folder mltable mlflow_model "
    "custom_model triton_model`, in lower case.",
)
BAD_TEXT = Rule("AML105", "bad-text", "error").explained(
    summary="A string does not have the required form.",
    why="Job names are lower-case identifiers, `shm_size` is a number and a unit, `default_compute` is `azureml:NAME`.",
)
OUT_OF_BOUNDS = Rule("AML106", "out-of-bounds", "error").explained(
    summary="A number is too small or too large.",
    why="The client does not check bounds: it sends `process_count_per_instance: 0` as it is.",
)
IGNORED_KEY = Rule("AML107", "ignored-key", "error", is_let_pass=True).explained(
    summary="Azure ML accepts this key and ignores it.",
    why="A component's `environment_variables` are dropped; `code`, `command` and `environment` beside a job's "
    "`component` are ignored, and the component's own are used. Of a component with an `id`, that of Azure ML is used.",
)
NAME_CLASH = Rule("AML108", "name-clash", "error").explained(
    summary="Two names that Azure ML treats as the same.",
    why="The names of inputs and outputs are case-insensitive. Additional includes are copied into the code by their "
    "last name, and may not have that of anything in it.",
)
BAD_ASSET_NAME = Rule("AML109", "bad-asset-name", "warning", is_let_pass=True).explained(
    summary="Azure ML rejects this name or version on registration.",
    why="Component names consist of lower-case letters, digits and underscores, and start with a letter. Names of "
    "experiments have letters, digits, hyphens and underscores; versions have no spaces, `/`, `:` or `@`. The name "
    "of a component is an error where no pipeline names its file: the client does not load it.",
)
RESERVED_NAME = Rule("AML110", "reserved-name", "error").explained(
    summary="The name of an output overwrites a variable that every job needs.",
    why="Azure ML sets an environment variable with the name of each output to its path: an output `path` overwrites "
    "PATH.",
)
NOT_RUN_LOCALLY = Rule("AML902", "not-run-locally", "error", local_run_only=True).explained(
    summary="A local run does not support this type of job.",
    why="`trainyard run` supports jobs of type command, sweep, parallel and spark.",
)
