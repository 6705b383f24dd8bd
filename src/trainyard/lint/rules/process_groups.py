"""How the processes of a job start and find each other: the flags of launchers, and `init_process_group` in scripts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.placements import Placement
from trainyard.lint.rules.vm_sizes import machine_related
from trainyard.lint.script_calls import calls_with_flags, declared
from trainyard.lint.scripts.data_reads import argument_holders
from trainyard.lint.scripts.flags import ScriptFlags
from trainyard.lint.scripts.syntax import Syntax, constant, dotted, keyword, line_of, walk
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import only_close, slips
from trainyard.spec.diagnostic import Diagnostic, Severity
from trainyard.spec.distributions import Mpi, PyTorch
from trainyard.spec.expressions import name_bound
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import Word, simple_commands, words_with_values
from trainyard.spec.shell_words import LAUNCHER_MODULES, CalledScript

# https://docs.pytorch.org/docs/stable/distributed.html
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xccl", "hccl")
# All families with GPUs begin with N: https://learn.microsoft.com/azure/virtual-machines/sizes/overview
_CPU_FAMILY = regex(r"Standard_[A-MO-Z]+\d", re.IGNORECASE)
_SETS_OWN_ADDRESS = regex(r"(?:os\.)?environ\['MASTER_ADDR'\] = '(?:localhost|127\.0\.0\.1)'")
_JOIN = "torch.distributed.init_process_group"
_CONDITIONS = (ast.If, ast.Try, ast.IfExp, ast.ExceptHandler, ast.BoolOp, ast.While)
OF_RANK = regex(r"rank|master|main|primary|chief|getpid|uuid", re.IGNORECASE)
"""What is not the same in each process."""


PROCESS_GROUP = Rule("AML621", "process-group", "error").explained(
    summary="A script creates its process group in a way that cannot work on the machines of the job.",
    why="NCCL needs a GPU for each process; on machines without one, use gloo. With a rank or an address of its own "
    "in the script, every process is the same one or waits for itself: Azure ML sets RANK, WORLD_SIZE and MASTER_ADDR, "
    "not with `type: mpi`, and under no other name (a warning). What all processes call together, such as `barrier()`, "
    "waits forever where rank 0 alone calls it (a warning). Other code under a condition is not checked.",
)


@check("placement")
def _process_group(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    distribution, command = placement.distribution, context.command_of(placement.component)
    if not isinstance(distribution, PyTorch) or command is None:
        return
    sku = placement.sku
    has_gpu = bool(sku.gpu_count) if sku is not None else _CPU_FAMILY.match(placement.size) is None
    for called, file, syntax in context.scripts_of(command):
        joins = [call for call in syntax.calls if dotted(call.func, syntax.imported) == _JOIN]
        on_condition = conditional(syntax) if joins else set()
        for call in joins:
            if id(call) in on_condition:
                continue
            backend = _backend(call, called, syntax, context.flags_of(file, called.root), placement)
            here = line_of(file, call, "the process group is created here")
            name = str(backend).lower()
            meant = next((known for known in _BACKENDS[:2] if slips(name, known) == 1), None)
            if isinstance(backend, str) and name not in _BACKENDS and meant is not None:
                message = f"{called.name} asks for the backend '{backend}', which PyTorch does not have"
                yield PROCESS_GROUP.at(called.place, message, f"Did you mean '{meant}'?", [here])
            elif backend in ("nccl", "NCCL") and not has_gpu:
                message = f"{called.name} creates its process group with NCCL, and {placement.size} has no GPU"
                yield PROCESS_GROUP.at(called.place, message, "Use gloo.", [here, *machine_related(placement)])
        yield from _own_address(syntax, called, file, placement)


def conditional(syntax: Syntax) -> set[int]:
    """The nodes that are only reached on a condition, in functions that are only called on one too."""
    found: set[int] = set()
    for each in (node for kind in _CONDITIONS for node in syntax.of(kind)):
        if id(each) not in found and _may_be_left_out(each):
            found |= {id(node) for node in walk(each)}
    calls = [call for call in syntax.calls if id(call) in found]
    functions: dict[str, list[ast.FunctionDef]] = {}
    for function in syntax.functions:
        functions.setdefault(function.name, []).append(function)
        if any(isinstance(node, ast.Return) and id(node) in found for node in walk(function)):
            found |= {id(node) for node in walk(function)}
    for call in calls:  # the list grows while it is gone through
        if isinstance(call.func, (ast.Attribute, ast.Name)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
            nodes = [node for function in functions.pop(name, ()) for node in walk(function)]
            found |= {id(node) for node in nodes}
            calls += [node for node in nodes if isinstance(node, ast.Call)]
    return found


def _may_be_left_out(node: ast.AST) -> bool:
    """Whether what is in a node depends on a condition: not on `__name__ == "__main__"`, nor on that of most loops."""
    if isinstance(node, ast.While):
        return OF_RANK.search(ast.unparse(node.test)) is not None
    tested = ast.walk(node.test) if isinstance(node, ast.If) else ()
    return not any(isinstance(name, ast.Name) and name.id == "__name__" for name in tested)


def _backend(
    call: ast.Call, called: CalledScript, syntax: Syntax, flags: ScriptFlags | None, placement: Placement
) -> object:
    """The backend of a script's process group: a literal, or what the command passes for it."""
    written = keyword(call, "backend") or (call.args[0] if call.args else None)
    if not isinstance(written, ast.Attribute) or flags is None:
        return constant(written)
    flag = flags.flags.get(f"--{written.attr}") or flags.flags.get(f"--{written.attr.replace('_', '-')}")
    if flag is None or dotted(written.value, syntax.imported) not in argument_holders(syntax):
        return None
    words = [part for word in called.call.arguments for part in (word.text.split("=", 1) if word.is_plain else ["$"])]
    given = next((value for name, value in pairwise(words) if name in flag.names), None)
    if given is None:
        return flag.default if "$" not in words else None
    value = placement.input(name_bound(given, "inputs") or "") if "$" in given else None
    return value.text if value is not None else given


