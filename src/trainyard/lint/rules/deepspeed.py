"""DeepSpeed configurations that a command names: they exist, their keys are known, their numbers add up."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintContext, check, known_words, number_of
from trainyard.lint.placements import Placement
from trainyard.lint.scripts.syntax import dotted
from trainyard.settings.deepspeed_configuration import is_same, refusals
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, did_you_mean, only_close
from trainyard.spec.deepspeed_settings import read_json
from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span
from trainyard.spec.documents import Document, Node, Value, describe, shorten
from trainyard.spec.expressions import name_bound
from trainyard.spec.findings import FALSE_WORDS
from trainyard.spec.parsed import is_address, similar_file
from trainyard.spec.resolved import Known
from trainyard.spec.rule import Rule
from trainyard.spec.rules import DUPLICATE_KEY
from trainyard.spec.shell_lexer import Word, simple_commands, words_with_values

TOP_LEVEL_KEYS: list[str] = known_words("deepspeed")
NESTED_KEYS: dict[str, list[str]] = known_words("deepspeed_nested")
# With their settings; without any where those are not compared. Optimizers of other names may be PyTorch's.
_OPTIMIZERS: dict[str, list[str]] = known_words("deepspeed_optimizers")
_SCHEDULERS: dict[str, list[str]] = known_words("deepspeed_schedulers")
_RENAMED: dict[str, str] = known_words("deepspeed_renamed")
_VALUES: dict[str, str] = known_words("deepspeed_values")
_OF_TRAINER: dict[str, str] = known_words("deepspeed_of_trainer")
_CONFIG_FLAG = regex(r"--(deepspeed|ds)([-_]?config)?", re.IGNORECASE)
# A relative path without bindings.
_CONFIG_FILE = regex(r"(?!/)(?!.*\$\{\{).*\.json", re.DOTALL)


class _Named(NamedTuple):
    """A configuration as the command or an input names it, and where."""

    reference: str
    span: Span
    file: Path


DEEPSPEED_CONFIG_NOT_FOUND = Rule("AML701", "deepspeed-config-not-found", "error", is_let_pass=True).explained(
    summary="The DeepSpeed configuration does not exist.",
    why="A file named in the command is looked up in the code; one named by an input, relative to the file that sets "
    "the input.",
)


@check("placement")
def _deepspeed(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    is_step, is_json = placement.use.step_settings is not None, _is_read_as_json(placement, context)
    for named in _named_configurations(placement, context):
        if not os.path.isfile(named.file):
            message = f"the DeepSpeed configuration '{named.reference}' does not exist"
            yield DEEPSPEED_CONFIG_NOT_FOUND.at(named.span, message, similar_file(named.file))
        found = context.cached(("deepspeed", named.file, is_json), partial(_read_json, named.file, is_json))
        if isinstance(found, Diagnostic):
            yield found
        elif found is not None and (repeated := [each for each in found.problems if each.rule == DUPLICATE_KEY.id]):
            yield from repeated
        elif found is not None:
            wrong = chain(_offload(found, is_step), _two_precisions(found), _wrong_values(found, is_step))
            of_use = chain(_batch_arithmetic(found, placement), _bf16_without_hardware(found, placement))
            reported = [*_unknown_keys(found), *wrong, *of_use, *_against_trainer(found, placement, context)]
            yield from reported
            places = {each.span for each in reported}
            yield from (each for each in _against_step(found, placement) if each.span not in places)


DEEPSPEED_CONFIG_NOT_JSON = Rule("AML702", "deepspeed-config-not-json", "error", is_let_pass=True).explained(
    summary="The DeepSpeed configuration is not valid JSON.",
    why="Trainyard's step, the Trainer of transformers and accelerate read it with Python's json: no comments, no "
    "trailing commas. DeepSpeed itself reads a file with hjson, which takes both: where a script gives it the path, "
    "only a file that ends too early is reported.",
)
_READS_JSON = regex(
    r"(?:transformers|accelerate|trl)\.[\w.]*(?:Trainer|TrainingArguments|HfArgumentParser|Accelerator|"
    r"DeepSpeedPlugin|HfDeepSpeedConfig)|(?:lightning|pytorch_lightning)\..*DeepSpeedStrategy"
)


def _is_read_as_json(placement: Placement, context: LintContext) -> bool:
    """Whether Trainyard's step or a library reads the configuration, and not DeepSpeed itself."""
    command = context.command_of(placement.component)
    scripts = [syntax for _, _, syntax in context.scripts_of(command)] if command is not None else []
    called = {dotted(call.func, syntax.imported) for syntax in scripts for call in syntax.calls}
    is_of_library = "deepspeed.initialize" not in called and any(_READS_JSON.fullmatch(name) for name in called)
    return placement.use.step_settings is not None or is_of_library


