"""DeepSpeed configurations that a command names: the file is there, its keys are known, its numbers add up."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.foundation.suggestions import closest, did_you_mean, only_close
from trainyard.lint.context import LintContext
from trainyard.lint.placements import Placement, placement_of_command, placements_of_pipeline
from trainyard.lint.shell_words import Word, simple_commands
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError
from trainyard.spec.documents import Document, Node, describe, parse_document
from trainyard.spec.expressions import only_binding
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.reading import is_address
from trainyard.spec.rule import Example, Rule
from trainyard.spec.rules.documents import DUPLICATE_KEY

_JOB = """\
type: command
code: ./src
command: python train.py --deepspeed_config ds.json
environment: azureml:torch:3
distribution: {type: pytorch, process_count_per_instance: 4}
resources: {instance_count: 2, shm_size: 64g}
=== src/train.py
print("training")
"""
CONFIG_NOT_FOUND = Rule(
    "AML701",
    "deepspeed-config-not-found",
    "error",
    "The DeepSpeed configuration is not there.",
    "A file named in the command is looked for in the code, one that an input names from the file that sets it.",
    Example(
        """\
type: command
code: ./src
command: python train.py --deepspeed_config ‹ds_zero3.json⇒ds.json›
environment: azureml:torch:3
=== src/train.py
print("training")
=== src/ds.json
{"train_batch_size": "auto"}
"""
    ),
)
NOT_JSON = Rule(
    "AML702",
    "deepspeed-config-not-json",
    "error",
    "The DeepSpeed configuration is not JSON.",
    "DeepSpeed reads it with Python's json: no comments, no comma before a closing brace, no key twice.",
    Example(_JOB + '=== src/ds.json\n{\n  "train_batch_size": 64‹,⇒›\n‸}\n'),
)
UNKNOWN_CONFIG_KEY = Rule(
    "AML703",
    "deepspeed-unknown-key",
    "error",
    "A key that DeepSpeed does not know.",
    "At the top level DeepSpeed passes over it in silence, and what it was to set keeps its default; within "
    "`zero_optimization`, `fp16` and `bf16` it refuses the file. From the models of DeepSpeed 0.19.",
    Example(
        _JOB
        + """\
=== src/ds.json
{
  "train_batch_size": 64,
  ‹"gradient_acumulation_steps"⇒"gradient_accumulation_steps"›: 4
}
"""
    ),
)
BATCH_ARITHMETIC = Rule(
    "AML704",
    "deepspeed-batch-arithmetic",
    "error",
    "The batch sizes do not multiply out.",
    "train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × world size, and world size is "
    "`instance_count` × `process_count_per_instance`. DeepSpeed asserts it, after the cluster has started.",
    Example(
        _JOB
        + """\
=== src/ds.json
{
  "train_batch_size": ‹32⇒64›,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2
}
"""
    ),
)
OFFLOAD_AGAINST_STAGE = Rule(
    "AML705",
    "deepspeed-offload-against-stage",
    "error",
    "What is to be offloaded is not partitioned in this stage.",
    "`offload_param` works in stage 3 only, `offload_optimizer` in stages 1 to 3. Elsewhere DeepSpeed passes over them "
    "or stops.",
    Example(
        _JOB
        + """\
=== src/ds.json
{
  "train_batch_size": 64,
  "zero_optimization": {
    "stage": ‹2⇒3›,
    ‸"offload_param": {"device": "cpu"}
  }
}
"""
    ),
)
TWO_PRECISIONS = Rule(
    "AML706",
    "deepspeed-two-precisions",
    "error",
    "fp16 and bf16 are both on.",
    "DeepSpeed stops: it trains in one of them.",
    Example(
        _JOB
        + """\
