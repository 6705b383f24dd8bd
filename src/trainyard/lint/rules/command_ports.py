"""Bindings in commands: forms that Azure ML does not substitute, optional inputs, unused inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from trainyard.lint.checks import LintContext, check
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.expressions import (
    MALFORMED_EXPRESSION,
    Binding,
    ExpressionError,
    OptionalPart,
    Segment,
    bindings_of_value,
    parse_expressions,
)
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import simple_commands

_PATH = r"(?:\.[A-Za-z_]\w*)+"
_LEGACY = regex(
    rf"(?<![${{\w])\{{\{{?\s*((?:inputs|outputs){_PATH})\s*\}}\}}?|\$[({{]?((?:inputs|outputs){_PATH})[)}}]?"
)
# Azure ML orders jobs by data alone, so that some inputs are there only to be waited for.
_NAMED_TO_ORDER = regex(
    r"(?:^|[_-])(?:wait|waits|after|depend|depends|dependency|order|ordering|trigger|triggered|signal|done|dummy|"
    r"finished|completed|upstream|barrier|gate)(?:[_-]|$)",
    re.IGNORECASE,
)
_DESCRIBED_TO_ORDER = regex(
    r"\b(?:waits? for|(?:starts?|runs?|begins?) (?:only )?(?:after|once|when)|only (?:to|for|used to) order|"
    r"only (?:to|for) (?:the )?(?:order|ordering|wait|waiting)|triggers? (?:the|this) job|not (?:actually )?used)\b",
    re.IGNORECASE,
)
_OF_A_JOB = regex(r"\$\{\{\s*parent\.jobs\.")
# This many unused inputs are not a slip.
_MANY = 3
# Programs that show something and make nothing.
_STUBS = frozenset({"echo", "printf", "ls", "pwd", "env", "printenv", "date", "sleep", "true", "whoami", "hostname"})
_SECOND_DOLLAR = regex(r"(?<!\$)\$(?=\$\{\{)")
_BRACKETS_WITHOUT_DOLLAR = regex(r"(?<!\$)\[\[(?=\s*--[A-Za-z])|\$\[(?!\[)(?=\s*--[A-Za-z])")


LEGACY_BINDING = Rule("AML208", "legacy-binding", "error", is_let_pass=True).explained(
    summary="Azure ML does not substitute this form of binding: `$inputs.x`, `{inputs.x}`, `{{inputs.x}}`.",
    why="It comes from an earlier version or from another program. The shell gets it as written: `$inputs.x` becomes "
    "`.x`. Write `${{inputs.x}}`.",
)


@check("command")
def _not_substituted(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Bindings of other forms, and signs too few or too many before those of Azure ML."""
    if not _segments(command.text):
        return
    is_root_job = command.is_root and not command.is_component
    for match in _LEGACY.finditer(command.text):
        start, end = match.span()
        if is_root_job and command.text[start] == "{" and command.text[start + 1] != "{":
            continue  # deprecated, but the client still substitutes it in jobs of their own
        right = f"${{{{{match[1] or match[2]}}}}}"
        message = f"Azure ML does not substitute '{match[0]}'"
        fix = right if command.text[end : end + 1] != "}" else None  # never a third brace
        yield LEGACY_BINDING.at(command.span(start, end), message, f"Write {right}.", replacement=fix)
    for match in _BRACKETS_WITHOUT_DOLLAR.finditer(command.text):
        message = f"'{match[0]}' does not start an optional part: that is '$[['"
        yield MALFORMED_EXPRESSION.at(command.span(*match.span()), message, "Write $[[ … ]].")
    for match in _SECOND_DOLLAR.finditer(command.text):
        message = "a binding begins with one '$'; the first of these two stays in the command, before the value"
        yield MALFORMED_EXPRESSION.at(command.span(*match.span()), message, "Remove it.", replacement="")


OPTIONAL_INPUT_OUTSIDE = Rule("AML209", "optional-input-outside", "warning").explained(
    summary="An optional input without a default is used outside `$[[ … ]]`.",
    why="If it is not set there is nothing to substitute, and Azure ML rejects the job. Inside `$[[ … ]]` the whole "
    "part is omitted.",
)