DEEPSPEED_UNKNOWN_KEY = Rule("AML703", "deepspeed-unknown-key", "error", is_let_pass=True).explained(
    summary="DeepSpeed does not know this key.",
    why="At the top level DeepSpeed silently ignores it, and the setting keeps its default; in `zero_optimization`, "
    "`fp16` and `bf16` it rejects the file. According to the models of DeepSpeed 0.19.",
)


def _unknown_keys(document: Document) -> Iterator[Diagnostic]:
    for name, entry in document.root.entries.items():
        if name not in TOP_LEVEL_KEYS:
            message, hint = f"DeepSpeed does not know '{name}' and ignores it", close_match(name, TOP_LEVEL_KEYS)
            meant, severity = only_close(name, TOP_LEVEL_KEYS), DEEPSPEED_UNKNOWN_KEY.severity if hint else "warning"
            yield DEEPSPEED_UNKNOWN_KEY.at(entry.key.span, message, hint, replacement=meant, severity=severity)
    for path, known in NESTED_KEYS.items():
        section = document.root.find(*path.split("."))
        for name, entry in section.entries.items() if section is not None else ():
            if name not in known:
                message = f"'{path.rpartition('.')[2]}' has no '{name}': DeepSpeed rejects it"
                hint, meant = did_you_mean(name, sorted(known)), only_close(name, known)
                yield DEEPSPEED_UNKNOWN_KEY.at(entry.key.span, message, hint, replacement=meant)


DEEPSPEED_BATCH_ARITHMETIC = Rule("AML704", "deepspeed-batch-arithmetic", "error", is_let_pass=True).explained(
    summary="The batch sizes do not multiply out.",
    why="train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × world size; world size is "
    "`instance_count` × `process_count_per_instance`. DeepSpeed asserts this, after the cluster has started.",
)


def _batch_arithmetic(document: Document, placement: Placement) -> Iterator[Diagnostic]:
    nodes, processes = placement.nodes, placement.processes_per_node
    if placement.distribution is None or nodes is None or processes is None:
        return
    if placement.is_component and placement.resources is None:
        return
    total = _count(document, "train_batch_size")
    micro = _count(document, "train_micro_batch_size_per_gpu")
    steps = _count(document, "gradient_accumulation_steps")
    factor = (micro or 1) * (steps or 1) * nodes * processes
    if total is None or (micro is None and steps is None) or factor == total:
        return
    if (micro is None or steps is None) and total % factor == 0:
        return
    parts = " × ".join(str(part) for part in (micro, steps) if part is not None)
    message = f"train_batch_size is {total}, but {parts} × {nodes} × {processes} processes is {factor}"
    related = [Related(placement.distribution.span, f"{nodes} × {processes} processes are started here")]
    span = document.node_at(["train_batch_size"]).span
    yield DEEPSPEED_BATCH_ARITHMETIC.at(span, message, f"Write {factor}, or change the others.", related)


def _count(document: Document, key: str) -> int | None:
    node = document.root.get(key)
    return node.data if node is not None and type(node.data) is int else None


DEEPSPEED_OFFLOAD_AGAINST_STAGE = Rule(
    "AML705", "deepspeed-offload-against-stage", "error", is_let_pass=True
).explained(
    summary="This ZeRO stage does not partition what is to be offloaded.",
    why="`offload_param` requires stage 3, `offload_optimizer` stages 1 to 3; DeepSpeed otherwise ignores them, or "
    "fails.",
)