=== src/ds.json
{
  "train_batch_size": 64,
  "bf16": {"enabled": true},
  "fp16": {"enabled": ‹true⇒false›}
}
"""
    ),
)
PRECISION_WITHOUT_HARDWARE = Rule(
    "AML707",
    "deepspeed-bf16-without-hardware",
    "warning",
    "bf16 is on, and the machine's GPUs have none.",
    "V100, T4 and older GPUs have no bf16: DeepSpeed refuses it, or it is emulated and slow.",
    Example(
        """\
type: command
code: ./src
command: python train.py --deepspeed_config ds.json
environment: azureml:torch:3
distribution: {type: pytorch, process_count_per_instance: 4}
resources: {instance_type: Standard_NC64as_T4_v3, shm_size: 64g}
=== src/train.py
print("training")
=== src/ds.json
{
  "train_batch_size": 64,
  "bf16": {"enabled": ‹true⇒false›}
}
"""
    ),
)
WRONG_CONFIG_VALUE = Rule(
    "AML708",
    "deepspeed-wrong-value",
    "error",
    "A value that DeepSpeed does not take.",
    'Stages are 0 to 3, devices none, cpu and nvme, sizes whole numbers or (for those who fill it in) "auto".',
    Example(
        _JOB
        + """\
=== src/ds.json
{
  "train_batch_size": 64,
  "zero_optimization": {"stage": ‹4⇒3›}
}
"""
    ),
)
RULES = (
    CONFIG_NOT_FOUND,
    NOT_JSON,
    UNKNOWN_CONFIG_KEY,
    BATCH_ARITHMETIC,
    OFFLOAD_AGAINST_STAGE,
    TWO_PRECISIONS,
    PRECISION_WITHOUT_HARDWARE,
    WRONG_CONFIG_VALUE,
)

_CONFIG_FLAG = re.compile(r"--(deepspeed|ds)([-_]?config)?", re.IGNORECASE)
# What DeepSpeed 0.19.8 reads at the top level (deepspeed/runtime/config.py and the modules it asks), with what
# Trainyard's own files carry. A test holds this to the installed DeepSpeed.
TOP_LEVEL_KEYS = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
        *("managed_gradient_accumulation", "optimizer", "scheduler", "fp16", "bf16", "bfloat16", "amp"),
        *("torch_autocast", "zero_optimization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
        *("communication_data_type", "seq_parallel_communication_data_type", "prescale_gradients"),
        *("gradient_predivide_factor", "gradient_allreduce_op", "sparse_gradients", "graph_harvesting", "aio"),
        *("steps_per_print", "wall_clock_breakdown", "dump_state", "disable_allgather", "disable_python_gc"),
        *("memory_breakdown", "autotuning", "flops_profiler", "activation_checkpointing", "sparse_attention"),
        *("data_efficiency", "curriculum_learning", "tensorboard", "wandb", "comet", "csv_monitor", "comms_logger"),
        *("monitor_config", "elasticity", "eigenvalue", "progressive_layer_drop", "quantize_training", "nebula"),
        *("compression_training", "checkpoint", "data_types", "dataloader_drop_last", "hybrid_engine", "compile"),
        *("timers", "use_data_before_expert_parallelism", "tensor_parallel", "weight_quantization"),
        *("vocabulary_size", "check_overflow", "load_universal", "log_level", "inference", "pipeline"),
        *("sequence_parallel_size", "data_parallel_size", "mesh_param", "zero_quantized_weights", "data_types"),
        *("checkpoint_tag_validation", "expert_parallel", "train_iters", "_rendered", "_comment", "comment"),
    }
)
_OFFLOAD = {"device", "nvme_path", "buffer_count", "pin_memory"}
# The fields of DeepSpeed's pydantic models, which refuse others.
NESTED_KEYS: dict[tuple[str, ...], frozenset[str]] = {
    ("zero_optimization",): frozenset(
        {
            *("stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_partitions"),
            *("use_multi_rank_bucket_allreduce", "allgather_bucket_size", "overlap_comm", "load_from_fp32_weights"),
            *("compute_grad_norm", "elastic_checkpoint", "offload_param", "offload_optimizer", "zenflow"),
            *("sub_group_size", "cpu_offload_param", "cpu_offload_use_pin_memory", "cpu_offload"),
            *("prefetch_bucket_size", "stage3_prefetch_bucket_size", "param_persistence_threshold"),
            *("stage3_param_persistence_threshold", "model_persistence_threshold"),
            *("stage3_model_persistence_threshold", "max_live_parameters", "stage3_max_live_parameters"),
            *("max_reuse_distance", "stage3_max_reuse_distance", "gather_16bit_weights_on_model_save"),
            *("stage3_gather_16bit_weights_on_model_save", "module_granularity_threshold"),
            *("stage3_module_granularity_threshold", "use_all_reduce_for_fetch_params"),
            *("stage3_use_all_reduce_for_fetch_params", "allgather_sequential", "stage3_allgather_sequential"),
            *("stage3_gather_fp16_weights_on_model_save", "ignore_unused_parameters", "legacy_stage1"),
            *("round_robin_gradients", "parameter_alignment", "zero_hpz_partition_size", "zero_quantized_weights"),
            *("zero_quantized_nontrainable_weights", "zero_quantized_gradients", "mics_shard_size"),
            *("mics_hierarchical_params_gather", "memory_efficient_linear", "pipeline_loading_checkpoint"),
            *("override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks"),
            *("save_muon_momentum_buffer_in_memory", "leaf_module"),
        }
    ),
    ("zero_optimization", "offload_param"): frozenset({*_OFFLOAD, "buffer_size", "max_in_cpu"}),
    ("zero_optimization", "offload_optimizer"): frozenset(
        {*_OFFLOAD, "pipeline_read", "pipeline_write", "pipeline", "fast_init", "ratio", "super_offload"}
        | {"cpuadam_cores_perc"}
    ),
    ("bf16",): frozenset(
        {"enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads"}
        | {"bf16_optimizer_states"}
    ),
    ("fp16",): frozenset(
        {
            *("enabled", "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis"),
            *("consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads"),
        }
    ),
}


@dataclass(frozen=True)
class _Named:
    """A configuration that a command is given: what names it, from where, and the file."""

    reference: str
    span: Span
    file: Path


def check_command(seen: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Configurations that a component or a command job names in its command itself."""
    if not context.is_used(seen.component):
        yield from _check(placement_of_command(seen, context), context)


