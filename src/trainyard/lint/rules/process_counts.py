"""Processes against the GPUs and machines that they run on, and how they are started."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.placements import Placement
from trainyard.lint.rules.command_ports import is_stub
from trainyard.lint.rules.vm_sizes import machine_related
from trainyard.lint.scripts.syntax import Syntax, constant, dotted, keyword
from trainyard.settings.quantities import counted
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span
from trainyard.spec.distributions import Mpi, PyTorch, TensorFlow
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import simple_commands
from trainyard.spec.shell_words import LAUNCHER_MODULES, LAUNCHERS

_DEVICES = regex(r"[0-9]+(?:,[0-9]+)*")
# The most that any machine in the catalogue has.
_MOST_GPUS = 8
_FOR_ALL_GPUS: frozenset[str] = frozenset(known_words("for_all_gpus"))
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
_LIGHTNING_STARTS = frozenset({"Trainer", "LightningCLI", "Fabric"})


PROCESSES_EXCEED_GPUS = Rule("AML601", "processes-exceed-gpus", "error", is_let_pass=True).explained(
    summary="There are more processes on a machine than GPUs.",
    why="`process_count_per_instance` is the number of processes per machine, not in total: the world size is "
    "`instance_count` times that. A process without its own GPU fails with an invalid device ordinal.",
)


@check("placement")
def _processes_exceed_gpus(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku, processes, nodes = placement.sku, _gpu_processes(placement), placement.nodes
    most = (sku.gpu_count or sku.vcpus) if sku is not None else _MOST_GPUS
    if processes is None or processes <= most:
        return
    is_split = nodes is not None and nodes > 1 and processes % nodes == 0
    hint = f"Write {most}." if sku is not None else "It is per machine: use as many as it has GPUs."
    if nodes is not None and is_split and processes // nodes <= most:
        hint = f"It is per machine, not for all {nodes}: write {processes // nodes}."
    if sku is not None:
        what = counted(sku.gpu_count, "GPU") if sku.gpu_count else f"{sku.vcpus} CPUs and no GPU"
        message = f"{processes} processes per machine, but {sku.name} has {what}"
        yield PROCESSES_EXCEED_GPUS.at(_count_span(placement), message, hint, machine_related(placement))
    elif isinstance(placement.distribution, PyTorch):
        message = f"{processes} processes per machine, but no Azure machine has more than {_MOST_GPUS} GPUs"
        yield PROCESSES_EXCEED_GPUS.at(_count_span(placement), message, hint, severity="warning")


GPUS_IDLE = Rule("AML602", "gpus-idle", "warning", suppressed_by_errors=True).explained(
    summary="There are fewer processes on a machine than GPUs.",
    why="Each process uses one GPU; the others are paid for and idle. The default of "
    "`process_count_per_instance` is 1. Not reported for a script that starts a process for each GPU itself "
    "(`torch.multiprocessing.spawn`, Lightning's Trainer under MPI) or uses all of them in one (DataParallel).",
)


@check("placement")
def _gpus_idle(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku, processes = placement.sku, _gpu_processes(placement)
    if sku is None or processes is None or processes >= sku.gpu_count or _launchers(placement):
        return
    if processes == 1 and _starts_its_own(placement, context):
        return
    message = f"only {processes} of the {sku.gpu_count} GPUs of {sku.name} are used"
    hint = f"Write `process_count_per_instance: {sku.gpu_count}`."
    yield GPUS_IDLE.at(_count_span(placement), message, hint, machine_related(placement))


def _starts_its_own(placement: Placement, context: LintContext) -> bool:
    """Whether one process on a machine is right, because a script of the command starts the others."""
    command = context.command_of(placement.component)
    scripts = [syntax for _, _, syntax in context.scripts_of(command)] if command is not None else []
    by_lightning = isinstance(placement.distribution, Mpi) and any(map(_lightning_starts_processes, scripts))
    return by_lightning or any(map(_uses_all_gpus, scripts))


@check("placement")
def _fewer_visible_gpus(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    """Processes for GPUs that `CUDA_VISIBLE_DEVICES` hides."""
    processes = _gpu_processes(placement)
    entry = placement.node.entries_of("environment_variables").get("CUDA_VISIBLE_DEVICES")
    listed = _DEVICES.fullmatch(entry.value.text) if entry is not None else None
    if entry is None or listed is None or processes is None:
        return
    visible = entry.value.text.count(",") + 1
    if processes > visible:
        message = f"{processes} processes per machine, and CUDA_VISIBLE_DEVICES leaves them {visible} of its GPUs"
        hint = "Remove the variable: each process takes the GPU of its local rank."
        yield PROCESSES_EXCEED_GPUS.at(entry.value.span, message, hint)


RANK_VARIABLES = Rule("AML619", "rank-variables", "warning").explained(
    summary="A job of several processes sets the variables by which they find each other.",
    why="Azure ML sets RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK, MASTER_ADDR and MASTER_PORT for each process of a "
    "`distribution`. One value for all of them is either overwritten, or the processes wait for each other "
    "forever.",
)


@check("placement")
def _rank_variables(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    if placement.distribution is None:
        return
    for name, entry in placement.node.entries_of("environment_variables").items():
        if name in placement.distribution.rank_variables:
            message = f"Azure ML gives {name} to each process of the distribution, with a value of its own"
            yield RANK_VARIABLES.at(entry.key.span, message, "Remove it.")


def _gpu_processes(placement: Placement) -> int | None:
    """Processes per machine of a distribution that starts one per GPU; None if it does not, or if unknown."""
    distribution = placement.distribution
    if distribution is None or not distribution.has_process_per_gpu:
        return None
    return placement.processes_per_node


def _count_span(placement: Placement) -> Span:
    """Where the number of processes is set."""
    assert placement.distribution is not None
    count = placement.distribution.process_count_per_instance
    return placement.settled(count).span if count is not None else placement.distribution.span


WORKERS_AGAINST_NODES = Rule("AML603", "workers-against-nodes", "warning").explained(
    summary="TensorFlow's worker_count is not the number of machines.",
    why="Each machine runs one worker, which uses all its GPUs. If omitted, `worker_count` is `instance_count`.",
)


@check("placement")
def _workers_against_nodes(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    distribution, nodes = placement.distribution, placement.nodes
    if not isinstance(distribution, TensorFlow) or distribution.worker_count is None or nodes is None:
        return
    workers = placement.number(distribution.worker_count)
    servers_value = distribution.parameter_server_count
    servers = placement.number(servers_value) if servers_value is not None else 0
    if workers is not None and servers is not None and workers not in (nodes, nodes - servers):
        message = f"{workers} workers on {nodes} machine{'s' if nodes > 1 else ''}: each machine runs one worker"
        hint = f"Write `worker_count: {nodes}`, or omit it."
        yield WORKERS_AGAINST_NODES.at(distribution.worker_count.span, message, hint)


# 2 GB of shared memory are as much as a few small data loaders need.
_SOON_TOO_MANY = 4


SHM_SIZE_MISSING = Rule("AML608", "shm-size-missing", "warning", suppressed_by_errors=True).explained(
    summary="There are several processes on a machine, but no `shm_size`.",
    why="Shared memory is then 2 GB, which data loader workers and NCCL on 8 GPUs soon fill: the job dies of a bus "
    "error. A job's `resources` replace those of its component as a whole, including `shm_size`. It is a note for two "
    "or three processes, for which 2 GB may do.",
)


@check("placement")
def _shm_size_missing(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    processes, resources = placement.processes_per_node, placement.resources
    if processes is None or processes < 2 or (resources is not None and resources.shm_size is not None):
        return
    if is_stub(placement.component.command.text):
        return
    own = placement.node.entries.get("resources")
    if own is None and not placement.is_component and placement.component.resources is not None:
        span = placement.component.resources.span
    else:
        span = own.key.span if own is not None else _distribution_key(placement)
    message = f"{processes} processes share 2 GB of shared memory"
    severity: Severity | None = None if processes >= _SOON_TOO_MANY else "info"
    yield SHM_SIZE_MISSING.at(span, message, "Write `shm_size: 64g` under `resources`.", severity=severity)


def _distribution_key(placement: Placement) -> Span:
    entry = placement.node.entries.get("distribution")
    if entry is not None:
        return entry.key.span
    return placement.distribution.span if placement.distribution is not None else placement.head


LAUNCHER_UNDER_DISTRIBUTION = Rule("AML613", "launcher-under-distribution", "error", is_let_pass=True).explained(
    summary="The command uses a launcher, although `distribution` already starts the processes.",
    why="Each of the processes that Azure ML starts would start all of them again. Run the script itself, or set "
    "`process_count_per_instance: 1`; on several machines the launcher must then know of the others, as torchrun does "
    "by `--nnodes`, `--node_rank` and `--master_addr`, and deepspeed by `--hostfile` alone.",
)


@check("placement")
def _launcher_under_distribution(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    processes, command = placement.processes_per_node, context.command_of(placement.component)
    if placement.distribution is None or processes is None or processes < 2 or command is None:
        return
    hint = "Run the script with python"
    if placement.nodes == 1:
        hint += ", or write `process_count_per_instance: 1`"
    for start, end in _launchers(placement):
        message = f"each of the {processes} processes that `distribution` starts would start its own processes"
        related = [Related(placement.distribution.span, "the processes are started here")]
        yield LAUNCHER_UNDER_DISTRIBUTION.at(command.span(start, end), message, f"{hint}.", related)


NODES_WITHOUT_DISTRIBUTION = Rule(
    "AML618", "nodes-without-distribution", "warning", suppressed_by_errors=True
).explained(
    summary="There are several machines, but no `distribution` that connects them.",
    why="Azure ML then sets no RANK, WORLD_SIZE or MASTER_ADDR: the machines do not know about each other, and "
    "all of them are paid for.",
)


@check("placement")
def _nodes_without_distribution(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    count = placement.resources.instance_count if placement.resources is not None else None
    nodes = placement.nodes
    if count is None or nodes is None or nodes < 2 or placement.distribution is not None or _launchers(placement):
        return
    if any(words[0].text in ("python", "python3") for words in simple_commands(placement.component.command.text)):
        message = f"{nodes} machines without a distribution: they do not know about each other"
        hint = "Write `distribution: {type: pytorch, process_count_per_instance: GPUS}`, or use one machine."
        yield NODES_WITHOUT_DISTRIBUTION.at(placement.settled(count).span, message, hint)


def _launchers(placement: Placement) -> list[tuple[int, int]]:
    """Where the command names launchers."""
    return [
        (word.start, word.end)
        for words in simple_commands(placement.component.command.text)
        for word in words
        if word.text in LAUNCHER_MODULES or (word.text in LAUNCHERS and word is words[0])
    ]


def _uses_all_gpus(syntax: Syntax) -> bool:
    """Return whether one process of a script is enough for all GPUs of its machine, whatever starts it."""
    if any(isinstance(constant(node), str) and _names_launcher(str(node.value)) for node in syntax.of(ast.Constant)):
        return True
    return any(
        dotted(call.func, syntax.imported) in _FOR_ALL_GPUS or constant(keyword(call, "device_map")) is not None
        for call in syntax.calls
    )


def _lightning_starts_processes(syntax: Syntax) -> bool:
    """Return whether a script has a Trainer of Lightning for more than one GPU.

    It starts a process for each GPU where LOCAL_RANK is not set, as under MPI; else the launcher is expected to:
    https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html
    """
    for call in syntax.calls:
        path = dotted(call.func, syntax.imported)
        if path.partition(".")[0] in _LIGHTNING and path.rpartition(".")[2] in _LIGHTNING_STARTS:
            return constant(keyword(call, "devices")) != 1
    return False


def _names_launcher(text: str) -> bool:
    """Whether a string, such as a command for `subprocess`, starts with a launcher or names a launcher's module."""
    words = text.split()
    return bool(words) and (
        words[0] in LAUNCHERS - {"accelerate", "deepspeed"} or not LAUNCHER_MODULES.isdisjoint(words)
    )