def _offload(document: Document, is_step: bool) -> Iterator[Diagnostic]:
    zero, stage_node = document.root.get("zero_optimization"), document.root.find("zero_optimization", "stage")
    stage = 0 if stage_node is None else stage_node.data
    if zero is None or type(stage) is not int:
        return
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = zero.find(key, "device")
        to_disk = not is_step and device is not None and device.text == "nvme"
        least = 3 if to_disk else least
        if stage < least and device is not None and device.text != "none":
            what = f"'{key}'{' to NVMe' if to_disk else ''}"
            message = f"{what} requires ZeRO stage {least}{' or higher' if least < 3 else ''}; this is stage {stage}"
            related = [Related(stage_node.span, "the stage is set here")] if stage_node is not None else []
            hint = f'Write `"stage": {least}`.'
            yield DEEPSPEED_OFFLOAD_AGAINST_STAGE.at(zero.key_span(key), message, hint, related)
        elif to_disk and zero.find(key, "nvme_path") is None:
            message = f"'{key}' to NVMe has no 'nvme_path', the folder that DeepSpeed writes to"
            yield DEEPSPEED_WRONG_VALUE.at(zero.key_span(key), message, 'Write `"nvme_path": "/mnt"`, for example.')


DEEPSPEED_TWO_PRECISIONS = Rule("AML706", "deepspeed-two-precisions", "error", is_let_pass=True).explained(
    summary="fp16 and bf16 are both enabled.",
    why="DeepSpeed fails: it trains in one of them.",
)


def _two_precisions(document: Document) -> Iterator[Diagnostic]:
    fp16, bf16 = _enabled(document, "fp16"), _enabled(document, "bf16", "bfloat16")
    if fp16 is not None and bf16 is not None:
        related = [Related(bf16.span, "bf16 is enabled here")]
        message = "fp16 and bf16 are both enabled"
        yield DEEPSPEED_TWO_PRECISIONS.at(fp16.span, message, "Disable one of them.", related)


DEEPSPEED_BF16_WITHOUT_HARDWARE = Rule("AML707", "deepspeed-bf16-without-hardware", "warning").explained(
    summary="bf16 is enabled, but the machine's GPUs do not support it.",
    why="V100, T4 and older GPUs have no bf16: DeepSpeed rejects it, or it is emulated and slow.",
)


def _bf16_without_hardware(document: Document, placement: Placement) -> Iterator[Diagnostic]:
    bf16 = _enabled(document, "bf16", "bfloat16")
    sku = placement.sku if bf16 is not None else None
    if bf16 is not None and sku is not None and sku.gpu_count and not sku.bf16:
        message = f"{sku.gpu_model} GPUs of {sku.name} do not support bf16"
        yield DEEPSPEED_BF16_WITHOUT_HARDWARE.at(bf16.span, message, "Use fp16 there.")


def _enabled(document: Document, *keys: str) -> Node | None:
    """The `enabled` of a precision that is on, by the first of its names."""
    found = (document.root.find(key, "enabled") for key in keys)
    return next((node for node in found if node is not None and node.data is True), None)


DEEPSPEED_WRONG_VALUE = Rule("AML708", "deepspeed-wrong-value", "error", is_let_pass=True).explained(
    summary="DeepSpeed does not accept this value.",
    why="Stages are 0 to 3, devices are none, cpu and nvme, sizes are whole numbers or, where another program fills "
    'them in, "auto".',
)


def _wrong_values(document: Document, is_step: bool) -> Iterator[Diagnostic]:
    for section in ("fp16", "bf16", "zero_optimization"):
        given = document.root.get(section)
        if given is not None and given.data is not None and not given.is_mapping:
            message = f"'{section}' must be an object, not {describe(given.data)}"
            hint = f'Write "{section}": {{"enabled": {given.text}}}.' if isinstance(given.data, bool) else ""
            yield DEEPSPEED_WRONG_VALUE.at(given.span, message, hint)
    yield from _misspelt_types(document, is_step)
    for path, words in _VALUES.items():
        node = document.root.find(*path.split("."))
        # YAML takes JSON's 1e-8 for a string. Trainyard's step takes numbers in quotes, too.
        data = json.loads(document.text[slice(*node.offsets)]) if node is not None else None
        is_taken = data in (None, "auto") or (is_step and words == "a number") or _is(words, data)
        if node is not None and not is_taken:
            message = f"'{path.rpartition('.')[2]}' must be {words}, not {describe(data)}"
            yield DEEPSPEED_WRONG_VALUE.at(node.span, message)


