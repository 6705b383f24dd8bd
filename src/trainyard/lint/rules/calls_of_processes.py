"""Calls in scripts of several processes that suit one machine or another distribution, or that one process makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.placements import Placement
from trainyard.lint.rules.distributed_scripts import NO_SAMPLER, ONE_GPU_FOR_ALL, PROCESSES_APART, paths_and_files
from trainyard.lint.rules.process_groups import OF_RANK, PROCESS_GROUP, conditional
from trainyard.lint.scripts.syntax import Syntax, dotted, keyword, line_of, walk
from trainyard.project_files import text_or_empty
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Severity
from trainyard.spec.rule import Rule

# The paths of a call; the jobs and arguments with which it is wrong; what beside it makes it right; a rule and texts.
_CALLS: list[tuple[list[str], str, dict[str, str], str, str, str, str]] = known_words("calls_of_processes")
_RULES = {rule.id: rule for rule in (PROCESS_GROUP, ONE_GPU_FOR_ALL, PROCESSES_APART, NO_SAMPLER)}
_STARTS_PROCESSES = regex(r"\b(?:mpirun|mpiexec|horovodrun|srun)\b")
# How many arguments a collective takes before its group.
_BEFORE_GROUP = {"barrier": 0, "all_reduce": 2, "broadcast": 2, "all_gather": 2, "reduce": 3}
_RANK_0 = regex(r"(?:(?:torch\.distributed|dist)\.get_rank\(\)|int\(os\.environ\['(LOCAL_)?RANK'\]\)) == 0")
_LEAVES = regex(r"return\b|raise\b|continue\b|break\b|(?:\w+\.)?_?(?:exit|quit)\(")


@check("placement")
def _calls_of_processes(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    nodes, per_node, distribution = placement.nodes, placement.processes_per_node, placement.distribution
    command = context.command_of(placement.component)
    if command is None or distribution is None or not nodes or not per_node or nodes * per_node < 2:
        return
    if _STARTS_PROCESSES.search(command.text):
        return
    has_gpus = placement.sku is None or placement.sku.gpu_count > 0
    jobs = {distribution.type, *(["nodes"] if nodes > 1 else []), *(["gpus"] if per_node > 1 and has_gpus else [])}
    jobs |= {"no_workers"} if distribution.type != "tensorflow" else set()
    numbers = {"nodes": nodes, "per_node": per_node, "total": nodes * per_node}
    settings = " ".join((command.reading.document.text, *placement.node.entries_of("environment_variables")))
    for called, file, syntax in context.scripts_of(command):
        for each in (*_wrong_calls(syntax, jobs), *_alone(syntax, per_node)):
            texts = [settings, *map(text_or_empty, paths_and_files(file, called, syntax)[1])]
            if re.search(each.beside or "(?!)", "\n".join(texts)) is None:
                related = [line_of(file, each.call, "it is called here")]
                message, hint = (text.format(**numbers) for text in (f"{called.name}: {each.message}", each.hint))
                yield each.rule.at(called.place, message, hint, related, severity=each.severity)


class _WrongCall(NamedTuple):
    """A call that is reported unless the regular expression `beside` finds what makes it right."""

    call: ast.Call
    beside: str
    rule: Rule
    message: str
    hint: str
    severity: Severity | None = None


def _wrong_calls(syntax: Syntax, jobs: set[str]) -> Iterator[_WrongCall]:
    """The first call of each row, if all calls of its paths are always made, and with arguments that are wrong."""
    by_path: dict[str, list[ast.Call]] = {}
    for call in syntax.calls:
        by_path.setdefault(dotted(call.func, syntax.imported), []).append(call)
    left_out: set[int] | None = None
    for paths, wrong_on, arguments, beside, rule, message, hint in _CALLS:
        calls = [call for path in paths for call in by_path.get(path, ())]
        found = [_captured(call, arguments, syntax) for call in calls] if jobs.issuperset(wrong_on.split()) else []
        if found and None not in found:
            left_out = _left_out(syntax) if left_out is None else left_out
            if left_out.isdisjoint(map(id, calls)):
                yield _WrongCall(calls[0], beside, _RULES[rule], message.replace("{0}", found[0] or ""), hint)


def _captured(call: ast.Call, arguments: dict[str, str], syntax: Syntax) -> str | None:
    """What the patterns of a call's arguments capture; None if one does not match, or may be another."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return None
    captured = ""
    for argument, pattern in arguments.items():
        name, _, place = argument.partition(" ")
        given = keyword(call, name) or next(iter(call.args[int(place) :] if place else ()), None)
        match = re.fullmatch(pattern, _written(given, syntax) if given is not None else "")
        if match is None:
            return None
        captured += match[1] if match.re.groups else ""
    return captured


def _left_out(syntax: Syntax) -> set[int]:
    """The nodes that are reached on a condition, or in functions that nothing names."""
    named = {each.id for each in syntax.of(ast.Name)} | {each.attr for each in syntax.of(ast.Attribute)}
    unused = [function for function in syntax.functions if function.name not in named]
    return conditional(syntax) | {id(node) for function in unused for node in walk(function)}


def _written(expression: ast.expr, syntax: Syntax, depth: int = 3) -> str:
    """An expression as it would be without the variables that only one plain assignment binds, anywhere."""
    text = ast.unparse(expression)
    others = {each.arg for each in syntax.of(ast.arg)} | {each.name for each in syntax.of(ast.ExceptHandler)}
    others |= {each.name for each in syntax.of(ast.MatchAs)}
    names = {each.id for each in walk(expression) if isinstance(each, ast.Name)} - others
    for name in names if depth and "*" not in syntax.bound else ():
        values = syntax.assigned.get(name, ())
        if len(values) == len(syntax.bound[name] if values else ()) == 1:
            value = _written(values[0], syntax, depth - 1).replace("\\", r"\\")
            text = re.sub(rf"(?<![\w.'\"]){name}\b(?!=)", value, text)
    return text


def _alone(syntax: Syntax, per_node: int) -> Iterator[_WrongCall]:
    """A collective within `if rank == 0:`, if nothing is otherwise done by rank, and its name is nowhere else."""
    of_rank = [each for each in syntax.of(ast.If) if OF_RANK.search(ast.unparse(each.test))]
    of_rank = [each for each in of_rank if "__name__" not in ast.unparse(each.test)]
    for each in of_rank:
        match = _RANK_0.fullmatch(_written(each.test, syntax))
        if match is None or (match[1] and per_node < 2) or each.orelse or _LEAVES.match(ast.unparse(each.body[-1])):
            return
    for call in (node for each in of_rank for node in walk(each) if isinstance(node, ast.Call)):
        holder, _, name = dotted(call.func, syntax.imported).rpartition(".")
        has_group = len(call.args) > _BEFORE_GROUP.get(name, -1) or len(call.keywords) > 0
        if holder == "torch.distributed" and not has_group:
            message = f"{ast.unparse(call.func)} waits for all processes, and only those of rank 0 call it"
            hint, again = "Call it in every process, outside of the condition.", rf"\b{name}\b[\s\S]*\b{name}\b"
            yield _WrongCall(call, again, PROCESS_GROUP, message, hint, "warning")
            return