def _own_address(syntax: Syntax, called: CalledScript, file: Path, placement: Placement) -> Iterator[Diagnostic]:
    """`os.environ["MASTER_ADDR"] = "localhost"` at the top of a script that runs on several machines."""
    if placement.nodes is None or placement.nodes < 2:
        return
    for node in syntax.body:
        if isinstance(node, ast.Assign) and _SETS_OWN_ADDRESS.fullmatch(ast.unparse(node)):
            message = f"{called.name} runs on {placement.nodes} machines, and each waits for itself as MASTER_ADDR"
            here = line_of(file, node, "the address is overwritten here")
            yield PROCESS_GROUP.at(called.place, message, "Remove it: Azure ML sets MASTER_ADDR.", [here])


_OF_RANKS = ("node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_conf")
_OF_TORCH = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_FLAGS: dict[str, list[str]] = {name: known_words(flags) for name, flags in known_words("launchers").items()}
# How many machines a job has at least, flags, what is written there, what is wrong, what to do, and a severity.
_OF_MACHINES: list[tuple[int, str, str, str, str, Severity]] = known_words("launcher_flags_of_machines")
_DEEPSPEED_MODULE = "deepspeed.launcher.runner"


LAUNCHER_FLAG = Rule("AML622", "launcher-flag", "error").explained(
    summary="A flag of torchrun, accelerate or deepspeed is misspelt, or asks for machines that the job does not have.",
    why="The launcher ends at once with an unknown flag. With more machines than there are, the processes wait for "
    "the others until the job times out, as with one rank for all of them; with `--standalone`, with torchrun without "
    "`--nnodes`, or with deepspeed without `--hostfile`, each machine trains by itself.",
)