def _misspelt_types(document: Document, is_step: bool) -> Iterator[Diagnostic]:
    """Optimizers and schedulers that neither DeepSpeed nor PyTorch has, and settings that DeepSpeed's do not take."""
    for section, known in (("optimizer", _OPTIMIZERS), ("scheduler", _SCHEDULERS)):
        kind = document.root.find_text(section, "type")
        if kind is None:
            continue
        if kind.text in known:
            params = document.root.find(section, "params")
            misspelt = list(_misspelt_settings(params, kind.text, known[kind.text]))
            needs_steps = kind.text in ("WarmupDecayLR", "WarmupCosineLR") and not misspelt and not is_step
            if needs_steps and document.root.find(section, "params", "total_num_steps") is None:
                message = f"{kind.text} requires 'total_num_steps', and 'params' has none"
                yield DEEPSPEED_WRONG_VALUE.at(kind.span, message, "Add it, or use WarmupLR.")
            yield from misspelt
            continue
        if section == "optimizer" and kind.text.lower() in map(str.lower, known):
            continue
        # A script may give DeepSpeed one of its own instead.
        meant, hint = only_close(kind.text, known), close_match(kind.text, known)
        severity: Severity = "warning" if meant is None else "error"
        message = f"DeepSpeed has no {section} '{shorten(kind.text)}', nor has PyTorch"
        yield DEEPSPEED_WRONG_VALUE.at(kind.span, message, hint, replacement=meant, severity=severity)


def _misspelt_settings(params: Node | None, kind: str, known: Collection[str]) -> Iterator[Diagnostic]:
    """Settings that an optimizer or scheduler does not take; none where its own are not compared."""
    if params is None or not known:
        return
    for name, entry in params.entries.items():
        meant = None if name in known else _RENAMED.get(name) or only_close(name, known)
        if meant is not None:
            message = f"{kind} has no setting '{shorten(name)}'"
            yield DEEPSPEED_WRONG_VALUE.at(entry.key.span, message, f"Did you mean '{meant}'?", replacement=meant)


def _is(words: str, data: object) -> bool:
    """Whether a value is what some words say, one of those in `_VALUES`."""
    return {
        "a positive whole number": type(data) is int and data > 0,
        "a number": type(data) in (int, float),
        "true or false": isinstance(data, bool),
        "0, 1, 2 or 3": type(data) is int and 0 <= data <= 3,
        "none, cpu or nvme": data in ("none", "cpu", "nvme"),
    }[words]


DEEPSPEED_REFUSED_BY_STEP = Rule("AML709", "deepspeed-refused-by-step", "error", is_let_pass=True).explained(
    summary="train_deepspeed refuses this part of a DeepSpeed configuration.",
    why="Trainyard's step has an optimizer, schedules and checkpoints of its own, which every engine shares. What "
    "contradicts them it refuses, once the machines are running and paid for. The list is the step's own.",
)
DEEPSPEED_AGAINST_SETTINGS = Rule("AML710", "deepspeed-against-settings", "error", is_let_pass=True).explained(
    summary="A DeepSpeed configuration and the job give different values of one setting.",
    why="The learning rate, batch sizes, precision and others may be given by either; train_deepspeed and the Trainer "
    'of transformers refuse two that differ. "auto" in the configuration takes the job\'s.',
)


def _against_step(document: Document, placement: Placement) -> Iterator[Diagnostic]:
    """What Trainyard's own step would refuse of the configuration, and what the job says otherwise."""
    settings = placement.use.step_settings
    file = settings.deepspeed if settings is not None else None
    if settings is None or file is None or file.document.file != document.file:
        return
    precision, compiled = settings.value("precision"), settings.value("compile")
    known_precision = str(precision.value) if isinstance(precision, Known) else None
    is_compiled = isinstance(compiled, Known) and compiled.value is True
    for refusal in refusals(file.data, precision=known_precision, compiled=is_compiled):
        if refusal.is_unknown and "." not in refusal.path and refusal.path not in TOP_LEVEL_KEYS:
            continue
        message, _, advice = refusal.message.partition("; ")
        hint = f"{advice[:1].upper()}{advice[1:]}." if advice else ""
        yield DEEPSPEED_REFUSED_BY_STEP.at(file.span(refusal.path), message, hint)
    for name, configured in file.settings.items():
        given = settings.value(name)
        if not configured.is_written or configured.value is None or not isinstance(given, Known):
            continue
        read = file.value(settings.fields[name], name)
        value = read.value if isinstance(read, Known) else configured.value
        if settings.origin(name) in ("overrides", "command", "file") and not is_same(given.value, value):
            message = f"{configured}, but the job has {given.written.text}"
            related = [Related(given.written.span, f"{name} is given here")]
            hint = 'Write "auto" here, or change one of them.'
            yield DEEPSPEED_AGAINST_SETTINGS.at(file.span(configured.path), message, hint, related)


