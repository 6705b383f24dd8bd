"""Calls in scripts of several processes that suit one machine or another distribution, or that one process makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.placements import Placement
from trainyard.lint.rules.distributed_scripts import NO_SAMPLER, ONE_GPU_FOR_ALL, PROCESSES_APART
from trainyard.lint.rules.process_groups import OF_RANK, PROCESS_GROUP, conditional
from trainyard.lint.scripts.syntax import Syntax, constant, dotted, line_of, walk
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic

# By the path of a call: on which jobs it is wrong if it is written like this, a rule, what is wrong, and a hint.
_CALLS: dict[str, list[list[str]]] = known_words("calls_of_processes")
_RULES = {rule.id: rule for rule in (PROCESS_GROUP, ONE_GPU_FOR_ALL, PROCESSES_APART, NO_SAMPLER)}
_STARTS_PROCESSES = regex(r"\b(?:mpirun|horovodrun|srun)\b")
_COLLECTIVE = regex(r"torch\.distributed\.(?:barrier|(?:all|broadcast|gather|reduce|scatter)(?:_\w+)?)")
_SHARDS = regex(r"torch\.distributed\.fsdp\.(?:\w+\.)*FullyShardedDataParallel")
_RANK_0 = regex(r"(?:\w+\.){0,3}(?:get_rank\(\)|(?:global_|local_)?rank) (==|!=|>) 0")
_LEAVES = regex(r"return\b|raise SystemExit\b|(?:sys\.)?exit\(")


@check("placement")
def _calls_of_processes(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    nodes, per_node, distribution = placement.nodes, placement.processes_per_node, placement.distribution
    command = context.command_of(placement.component)
    if command is None or distribution is None or not nodes or not per_node or nodes * per_node < 2:
        return
    has_gpus = placement.sku is None or placement.sku.gpu_count > 0
    conditions = {
        distribution.type: _STARTS_PROCESSES.search(command.text) is None,
        "nodes": nodes > 1,
        "gpus": per_node > 1 and has_gpus and "CUDA_VISIBLE_DEVICES" not in command.text,
    }
    numbers = {"nodes": nodes, "per_node": per_node, "total": nodes * per_node}
    for called, file, syntax in context.scripts_of(command):
        found = [(call, PROCESS_GROUP.id, *texts) for call, texts in _alone(syntax, per_node)]
        known = [(call, row) for call in syntax.calls for row in _CALLS.get(dotted(call.func, syntax.imported), ())]
        left_out = conditional(syntax) if known else set()
        constants = {str(constant(node)) for node in (syntax.of(ast.Constant) if known else ())}
        given = {constant(node.slice) for node in syntax.of(ast.Subscript) if isinstance(node.ctx, ast.Store)}
        holds = {**conditions, "gpus": conditions["gpus"] and "CUDA_VISIBLE_DEVICES" not in constants}
        for call, (words, pattern, rule, message, hint) in known:
            is_set_here = "TF_CONFIG" in message and "TF_CONFIG" in given
            if id(call) in left_out or is_set_here or not all(map(holds.get, words.split())):
                continue
            match = re.search(pattern, _written(call, syntax))
            if match is not None:
                found.append((call, rule, message.format(*match.groups(), **numbers), hint.format(**numbers)))
        for call, rule, message, hint in found:
            related = [line_of(file, call, "it is called here")]
            yield _RULES[rule].at(called.place, f"{called.name}: {message}", hint, related)


def _written(expression: ast.expr, syntax: Syntax, depth: int = 2) -> str:
    """An expression as it would be without the variables that are assigned once."""
    text = ast.unparse(expression)
    parameters = {each.arg for each in syntax.of(ast.arg)}
    for name in {node.id for node in walk(expression) if isinstance(node, ast.Name)} - parameters if depth else ():
        values = syntax.assigned.get(name, ())
        if len(values) == 1:
            value = _written(values[0], syntax, depth - 1).replace("\\", r"\\")
            text = re.sub(rf"(?<![\w.]){name}\b(?!=)", value, text)
    return text


def _alone(syntax: Syntax, per_node: int) -> Iterator[tuple[ast.Call, tuple[str, str]]]:
    """Collectives that rank 0 alone calls, or waits in when the others have left, if no others call one elsewhere."""
    if not _collectives(syntax.body, syntax):
        return
    of_rank = [each for each in syntax.of(ast.If) if OF_RANK.search(ast.unparse(each.test))]
    blocks = (syntax.body, *(function.body for function in syntax.functions))
    after = {id(each): block[at + 1 :] for block in blocks for at, each in enumerate(block)}
    for each in of_rank:
        test = ast.unparse(each.test)
        sign = _RANK_0.fullmatch(test) if per_node > 1 or "local" not in test else None
        if sign is None or (sign[1] != "==" and not _LEAVES.match(ast.unparse(each.body[-1]))):
            continue
        own, others = (each.body, each.orelse) if sign[1] == "==" else (after.get(id(each), []), each.body)
        elsewhere = _collectives([*others, *(other for other in of_rank if other is not each)], syntax)
        for name, call in _collectives(own, syntax).items():
            if name not in elsewhere:
                message = f"{ast.unparse(call.func)} waits for all processes, and only those of rank 0 call it"
                yield call, (message, "Call it in every process, outside of the condition.")
                break


def _collectives(block: Sequence[ast.stmt], syntax: Syntax) -> dict[str, ast.Call]:
    """What all processes must call, by name: torch.distributed's, without a group, and the weights of an FSDP model."""
    found: dict[str, ast.Call] = {}
    nodes = syntax.calls if block is syntax.body else [node for each in block for node in walk(each)]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = dotted(call.func, syntax.imported)
        model, _, method = name.rpartition(".")
        made = [
            each for each in syntax.assigned.get(model, ()) if isinstance(each, ast.Call) and method == "state_dict"
        ]
        is_sharded = any(_SHARDS.fullmatch(dotted(each.func, syntax.imported)) for each in made)
        if is_sharded or (_COLLECTIVE.fullmatch(name) and all(each.arg != "group" for each in call.keywords)):
            found.setdefault(name, call)
    return found