@check("command")
def _optional_input_outside(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for binding in _parts_of_component(command):
        name = binding.name_in("inputs") if isinstance(binding, Binding) else None
        port = command.component.inputs.get(name or "")
        if isinstance(binding, Binding) and port is not None and port.optional and port.default is None:
            message = f"'{port.name}' is optional and has no default, so it may only be used inside $[[ … ]]"
            hint = f"Write $[[ --FLAG {binding.text} ]]."
            yield OPTIONAL_INPUT_OUTSIDE.at(command.span(binding.start, binding.end), message, hint, [port.declared])


REQUIRED_INPUT_INSIDE = Rule("AML210", "required-input-inside", "warning").explained(
    summary="A `$[[ … ]]` contains no optional input.",
    why="It is omitted if an optional input inside it is not set; without one, it is never omitted. Declare the input "
    "`optional: true`, or remove the brackets.",
)


@check("command")
def _required_input_inside(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    inputs = command.component.inputs
    for part in _parts_of_component(command):
        members = part.segments if isinstance(part, OptionalPart) else ()
        names = [".".join(each.path[1:]) for each in members if isinstance(each, Binding) and each.path[0] == "inputs"]
        if not isinstance(part, OptionalPart) or not names:
            continue
        if all(name in inputs and not inputs[name].optional for name in names):
            message = f"this part is never omitted: '{names[0]}' is not optional"
            related = [inputs[names[0]].declared]
            hint = "Declare it `optional: true`, or remove $[[ and ]]."
            yield REQUIRED_INPUT_INSIDE.at(command.span(part.start, part.start + 3), message, hint, related)


UNUSED_INPUT = Rule("AML211", "unused-input", "warning", suppressed_by_errors=True).explained(
    summary="The command does not use a declared input.",
    why="Setting it has no effect. Only reported if the command runs scripts of the code that do not read environment "
    "variables, where `AZUREML_PARAMETER_…` has the values of inputs. Three and more are one note: the component is "
    "called with what others need. Data that only makes the job wait for another one is not reported if its name "
    "(`wait_for`, `after_training`) or description says so, and a note if a pipeline binds it to a job's output.",
)


@check("command")
def _unused_input(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    calls = context.calls_of(command)
    if calls and not any(called.file is None or context.reads_variables(called.file) for called in calls):
        unused = list(_unused_ports(command, "inputs", UNUSED_INPUT))
        ordering = {
            port.key_span
            for port in (command.component.inputs.values() if unused else ())
            if not port.is_parameter and only_orders(port.name, port.description or "")
        }
        found = [each for each in unused if each.span not in ordering]
        yield from _as_one(found) if len(found) >= _MANY else (_as_note(each, command, context) for each in found)


def only_orders(name: str, description: str) -> bool:
    """Whether the name or description of an input says that it is only waited for."""
    return bool(_NAMED_TO_ORDER.search(name) or _DESCRIBED_TO_ORDER.search(description))


def _as_one(found: Sequence[Diagnostic]) -> Iterator[Diagnostic]:
    """One note on many inputs: a component that takes what its siblings take, as templates have them."""
    message = f"the command does not use {len(found)} inputs"
    related = [Related(each.span, each.message) for each in found]
    yield found[0]._replace(message=message, hint="Remove them, or use them.", related=tuple(related), severity="info")


def _as_note(found: Diagnostic, command: ParsedCommand, context: LintContext) -> Diagnostic:
    """The finding, as a note if the input is data of another job: the job waits for that one."""
    port = next(port for port in command.component.inputs.values() if port.key_span == found.span)
    values = (job.inputs.get(port.name) for _, job in context.jobs_using(command.component))
    waits = any(value is not None and _OF_A_JOB.search(value.text) is not None for value in values)
    return found._replace(severity="info") if waits and not port.is_parameter else found


UNWRITTEN_OUTPUT = Rule("AML212", "unwritten-output", "warning", suppressed_by_errors=True).explained(
    summary="The command does not use a declared output.",
    why="The script does not know its path, so it cannot write to it; whoever reads the output gets an empty folder. "
    "A note where the command is a stub, such as `echo hello`.",
)


@check("command")
def _unwritten_output(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    found = list(_unused_ports(command, "outputs", UNWRITTEN_OUTPUT))
    is_of_stub = bool(found) and is_stub(command.text)
    yield from (each._replace(severity="info") if is_of_stub else each for each in found)


def is_stub(command: str) -> bool:
    """Return whether a command only prints and waits, as in the first version of a pipeline."""
    return all(words[0].text in _STUBS for words in simple_commands(command))


# Several checks look at the same command.
@lru_cache(maxsize=16)
def _segments(command: str) -> tuple[Segment, ...]:
    """The parts of a command; none if it is malformed, which the reader reports."""
    try:
        return parse_expressions(command)
    except ExpressionError:
        return ()


def _parts_of_component(command: ParsedCommand) -> tuple[Segment, ...]:
    """The parts of a component's command, where `optional:` has a meaning; none if it contains misspelt brackets."""
    is_usable = command.is_component and _BRACKETS_WITHOUT_DOLLAR.search(command.text) is None
    return _segments(command.text) if is_usable else ()


def _unused_ports(command: ParsedCommand, kind: str, unused: Rule) -> Iterator[Diagnostic]:
    text = command.text.lower()
    if not _segments(command.text):
        return
    used = {
        (binding.path[0], ".".join(binding.path[1:]).lower())
        for key, entry in command.node.entries.items()
        if key not in ("inputs", "outputs")
        for binding in bindings_of_value(entry.value.data)
    }
    ports = command.component.inputs if kind == "inputs" else command.component.outputs
    for name, port in ports.items():
        if name == "artifacts" and kind == "outputs":
            continue  # Azure ML itself copies ./outputs there
        variable = f"azure_ml_{kind[:-1]}_{name}".lower()
        # A string that is not a binding, such as $inputs.x, is reported by itself.
        if (kind, name.lower()) not in used and variable not in text and f"{kind}.{name}".lower() not in text:
            message = f"the command does not use the {kind[:-1]} '{name}'"
            hint = f"Put ${{{{{kind}.{name}}}}} into the command, or remove '{name}'."
            yield unused.at(port.key_span, message, hint)
