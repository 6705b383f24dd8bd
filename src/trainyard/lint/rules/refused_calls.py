"""Calls in scripts that a library refuses as they are written: TrainingArguments that contradict, runs begun twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.scripts.syntax import Syntax, constant, dotted, line_of, walk
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import Word, words_with_values

_OF_TRAINER: list[str] = known_words("training_arguments")
_WORDS: Mapping[str, list[str]] = known_words("words_of_training_arguments")
_CALLS: list[list[str]] = known_words("refused_calls")
_TRAINING_ARGUMENTS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_STARTS_A_RUN = regex(
    r"mlflow\.(?:start_run|set_tags?|log_(?:metrics?|params?|artifacts?|text|dict|figure|image|table|input))"
)


REFUSED_CALL = Rule("AML519", "refused-call", "error", is_let_pass=True).explained(
    summary="A script calls a library in a way that the library refuses.",
    why="The arguments of transformers' TrainingArguments contradict each other, MLflow is given a name where it takes "
    "a dictionary, or a run is started while one is active: logging a value starts it. The job ends there, after its "
    "machines have started. Only literal arguments are looked at.",
)


@check("command")
def _refused_calls(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, file, syntax in context.scripts_of(command):
        for call in syntax.calls:
            for message, hint in _refused(call, syntax):
                related = [line_of(file, call, "it is called here")]
                yield REFUSED_CALL.at(called.place, f"{called.name}: {message}", hint, related)
        begun = next(_begun_twice(syntax), None)
        if begun is not None:
            message = f"{called.name} starts a run of MLflow while one is active: what it logs before starts one"
            related = [line_of(file, begun, "it is started here")]
            yield REFUSED_CALL.at(called.place, message, "Call start_run first, or leave it out.", related)
        words = called.call.arguments
        is_of_trainer = {"HfArgumentParser", "TrainingArguments"} <= syntax.imported.keys()
        if is_of_trainer and all(word.is_plain and not word.is_optional for word in words):
            pairs = ((name.lstrip("-").replace("-", "_"), value) for name, _, value in words_with_values(words))
            given = {name: _read(value) for name, value in pairs}
            for message, hint in _contradictions(given):
                yield REFUSED_CALL.at(called.place, f"{called.name}: {message}", hint)


def _read(value: Word | None) -> object:
    """What the text after a flag becomes: a number, true (also where there is none) or false, or a string."""
    text = value.text if value is not None and not value.text.startswith("--") else "true"
    if "${{" in text or text.isdecimal():
        return int(text) if text.isdecimal() else None
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def _refused(call: ast.Call, syntax: Syntax) -> Iterator[tuple[str, str]]:
    path = dotted(call.func, syntax.imported)
    if path in _TRAINING_ARGUMENTS:
        given = {each.arg: constant(each.value) for each in call.keywords if each.arg is not None}
        for name in given:
            if name not in _OF_TRAINER and (hint := close_match(name, _OF_TRAINER)):
                yield f"TrainingArguments has no argument '{name}'", hint
        # Others may be among what `**` or a position brings.
        is_complete = len(given) == len(call.keywords) and len(call.args) < 2
        yield from _contradictions(given if is_complete else {**dict.fromkeys(_OF_TRAINER), **given})
    elif path.startswith("mlflow."):
        written = f"{path}({', '.join(map(ast.unparse, (*call.args, *call.keywords)))})"
        found = ((re.fullmatch(form, written), message, hint) for form, message, hint in _CALLS)
        yield from ((match.expand(message), hint) for match, message, hint in found if match is not None)


def _contradictions(given: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What TrainingArguments refuses, of values by name; None is unknown."""
    for name, words in _WORDS.items():
        value = given.get(name)
        for word in value.split() if isinstance(value, str) else ():
            if word not in words:
                yield f"{name} is '{word}'; expected one of {', '.join(words)}", close_match(word, words)
    if given.get("fp16") is True and given.get("bf16") is True:
        yield "fp16 and bf16 are both true, and a training has one precision", "Leave out one of them."
    evaluated = given.get("eval_strategy", given.get("evaluation_strategy", "no"))
    saved, every = given.get("save_strategy", "steps"), given.get("save_steps", 500)
    evaluated_every = given.get("eval_steps", given.get("logging_steps", 500)) or None
    if given.get("load_best_model_at_end") is not True or None in (evaluated, saved) or saved == "best":
        return
    if evaluated != saved:
        message = (
            f"load_best_model_at_end requires the same save and eval strategy; they are '{saved}' and '{evaluated}'"
        )
        yield message, f'Write eval_strategy="{saved}".' if saved != "no" else "Set both to epoch or steps."
    elif saved == "steps" and isinstance(every, int) and isinstance(evaluated_every, int) and every % evaluated_every:
        message = f"load_best_model_at_end requires save_steps to be a multiple of eval_steps; {every} is not one of"
        yield f"{message} {evaluated_every}", f"Write save_steps={evaluated_every}, or a multiple of it."


def _begun_twice(syntax: Syntax) -> Iterator[ast.stmt]:
    """Where a run is started after a value was logged, or a run started, in the same block."""
    for block in (syntax.body, *(function.body for function in syntax.functions)):
        is_active = False
        for statement in block:
            simple = [statement] if isinstance(statement, (ast.Expr, ast.Assign)) else []
            nodes = (node for part in getattr(statement, "items", simple) for node in walk(part))
            for call in (node for node in nodes if isinstance(node, ast.Call)):
                path = dotted(call.func, syntax.imported)
                if path == "mlflow.start_run" and is_active and all(each.arg != "nested" for each in call.keywords):
                    yield statement
                is_active = (is_active or _STARTS_A_RUN.fullmatch(path) is not None) and path != "mlflow.end_run"
            is_active = is_active and not isinstance(statement, ast.With)