def check_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """Configurations that the jobs of a pipeline are given, against the processes that they get."""
    for placement in placements_of_pipeline(seen, context):
        yield from _check(placement, context)


def _check(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    for named in _named_configurations(placement, context):
        if not os.path.isfile(named.file):
            message = f"there is no DeepSpeed configuration '{named.reference}'"
            siblings = (
                [file.name for file in named.file.parent.glob("*.json")] if os.path.isdir(named.file.parent) else []
            )
            meant = closest(named.file.name, siblings)
            hint = f"Did you mean '{meant}', which lies in the same folder?" if meant else ""
            yield CONFIG_NOT_FOUND.at(named.span, message, hint)
            continue
        document = _read(named.file)
        if isinstance(document, Diagnostic):
            yield document
        elif document is not None:
            doubled = [problem for problem in document.problems if problem.rule == DUPLICATE_KEY.id]
            if doubled:
                yield from doubled
                continue
            yield from _unknown_keys(document)
            yield from _wrong_values(document)
            yield from _stage(document)
            yield from _precision(document, placement)
            yield from _batch_sizes(document, placement)


def _named_configurations(placement: Placement, context: LintContext) -> Iterator[_Named]:
    found = context.command_node(placement.component)
    if found is None:
        return
    command, document = found
    for word in _given(command.text):
        binding = only_binding(word.text)
        if binding is not None and binding.path[0] == "inputs":
            yield from _from_input(".".join(binding.path[1:]), placement)
        elif word.text.endswith(".json") and word.is_plain and "${{" not in word.text and placement.component.code:
            root = placement.component.code
            span = document.span_within(command, word.start, word.end)
            if os.path.isdir(root) and not word.text.startswith("/"):
                yield _Named(word.text, span, root / word.text)


def _given(command: str) -> Iterator[Word]:
    """The words that are given to flags such as --deepspeed_config."""
    for words in simple_commands(command):
        for at, word in enumerate(words):
            name, equals, value = word.text.partition("=")
            if not _CONFIG_FLAG.fullmatch(name):
                continue
            if equals:
                yield Word(value, word.end - len(value), word.end)
            elif at + 1 < len(words):
                yield words[at + 1]


def _from_input(name: str, placement: Placement) -> Iterator[_Named]:
    path = placement.data(name)
    if path is None or is_address(path.text) or not path.text.endswith(".json"):
        return
    # A path that is not there has been told already, where data is looked for.
    file = path.span.file.parent / path.text
    if os.path.isfile(file):
        yield _Named(path.text, path.span, file)


def _read(file: Path) -> Document | Diagnostic | None:
    """A configuration with the places of its keys; what keeps it from being JSON; None when it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        span = Span(file, error.lineno, error.colno, error.lineno, error.colno + 1)
        return NOT_JSON.at(span, f"not JSON: {error.msg.lower()}")
    except RecursionError:
        return NOT_JSON.at(Span(file), "not JSON: it is nested too deeply")
    if not isinstance(data, dict):
        return NOT_JSON.at(Span(file), "a DeepSpeed configuration is a JSON object")
    try:
        # JSON is YAML, but for tabs between its tokens.
        return parse_document(file, text.replace("\t", " "))
    except SpecError:
        return None


def _unknown_keys(document: Document) -> Iterator[Diagnostic]:
    for name, entry in document.root.entries.items():
        if name not in TOP_LEVEL_KEYS:
            message = f"DeepSpeed does not know '{name}' and passes over it"
            meant = closest(name, TOP_LEVEL_KEYS)
            hint = f"Did you mean '{meant}'?" if meant else ""
            found = UNKNOWN_CONFIG_KEY.at(entry.key.span, message, hint, replacement=only_close(name, TOP_LEVEL_KEYS))
            yield found if meant else replace(found, severity="warning")
    for path, known in NESTED_KEYS.items():
        node: Node | None = document.root
        for key in path:
            node = node.get(key) if node is not None and node.is_mapping else None
        for name, entry in (node.entries if node is not None else {}).items():
            if name not in known:
                message = f"'{path[-1]}' has no '{name}': DeepSpeed refuses it"
                hint = did_you_mean(name, sorted(known))
                yield UNKNOWN_CONFIG_KEY.at(entry.key.span, message, hint, replacement=only_close(name, known))


def _wrong_values(document: Document) -> Iterator[Diagnostic]:
    for section in ("fp16", "bf16", "zero_optimization"):
        given = document.root.get(section)
        if given is not None and given.data is not None and not given.is_mapping:
            message = f"'{section}' is keys with values, not {describe(given.data)}"
            hint = f'Write "{section}": {{"enabled": {given.text}}}.' if isinstance(given.data, bool) else ""
            yield WRONG_CONFIG_VALUE.at(given.span, message, hint)
    for path, (is_right, words) in _VALUES.items():
        node: Node | None = document.root
        for key in path:
            node = node.get(key) if node is not None and node.is_mapping else None
        if node is not None and node.data is not None and node.data != "auto" and not is_right(node.data):
            message = f"'{path[-1]}' is {words}, not {describe(node.data)}"
            yield WRONG_CONFIG_VALUE.at(node.span, message)


def _is_count(data: object) -> bool:
    return type(data) is int and data > 0


def _is_boolean(data: object) -> bool:
    return isinstance(data, bool)


def _is_device(data: object) -> bool:
    return data in ("none", "cpu", "nvme")


_VALUES: dict[tuple[str, ...], tuple[Callable[[object], bool], str]] = {
    ("train_batch_size",): (_is_count, "a whole number, 1 or more"),
    ("train_micro_batch_size_per_gpu",): (_is_count, "a whole number, 1 or more"),
    ("gradient_accumulation_steps",): (_is_count, "a whole number, 1 or more"),
    ("zero_optimization", "stage"): (lambda data: type(data) is int and 0 <= data <= 3, "0, 1, 2 or 3"),
    ("zero_optimization", "offload_optimizer", "device"): (_is_device, "none, cpu or nvme"),
    ("zero_optimization", "offload_param", "device"): (_is_device, "none, cpu or nvme"),
    ("fp16", "enabled"): (_is_boolean, "true or false"),
    ("bf16", "enabled"): (_is_boolean, "true or false"),
}


def _stage(document: Document) -> Iterator[Diagnostic]:
    zero = document.root.get("zero_optimization")
    if zero is None or not zero.is_mapping:
        return
    stage_node = zero.get("stage")
    stage = 0 if stage_node is None else stage_node.data
    if type(stage) is not int:
        return
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        node = zero.get(key)
        device = node.get("device") if node is not None and node.is_mapping else None
        if node is None or stage >= least or device is None or device.text == "none":
            continue
        message = f"'{key}' needs ZeRO stage {least}{' or more' if least < 3 else ''}, and this is stage {stage}"
        related = [Related(stage_node.span, "the stage is said here")] if stage_node is not None else []
        yield OFFLOAD_AGAINST_STAGE.at(zero.key_span(key), message, f'Write `"stage": {least}`.', related)


def _enabled(document: Document, key: str) -> Node | None:
    """The `enabled` of a precision, when it is on."""
    section = document.root.get(key)
    enabled = section.get("enabled") if section is not None and section.is_mapping else None
    return enabled if enabled is not None and enabled.data is True else None


def _precision(document: Document, placement: Placement) -> Iterator[Diagnostic]:
    fp16 = _enabled(document, "fp16")
    bf16 = _enabled(document, "bf16") or _enabled(document, "bfloat16")
    if fp16 is not None and bf16 is not None:
        related = [Related(bf16.span, "bf16 is on here")]
        yield TWO_PRECISIONS.at(fp16.span, "fp16 and bf16 are both on", "Switch one of them off.", related)
    sku = placement.sku if bf16 is not None else None
    if bf16 is not None and sku is not None and sku.gpu_count and not sku.bf16:
        message = f"bf16 on {sku.name}: its {sku.gpu_model} has no bf16"
        yield PRECISION_WITHOUT_HARDWARE.at(bf16.span, message, "Use fp16 there.")


def _batch_sizes(document: Document, placement: Placement) -> Iterator[Diagnostic]:
    nodes, processes = placement.nodes, placement.processes_per_node
    if placement.distribution is None or nodes is None or processes is None:
        return
    if placement.is_component and placement.resources is None:
        return
    world = nodes * processes
    total = _count(document, "train_batch_size")
    micro = _count(document, "train_micro_batch_size_per_gpu")
    steps = _count(document, "gradient_accumulation_steps")
    if total is None or (micro is None and steps is None):
        return
    factor = (micro or 1) * (steps or 1) * world
    if factor == total or ((micro is None or steps is None) and total % factor == 0):
        return
    span = document.value_span(["train_batch_size"])
    parts = " × ".join(str(part) for part in (micro, steps) if part is not None)
    message = f"train_batch_size is {total}, and {parts} × {nodes} × {processes} processes makes {factor}"
    related = [Related(placement.distribution.span, f"{nodes} × {processes} processes are started here")]
    yield BATCH_ARITHMETIC.at(span, message, f"Write {factor}, or change the others.", related)


def _count(document: Document, key: str) -> int | None:
    node = document.root.get(key)
    return node.data if node is not None and type(node.data) is int else None