@check("placement")
def _launcher_flag(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    command, nodes = context.command_of(placement.component), placement.nodes
    if command is None:
        return
    gpus = placement.sku.gpu_count if placement.sku is not None else 0
    numbers = {"nodes": nodes, "all_gpus": gpus * (nodes or 1)}
    for words in simple_commands(command.text):
        known, flags = _flags_of(words)
        for word, value in flags:
            name = word.text.partition("=")[0].lstrip("-").replace("-", "_")
            span = command.span(word.start, word.end)
            is_known = any(
                each == name or (each.startswith(name) and known is not _FLAGS["accelerate"]) for each in known
            )
            meant = only_close(name, known) if not is_known else None
            if meant is not None:
                hint = f"Did you mean '--{meant}'?"
                yield LAUNCHER_FLAG.at(span, f"the launcher has no flag {word.text.partition('=')[0]}", hint)
            for least, names, pattern, message, hint, severity in _OF_MACHINES:
                wrong = pattern.replace("NODES", str(nodes)).replace("GPUS", str(gpus))
                if name in names.split() and (nodes or 0) >= least and re.fullmatch(wrong, value):
                    text = message.format(name=name, value=value, **numbers)
                    yield LAUNCHER_FLAG.at(span, text, hint.format(**numbers), severity=severity)
    yield from _machines_alone(placement, command)


def _machines_alone(placement: Placement, command: ParsedCommand) -> Iterator[Diagnostic]:
    """A launcher on several machines that is not told of them: it knows its own alone.

    https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node,
    https://docs.pytorch.org/docs/stable/elastic/run.html (`--nnodes` is 1:1 by default, or what PET_NNODES is)
    """
    nodes = placement.nodes
    if nodes is None or nodes < 2 or _starts_launchers(placement):
        return
    settings = " ".join((command.reading.document.text, *placement.node.entries_of("environment_variables")))
    for words in simple_commands(command.text):
        launcher = next((word for word in words if word.text in LAUNCHER_MODULES), words[0])
        known, flags = _flags_of(words)
        given = {word.text.partition("=")[0].lstrip("-").replace("-", "_") for word, _ in flags}
        values = {value for _, value in flags}
        names_machines = any(name == "standalone" or (name and "nnodes".startswith(name)) for name in given)
        is_known = launcher.text in _OF_TORCH and bool(known) and "PET_" not in settings
        is_known = is_known and all(word.is_plain or word.text in values for word in words)
        if launcher.text in ("deepspeed", _DEEPSPEED_MODULE) and "hostfile" not in command.text:
            why = "trains by itself: deepspeed knows others from a --hostfile only"
        elif is_known and not names_machines:
            why = f"trains by itself: {launcher.text} knows others from --nnodes, which is 1 by default"
        elif is_known and "master_addr" in given and given.isdisjoint(_OF_RANKS):
            why = f"joins as rank 0: {launcher.text} gets no --node_rank"
        else:
            continue
        message = f"each of the {nodes} machines {why}"
        hint = "Run the script with python and `distribution: {type: pytorch, process_count_per_instance: GPUS}`."
        yield LAUNCHER_FLAG.at(command.span(launcher.start, launcher.end), message, hint)


def _starts_launchers(placement: Placement) -> bool:
    """Whether each of several processes would run a launcher, which AML613 reports."""
    return placement.distribution is not None and placement.processes_per_node != 1


def _flags_of(words: Sequence[Word]) -> tuple[Sequence[str], list[tuple[Word, str]]]:
    """The flags that a launcher has, and those given to it before its script, each with what follows it."""
    start = next(
        (at for at, word in enumerate(words) if word.text in LAUNCHER_MODULES or (at == 0 and word.text in _FLAGS)),
        None,
    )
    if start is None or words[start].text not in _FLAGS:
        return (), []
    given: list[tuple[Word, str]] = []
    for name, word, value in words_with_values(words[start + 1 :]):
        if word.text.endswith(".py") or word.text in ("-m", "--module"):
            return _FLAGS[words[start].text], given
        if name.startswith("--") and "$" not in name:
            given.append((word, value.text if value is not None else ""))
    return (), []


LOCAL_RANK_FLAG = Rule("AML623", "local-rank-flag", "error").explained(
    summary="The script does not take the flag that torch.distributed.launch passes to it.",
    why="Since PyTorch 2 it passes `--local-rank`, with a hyphen, which argparse takes for a different flag from "
    "`--local_rank`: the script ends at once. Declare both, or read LOCAL_RANK from the environment, which works with "
    "`torchrun`, with `--use-env` and without a launcher. Not reported where the environment's name has PyTorch 1.",
)
_LAUNCH = "torch.distributed.launch"
_PASSED = "--local-rank"
_TORCH_1 = regex(r"torch\D{0,3}1\.\d", re.IGNORECASE)


@check("placement")
def _local_rank_flag(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    command = context.command_of(placement.component)
    if command is None or _LAUNCH not in command.text or _starts_launchers(placement):
        return
    if _TORCH_1.search(command.reading.document.text):
        return
    by_place = {called.call.script.start: (called, flags) for called, flags in calls_with_flags(command, context)}
    for words in simple_commands(command.text):
        names = [word.text.replace("_", "-") for word in words]
        if _LAUNCH not in names or "--use-env" in names:
            continue
        for called, flags in (by_place[word.start] for word in words if word.start in by_place):
            if flags.takes_others or flags.commands or flags.find(_PASSED) is not None:
                continue
            own = flags.find("--local_rank")
            message = f"{called.name} gets {_PASSED} from torch.distributed.launch, and does not take it"
            hint = f'Declare add_argument("{_PASSED}", "--local_rank", type=int), or read LOCAL_RANK under torchrun.'
            yield LOCAL_RANK_FLAG.at(called.place, message, hint, [declared(own)] if own is not None else [])


NODE_RANK_OF_MPI = Rule("AML624", "node-rank-of-mpi", "warning").explained(
    summary="OMPI_COMM_WORLD_NODE_RANK is taken for the number of the machine.",
    why="In spite of its name it is the number of the process within its machine: with one process on each of two "
    "machines it is 0 on both, so that both think that they are the first. With one process on each machine, "
    "OMPI_COMM_WORLD_RANK is the number of the machine.",
)
_NODE_RANK_OF_MPI = "OMPI_COMM_WORLD_NODE_RANK"
_OF_NODES = regex(r"(node|machine|host)_?(rank|index|idx|id)\b", re.IGNORECASE)


@check("placement")
def _node_rank_of_mpi(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    command = context.command_of(placement.component)
    if command is None or not isinstance(placement.distribution, Mpi) or placement.nodes in (None, 1):
        return
    hint = "Use OMPI_COMM_WORLD_RANK, with one process on each machine."
    if placement.processes_per_node not in (None, 1):
        hint = "Divide OMPI_COMM_WORLD_RANK by OMPI_COMM_WORLD_LOCAL_SIZE."
    message = f"{_NODE_RANK_OF_MPI} is the number of a process within its machine"
    for match in re.finditer(rf"(?i:node_?rank)[ =]\"?\$\{{?({_NODE_RANK_OF_MPI})\b", command.text):
        yield NODE_RANK_OF_MPI.at(command.span(*match.span(1)), message, hint)
    for called, file, syntax in context.scripts_of(command):
        for node in syntax.of(ast.Assign):
            is_of_nodes = any(_OF_NODES.search(ast.unparse(target)) for target in node.targets)
            if is_of_nodes and repr(_NODE_RANK_OF_MPI) in ast.unparse(node.value):
                here = line_of(file, node, "it is taken for the number of the machine here")
                yield NODE_RANK_OF_MPI.at(called.place, message, hint, [here])
