"""Machines and processes: GPUs against processes, SKUs against images and precisions, what large runs need.

What a machine has is learnt from `resources.instance_type`, from compute files and profiles of the project, or from
`computes` in the settings. Of machines that are not known, only what no machine could satisfy is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from trainyard.lint.context import LintContext, sku_named
from trainyard.lint.placements import Placement, placement_of_command, placements_of_pipeline
from trainyard.lint.rules.types import LIMITS_CONTRADICT
from trainyard.lint.shell_words import LAUNCHER_MODULES, LAUNCHERS, simple_commands
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Document, Node, shorten
from trainyard.spec.kinds import Kind
from trainyard.spec.model import Value
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Example, Rule

if TYPE_CHECKING:
    from trainyard.catalogue.skus import Sku

_JOB = """\
type: command
command: python -m train
environment: azureml:torch:3
"""
_CLUSTER = """\
=== compute/gpu.yaml
type: amlcompute
name: gpu
size: {size}
max_instances: 2
"""

PROCESSES_EXCEED_GPUS = Rule(
    "AML601",
    "processes-exceed-gpus",
    "error",
    "More processes on a machine than it has GPUs.",
    "`process_count_per_instance` counts the processes on one machine, not in total: world size is `instance_count` "
    "times this. A process without a GPU of its own ends with an invalid device ordinal.",
    Example(
        _JOB
        + """\
distribution: {type: pytorch, process_count_per_instance: ‹16⇒8›}
resources: {instance_count: 2, instance_type: Standard_ND96asr_v4, shm_size: 64g}
"""
    ),
)
GPUS_IDLE = Rule(
    "AML602",
    "gpus-idle",
    "warning",
    "Fewer processes on a machine than it has GPUs.",
    "Each process drives one GPU; the others are paid for and do nothing. Without `process_count_per_instance` there "
    "is one process on each machine.",
    Example(
        _JOB
        + """\
distribution: {type: pytorch, process_count_per_instance: ‹1⇒8›}
resources: {instance_type: Standard_ND96asr_v4, shm_size: 64g}
"""
    ),
    suppressed_by_errors=True,
)
WORKERS_AGAINST_NODES = Rule(
    "AML603",
    "workers-against-nodes",
    "warning",
    "TensorFlow's worker_count is not the number of machines.",
    "Each machine runs one worker, with all its GPUs. Left out, `worker_count` is `instance_count`.",
    Example(
        _JOB
        + """\
distribution: {type: tensorflow, worker_count: ‹8⇒2›}
resources: {instance_count: 2, shm_size: 64g}
"""
    ),
)
NODES_WITHOUT_RDMA = Rule(
    "AML604",
    "nodes-without-rdma",
    "warning",
    "Several machines that have no InfiniBand between them.",
    "Gradients then travel over Ethernet, tens of times slower. An `r` in the size's name means RDMA.",
    Example(
        _JOB
        + """\
distribution: {type: pytorch, process_count_per_instance: 4}
resources: {instance_count: ‹4⇒1›, instance_type: Standard_NC64as_T4_v3, shm_size: 64g}
"""
    ),
)
RETIRED_SKU = Rule(
    "AML605",
    "retired-sku",
    "warning",
    "A VM size that Azure has switched off.",
    "No cluster of it can be made any more, and old ones give no machines.",
    Example("type: amlcompute\nname: gpu\nsize: ‹Standard_NC6s_v3⇒Standard_NC24ads_A100_v4›\nmax_instances: 2\n"),
)
IMAGE_AGAINST_MACHINE = Rule(
    "AML606",
    "image-against-machine",
    "warning",
    "An image that does not run on this machine.",
    "CUDA images find no GPU on AMD machines, ROCm images none on NVIDIA's; x86 images do not start on ARM machines "
    "(GB200, GB300).",
    Example(
        """\