def _against_trainer(document: Document, placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    """What the flags of transformers' TrainingArguments say otherwise: precisions also where they are left out."""
    command = context.command_of(placement.component)
    for called, _, syntax in context.scripts_of(command) if command is not None else ():
        words = called.call.arguments
        is_of_trainer = {"HfArgumentParser", "TrainingArguments"} <= syntax.imported.keys()
        if not is_of_trainer or not all(word.is_plain for word in words):
            continue
        given = {name.lstrip("-").replace("-", "_"): value for name, _, value in words_with_values(words)}
        for path, flag in _OF_TRAINER.items():
            node, value = document.root.find(*path.split(".")), given.get(flag)
            if node is None or node.data in (None, "auto") or (value is None and not isinstance(node.data, bool)):
                continue
            text = value.text if value is not None else ""
            written = placement.input(name_bound(text, "inputs") or "") or Value(text, node.span, text)
            if isinstance(node.data, bool):
                differs = node.data != (flag in given and text.lower() not in FALSE_WORDS)
            else:
                differs = number_of(written) not in (None, number_of(node))
            if differs:
                passed = f"passes --{flag} {text}".rstrip() if flag in given else f"has no --{flag}"
                message = f"'{path}' is {node.text}, and the command {passed}"
                hint = 'Write "auto" here, which the Trainer fills in.'
                yield DEEPSPEED_AGAINST_SETTINGS.at(node.span, message, hint, [Related(called.place, "it is run here")])


def _read_json(file: Path, is_json: bool) -> Document | Diagnostic | None:
    try:
        data, document = read_json(file, with_comments=not is_json)
    except json.JSONDecodeError as error:
        # Of a file that is JSON up to its end, hjson takes no more than json does.
        if not is_json and not 0 < len(error.doc.rstrip()) <= error.pos:
            return None
        span = Span(file, error.lineno, error.colno, error.lineno, error.colno + 1)
        return DEEPSPEED_CONFIG_NOT_JSON.at(span, f"not valid JSON: {error.msg.lower()}")
    except RecursionError:
        return DEEPSPEED_CONFIG_NOT_JSON.at(Span(file), "not valid JSON: nested too deeply")
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return DEEPSPEED_CONFIG_NOT_JSON.at(Span(file), "a DeepSpeed configuration must be a JSON object")
    return document


def _named_configurations(placement: Placement, context: LintContext) -> Iterator[_Named]:
    command, root = context.command_of(placement.component), placement.component.code
    for word in _given(command.text) if command is not None else ():
        name = name_bound(word.text, "inputs")
        if name is not None:
            yield from _from_input(name, placement)
        elif root is not None and word.is_plain and _CONFIG_FILE.fullmatch(word.text) and os.path.isdir(root):
            assert command is not None
            yield _Named(word.text, command.span(word.start, word.end), root / word.text)


# Several checks look at the same command.
@lru_cache(maxsize=1024)
def _given(command: str) -> tuple[Word, ...]:
    """The values of flags such as --deepspeed_config."""
    commands = simple_commands(command) if "--d" in command.lower() else ()
    pairs = (pair for words in commands for pair in words_with_values(words))
    return tuple(value for name, _, value in pairs if value is not None and _CONFIG_FLAG.fullmatch(name))


def _from_input(name: str, placement: Placement) -> Iterator[_Named]:
    path = placement.data(name)
    if path is None or is_address(path.text) or not path.text.endswith(".json"):
        return
    # A missing path is reported where data is looked up.
    file = path.span.file.parent / path.text
    if os.path.isfile(file):
        yield _Named(path.text, path.span, file)