type: command
command: python -m train
environment: ‸azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/versions/7
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {instance_type: ‹Standard_ND96isr_MI300X_v5⇒Standard_ND96isr_H100_v5›, shm_size: 64g}
"""
    ),
)
BF16_WITHOUT_HARDWARE = Rule(
    "AML607",
    "bf16-without-hardware",
    "warning",
    "bf16 on GPUs that have none: V100, T4 and older.",
    "Torch emulates it, slower than fp32, or stops. Use fp16 or fp32 there.",
    Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs: {precision: ‹bf16⇒fp16›}
    resources: {instance_type: Standard_NC4as_T4_v3}
=== train.yaml
type: command
name: train
command: python -m train --precision ${{inputs.precision}}
environment: azureml:torch:3
inputs:
  precision: {type: string, enum: [fp32, fp16, bf16], default: fp32}
"""),
)
SHM_MISSING = Rule(
    "AML608",
    "shm-size-missing",
    "warning",
    "Several processes on a machine, and no `shm_size`.",
    "Shared memory is then 2 GB, which worker processes and NCCL on 8 GPUs soon fill: the job dies of a bus error. A "
    "job's `resources` replace those of its component as a whole, `shm_size` too.",
    Example(
        _JOB
        + """\
distribution: {type: pytorch, process_count_per_instance: 8}
‸resources: {instance_count: 2‹⇒, shm_size: 64g›}
"""
    ),
    suppressed_by_errors=True,
)
MORE_NODES_THAN_CLUSTER = Rule(
    "AML609",
    "more-nodes-than-cluster",
    "warning",
    "More machines than the cluster can have.",
    "The job waits in the queue for ever.",
    Example(
        """\
type: command
command: python -m train
environment: azureml:torch:3
compute: azureml:gpu
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {instance_count: ‹4⇒2›, shm_size: 64g}
"""
        + _CLUSTER.format(size="Standard_ND96asr_v4")
    ),
)
UNKNOWN_SKU = Rule(
    "AML610",
    "unknown-sku",
    "warning",
    "A GPU machine that Azure does not have, as far as is known here.",
    "Said of names that begin with Standard_NC or Standard_ND; `trainyard skus` lists what is known.",
    Example("type: amlcompute\nname: gpu\nsize: ‹Standard_ND96asr_v5⇒Standard_ND96asr_v4›\nmax_instances: 2\n"),
)
LOW_PRIORITY = Rule(
    "AML611",
    "low-priority",
    "info",
    "`low_priority` means Spot machines.",
    "Low-priority machines ended on 2026-03-31. The word still stands for Spot capacity, which can be taken away at 30 "
    "seconds' notice: the job has to save checkpoints where they survive.",
    Example(
        "type: amlcompute\nname: gpu\nsize: Standard_ND96asr_v4\nmax_instances: 2\ntier: ‹low_priority⇒dedicated›\n"
    ),
)
SPOT_WITHOUT_CHECKPOINTS = Rule(
    "AML612",
    "spot-without-checkpoints",
    "warning",
    "A training on Spot machines that has no output for checkpoints.",
    "When the machine is taken away only what lies in a mounted output is left; `./outputs` and outputs of mode "
    "`upload` are lost.",
    Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  ‸train:
    component: ./train.yaml
    queue_settings: {job_tier: spot}
=== train.yaml
type: command
name: train
is_deterministic: false
command: python -m train --‹model⇒checkpoints› '${{outputs.‹model⇒checkpoints›}}'
environment: azureml:torch:3
outputs:
  ‹model⇒checkpoints›: {type: uri_folder}
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {shm_size: 64g}
"""),
)
LAUNCHER_UNDER_DISTRIBUTION = Rule(
    "AML613",
    "launcher-under-distribution",
    "error",
    "A launcher in the command, although `distribution` starts the processes already.",
    "Each of the processes that Azure ML starts would start all of them again. Call the script itself, or say "
    "`process_count_per_instance: 1`.",
    Example("""\
type: command
command: ‹torchrun --nproc_per_node 8 ⇒python ›train.py
environment: azureml:torch:3
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {shm_size: 64g}
"""),
)
INFINIBAND_OFF = Rule(
    "AML614",
    "infiniband-off",
    "warning",
    "`NCCL_IB_DISABLE=1` on machines with InfiniBand.",
    "NCCL falls back to sockets without a word, and training over several machines slows to a crawl.",
    Example("""\
type: command
command: python -m train
environment: azureml:torch:3
environment_variables:
‹  ‸NCCL_IB_DISABLE: "1"⇒  NCCL_DEBUG: INFO›
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {instance_count: 2, instance_type: Standard_ND96asr_v4, shm_size: 64g}
"""),
)
LAUNCH_BLOCKING = Rule(
    "AML615",
    "cuda-launch-blocking",
    "warning",
    "`CUDA_LAUNCH_BLOCKING=1` makes each kernel wait for the one before.",
    "It is for finding errors; a training with it is many times slower.",
    Example("""\
type: command
command: python -m train
environment: azureml:torch:3
environment_variables:
‹  ‸CUDA_LAUNCH_BLOCKING: "1"⇒  NCCL_DEBUG: INFO›
"""),
)
UPLOADED_CHECKPOINTS = Rule(
    "AML616",
    "uploaded-checkpoints",
    "warning",
    "Checkpoints go to an output of mode `upload`.",
    "Such an output appears when the job ends, and not at all when it is taken away. `rw_mount` keeps files as they "
    "are written.",
    Example("""\
type: command
name: train
command: python -m train --checkpoints '${{outputs.checkpoints}}'
environment: azureml:torch:3
outputs:
  checkpoints: {type: uri_folder, mode: ‹upload⇒rw_mount›}
"""),
)
LEFT_DETERMINISTIC = Rule(
    "AML617",
    "left-deterministic",
    "warning",
    "A distributed training that does not say whether it is deterministic.",
    "Not said, Azure ML takes it to be: submitted again with nothing changed, it is not run, and yesterday's outputs "
    "are given instead. Say `is_deterministic: false`, or `true` and mean it.",
    Example("""\
type: command
‸name: train
‹⇒is_deterministic: false
›command: python -m train
environment: azureml:torch:3
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {shm_size: 64g}
"""),
    suppressed_by_errors=True,
)
NODES_WITHOUT_DISTRIBUTION = Rule(
    "AML618",
    "nodes-without-distribution",
    "warning",
    "Several machines, and no `distribution` that joins them.",
    "Azure ML sets no RANK, WORLD_SIZE or MASTER_ADDR then: the machines know nothing of each other, and all are "
    "paid for.",
    Example("""\
type: command
command: python train.py
environment: azureml:torch:3
compute: azureml:gpus
resources: {instance_count: ‹2⇒1›, shm_size: 16g}
"""),
    suppressed_by_errors=True,
)
RULES = (
    PROCESSES_EXCEED_GPUS,
    GPUS_IDLE,
    WORKERS_AGAINST_NODES,
    NODES_WITHOUT_RDMA,
    RETIRED_SKU,
    IMAGE_AGAINST_MACHINE,
    BF16_WITHOUT_HARDWARE,
    SHM_MISSING,
    MORE_NODES_THAN_CLUSTER,
    UNKNOWN_SKU,
    LOW_PRIORITY,
    SPOT_WITHOUT_CHECKPOINTS,
    LAUNCHER_UNDER_DISTRIBUTION,
    INFINIBAND_OFF,
    LAUNCH_BLOCKING,
    UPLOADED_CHECKPOINTS,
    LEFT_DETERMINISTIC,
    NODES_WITHOUT_DISTRIBUTION,
)

# The most that any machine of the catalogue has.
_MOST_GPUS = 8
_CHECKPOINT_NAME = re.compile(r"(?<![a-z])(check_?points?|ckpts?)(?![a-z])", re.IGNORECASE)
_PRECISION_NAME = re.compile(r"(mixed_)?precision|(torch_)?dtype|amp_dtype", re.IGNORECASE)
_BF16_VALUE = re.compile(r"bf16(-mixed|-true)?|bfloat16", re.IGNORECASE)
_ON = frozenset({"1", "true", "yes", "y", "t", "on"})
_OFF = frozenset({"0", "false", "no", "n", "f", "off"})
_GPU_SIZE = re.compile(r"Standard_N[CD]\d", re.IGNORECASE)
_ASSIGNED_IN_COMMAND = re.compile(r"\b([A-Z][A-Z0-9_]+)=([^\s;&|]+)")


def check_document(document: Document, kind: Kind, context: LintContext) -> Iterator[Diagnostic]:
    """The size and the tier of a cluster."""
    if kind != "compute":
        return
    size, tier = document.root.get("size"), document.root.get("tier")
    least, most = document.root.get("min_instances"), document.root.get("max_instances")
    if least is not None and most is not None and type(least.data) is type(most.data) is int and least.data > most.data:
        message = f"min_instances is {least.data}, above max_instances, which is {most.data}"
        yield LIMITS_CONTRADICT.at(least.span, message, "Swap them, or mend the wrong one.")
    if size is not None and size.is_text:
        yield from _size(size.value)
    if tier is not None and tier.text.lower().replace("_", "") == "lowpriority":
        message = "low-priority machines ended on 2026-03-31: this gives Spot machines, which can be taken away"
        yield LOW_PRIORITY.at(tier.span, message, "Save checkpoints to a mounted output, or write `tier: dedicated`.")


def check_command(seen: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """A component by itself, or a command job."""
    placement = placement_of_command(seen, context)
    if seen.is_component:
        yield from _left_deterministic(placement)
    if not context.is_used(seen.component):
        yield from _check(placement)
    if seen.is_component or _is_root(seen):
        yield from _uploaded_checkpoints(seen.node)


def check_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """Each job of a pipeline, on the machines that it gets."""
    for placement in placements_of_pipeline(seen, context):
        yield from _check(placement)
    for job in seen.scope.jobs.values():
        yield from _uploaded_checkpoints(job.node)


def _is_root(seen: ParsedCommand) -> bool:
    return seen.node is seen.reading.document.root


def _check(placement: Placement) -> Iterator[Diagnostic]:
    sku = placement.sku
    yield from _processes(placement, sku)
    yield from _workers(placement, sku)
    yield from _nodes(placement, sku)
    yield from _machine(placement, sku)
    yield from _shared_memory(placement)
    yield from _spot(placement)
    yield from _launcher(placement)
    yield from _variables(placement, sku)


def _size(size: Value) -> Iterator[Diagnostic]:
    from trainyard.catalogue.skus import closest_by_name, closest_current

    sku = sku_named(size.text)
    if sku is None:
        if _GPU_SIZE.match(size.text):
            close = ", ".join(each.name for each in closest_by_name(size.text))
            hint = f"Closest: {close}." if close else "`trainyard skus` lists them."
            yield UNKNOWN_SKU.at(size.span, f"no VM size '{shorten(size.text)}' is known here", hint)
        elif (meant := _names_without_separators().get(_without_separators(size.text))) is not None:
            message = f"no VM size is written '{size.text}'"
            yield UNKNOWN_SKU.at(size.span, message, f"Write {meant}.", replacement=meant)
    elif not size.text.lower().startswith("standard_"):
        message = f"'{size.text}' is no VM size: their names begin with Standard_"
        yield UNKNOWN_SKU.at(size.span, message, f"Write {sku.name}.", replacement=sku.name)
    elif sku.is_retired:
        others = ", ".join(other.name for other in closest_current(sku, most=2))
        message = f"{sku.name} was retired on {sku.retirement_date}"
        yield RETIRED_SKU.at(size.span, message, f"In its place: {others}.")


def _without_separators(name: str) -> str:
    return re.sub(r"[_\- ]", "", name).lower()


@cache
def _names_without_separators() -> dict[str, str]:
    """All sizes as they are written, by their letters and figures alone."""
    from trainyard.catalogue.skus import all_skus

    return {_without_separators(sku.name): sku.name for sku in all_skus()}


def _processes(placement: Placement, sku: Sku | None) -> Iterator[Diagnostic]:
    distribution = placement.distribution
    if distribution is None or distribution.type not in ("pytorch", "mpi"):
        return
    count = distribution.process_count_per_instance
    processes, nodes = placement.processes_per_node, placement.nodes
    if processes is None:
        return
    written = placement.settled(count).span if count is not None else distribution.span
    if sku is None:
        if processes > _MOST_GPUS and distribution.type == "pytorch":
            message = f"{processes} processes on each machine, and no machine of Azure has more than {_MOST_GPUS} GPUs"
            found = PROCESSES_EXCEED_GPUS.at(written, message, _per_node(processes, nodes, None))
            yield replace(found, severity="warning")
        return
    most = sku.gpu_count or sku.vcpus
    if processes > most:
        what = f"{sku.gpu_count} GPUs" if sku.gpu_count else f"{sku.vcpus} processors and no GPU"
        message = f"{processes} processes on each machine, and {sku.name} has {what}"
        yield PROCESSES_EXCEED_GPUS.at(written, message, _per_node(processes, nodes, most), _machine_related(placement))
    elif processes < sku.gpu_count and not _launchers(placement):
        message = f"{processes} of the {sku.gpu_count} GPUs of {sku.name} are used"
        hint = f"Write `process_count_per_instance: {sku.gpu_count}`."
        yield GPUS_IDLE.at(written, message, hint, _machine_related(placement))


def _per_node(processes: int, nodes: int | None, most: int | None) -> str:
    if nodes is not None and nodes > 1 and processes % nodes == 0:
        return f"It counts the processes of one machine, not of all {nodes}: write {processes // nodes}."
    return f"Write {most}." if most is not None else "It counts the processes of one machine: as many as it has GPUs."


def _machine_related(placement: Placement) -> list[Related]:
    """Where the machine is said."""
    if placement.resources is not None and placement.resources.instance_type is not None:
        return [Related(placement.resources.instance_type.span, "the machine is said here")]
    compute = placement.known_compute
    if compute is not None and compute.span is not None:
        return [Related(compute.span, f"the cluster '{compute.name}' is of this size")]
    return []


def _workers(placement: Placement, sku: Sku | None) -> Iterator[Diagnostic]:
    distribution, nodes = placement.distribution, placement.nodes
    if distribution is None or distribution.type != "tensorflow" or distribution.worker_count is None or nodes is None:
        return
    workers = placement.number(distribution.worker_count)
    servers_value = distribution.parameter_server_count
    servers = placement.number(servers_value) if servers_value is not None else 0
    if workers is None or servers is None or workers in (nodes, nodes - servers):
        return
    message = f"{workers} workers, and {nodes} machine{'s' if nodes > 1 else ''}: each runs one, with all its GPUs"
    hint = f"Write `worker_count: {nodes}`, or leave it out."
    yield WORKERS_AGAINST_NODES.at(distribution.worker_count.span, message, hint)


def _nodes(placement: Placement, sku: Sku | None) -> Iterator[Diagnostic]:
    count = placement.resources.instance_count if placement.resources is not None else None
    nodes = placement.nodes
    if count is None or nodes is None or nodes < 2:
        return
    span = placement.settled(count).span
    if sku is not None and sku.gpu_count and not sku.rdma and placement.distribution is not None:
        message = f"{nodes} machines of {sku.name}, which has no InfiniBand"
        hint = "Use one machine, or a size with an 'r' such as Standard_ND96asr_v4."
        yield NODES_WITHOUT_RDMA.at(span, message, hint, _machine_related(placement))
    if placement.distribution is None and _calls_python(placement) and not _launchers(placement):
        message = f"{nodes} machines, and no distribution: they know nothing of each other"
        hint = "Write `distribution: {type: pytorch, process_count_per_instance: GPUS}`, or take one machine."
        yield NODES_WITHOUT_DISTRIBUTION.at(span, message, hint)
    compute = placement.known_compute
    if compute is not None and compute.max_instances is not None and nodes > compute.max_instances:
        message = f"{nodes} machines, and the cluster '{compute.name}' has {compute.max_instances} at most"
        related = [Related(compute.span, f"'{compute.name}' is declared here")] if compute.span is not None else []
        yield MORE_NODES_THAN_CLUSTER.at(span, message, "Raise `max_instances`, or take fewer.", related)


def _calls_python(placement: Placement) -> bool:
    return any(words[0].text in ("python", "python3") for words in simple_commands(placement.component.command.text))


def _machine(placement: Placement, sku: Sku | None) -> Iterator[Diagnostic]:
    resources = placement.resources
    if resources is not None and resources.instance_type is not None and isinstance(resources.instance_type.data, str):
        yield from _size(resources.instance_type)
    if sku is None or not sku.gpu_count:
        return
    environment = placement.component.environment
    text = (environment.reference or environment.image or "").lower() if environment is not None else ""
    problem = ""
    if sku.gpu_vendor == "AMD" and re.search(r"cuda|\bacpt\b", text):
        problem = f"a CUDA image on {sku.name}, whose GPUs are AMD's"
    elif sku.gpu_vendor == "NVIDIA" and "rocm" in text:
        problem = f"a ROCm image on {sku.name}, whose GPUs are NVIDIA's"
    elif sku.cpu_architecture == "arm64" and re.search(r"registries/azureml/|mcr\.microsoft\.com/(azureml|aifx)", text):
        problem = f"an x86 image on {sku.name}, which is an ARM machine"
    if problem and environment is not None:
        hint = "Build an environment for this machine, or use another machine."
        yield IMAGE_AGAINST_MACHINE.at(environment.span, problem, hint, _machine_related(placement))
    if not sku.bf16:
        yield from _bf16(placement, sku)


def _bf16(placement: Placement, sku: Sku) -> Iterator[Diagnostic]:
    message = f"bf16 on {sku.name}: its {sku.gpu_model} has no bf16"
    for span in _bf16_words(placement):
        yield BF16_WITHOUT_HARDWARE.at(span, message, "Use fp16 or fp32 here.", _machine_related(placement))
    for name in placement.component.inputs:
        value = placement.input(name)
        if value is None:
            continue
        is_precision = _PRECISION_NAME.fullmatch(name) and _BF16_VALUE.fullmatch(value.text)
        if is_precision or (name.lower() == "bf16" and value.text.lower() in _ON):
            span = placement.inputs[name].span if name in placement.inputs else value.span
            yield BF16_WITHOUT_HARDWARE.at(span, message, "Use fp16 or fp32 here.", _machine_related(placement))


def _bf16_words(placement: Placement) -> Iterator[Span]:
    """Where the command itself asks for bf16."""
    found = placement.context.command_node(placement.component)
    if found is None:
        return
    command, document = found
    for words in simple_commands(command.text):
        for at, word in enumerate(words):
            name, _, value = word.text.lstrip("-").partition("=")
            following = value or (words[at + 1].text if at + 1 < len(words) else "")
            is_flag = word.text.startswith("--") and name.lower() == "bf16" and following.lower() not in _OFF
            if is_flag or (_PRECISION_NAME.fullmatch(name.replace("-", "_")) and _BF16_VALUE.fullmatch(following)):
                yield document.span_within(command, word.start, word.end)


def _shared_memory(placement: Placement) -> Iterator[Diagnostic]:
    processes = placement.processes_per_node
    resources = placement.resources
    if processes is None or processes < 2 or (resources is not None and resources.shm_size is not None):
        return
    own = placement.node.entries.get("resources")
    if own is None and not placement.is_component and placement.component.resources is not None:
        span = placement.component.resources.span
    else:
        span = own.key.span if own is not None else _distribution_key(placement)
    message = f"{processes} processes share 2 GB of shared memory"
    yield SHM_MISSING.at(span, message, "Write `shm_size: 64g` beneath `resources`.")


def _distribution_key(placement: Placement) -> Span:
    entry = placement.node.entries.get("distribution")
    if entry is not None:
        return entry.key.span
    return placement.distribution.span if placement.distribution is not None else placement.head


def _spot(placement: Placement) -> Iterator[Diagnostic]:
    if placement.distribution is None or placement.is_component or not _is_spot(placement):
        return
    outputs: Mapping[str, object] = {**placement.component.outputs, **placement.outputs}
    if not any(_CHECKPOINT_NAME.search(name) for name in (*outputs, *placement.component.inputs)):
        message = "Spot machines can be taken away, and no output here is for checkpoints"
        hint = "Give the step an output such as `checkpoints: {type: uri_folder, mode: rw_mount}`."
        yield SPOT_WITHOUT_CHECKPOINTS.at(placement.head, message, hint)


def _is_spot(placement: Placement) -> bool:
    queue = placement.node.get("queue_settings")
    tier = queue.get("job_tier") if queue is not None and queue.is_mapping else None
    if tier is not None and tier.text.lower() == "spot":
        return True
    compute = placement.known_compute
    return compute is not None and compute.tier.replace("_", "") == "lowpriority"


def _launchers(placement: Placement) -> list[tuple[int, int]]:
    """Where launchers stand in the command."""
    found = []
    for words in simple_commands(placement.component.command.text):
        for word in words:
            if word.text in LAUNCHER_MODULES or (word.text in LAUNCHERS and word is words[0]):
                found.append((word.start, word.end))
    return found


def _launcher(placement: Placement) -> Iterator[Diagnostic]:
    processes = placement.processes_per_node
    if placement.distribution is None or processes is None or processes < 2:
        return
    found = placement.context.command_node(placement.component)
    if found is None:
        return
    command, document = found
    for start, end in _launchers(placement):
        span = document.span_within(command, start, end)
        message = f"each of the {processes} processes that `distribution` starts would start its own processes"
        related = [Related(placement.distribution.span, "the processes are started here")]
        hint = "Call the script with python, or write `process_count_per_instance: 1`."
        yield LAUNCHER_UNDER_DISTRIBUTION.at(span, message, hint, related)


def _variables(placement: Placement, sku: Sku | None) -> Iterator[Diagnostic]:
    for name, value, span in _set_variables(placement):
        if value.lower() not in _ON:
            continue
        if name == "CUDA_LAUNCH_BLOCKING":
            message = "each kernel waits for the one before: this is for finding errors, and slows trainings down"
            yield LAUNCH_BLOCKING.at(span, message, "Remove it.")
        elif name == "NCCL_IB_DISABLE" and sku is not None and sku.rdma:
            message = f"{sku.name} has InfiniBand, and this switches it off"
            yield INFINIBAND_OFF.at(span, message, "Remove it.", _machine_related(placement))


def _set_variables(placement: Placement) -> Iterator[tuple[str, str, Span]]:
    """Variables that are set to literals, beneath `environment_variables` or in the command itself."""
    node = placement.node.get("environment_variables")
    for name, entry in (node.entries if node is not None else {}).items():
        yield name, entry.value.text, entry.key.span
    found = placement.context.command_node(placement.component)
    if found is not None:
        command, document = found
        for match in _ASSIGNED_IN_COMMAND.finditer(command.text):
            yield match[1], match[2], document.span_within(command, match.start(), match.end())


def _uploaded_checkpoints(node: Node) -> Iterator[Diagnostic]:
    outputs = node.get("outputs")
    for name, entry in (outputs.entries if outputs is not None else {}).items():
        mode = entry.value.get("mode") if entry.value.is_mapping else None
        if mode is not None and mode.text.lower() == "upload" and _CHECKPOINT_NAME.search(name):
            message = f"'{name}' is uploaded when the job ends: of a job that is taken away nothing is left"
            yield UPLOADED_CHECKPOINTS.at(mode.span, message, "Write `mode: rw_mount`.", replacement="rw_mount")


# `echo $TF_CONFIG` trains nothing.
_PROGRAM = re.compile(r"python|torchrun|deepspeed|mpirun|horovodrun|accelerate|train|\.(?:sh|py)\b")


def _left_deterministic(placement: Placement) -> Iterator[Diagnostic]:
    command = placement.node.get("command")
    starts_program = command is not None and _PROGRAM.search(command.text) is not None
    if placement.distribution is not None and starts_program and placement.node.get("is_deterministic") is None:
        name = placement.node.entries.get("name")
        message = "Azure ML takes this training to be deterministic, and reuses its outputs instead of running it"
        hint = "Add `is_deterministic: false`."
        yield LEFT_DETERMINISTIC.at(name.key.span if name is not None else placement.head, message, hint)
