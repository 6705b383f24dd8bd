"""Click's errors in the words of this command line: what is wrong, the value, and which help to read."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

_REWORDED = (
    (r"Got unexpected extra arguments? \(([\w.]+=.*)\)", r"unexpected argument '\1'; write --set \1"),
    (
        r"Got unexpected extra arguments? \((.*\.ya?ml.*)\)",
        r"unexpected argument '\1'; one file at a time, and quotes around a path that holds spaces",
    ),
    (r"Got unexpected extra arguments? \((.*)\)", r"unexpected argument '\1'; quote a value that holds spaces"),
    (r"'(.*)' is not a valid float range\.", r"expected a number, got '\1'"),
    (r"(.*) is not in the range (.*)\.", r"expected a number in the range \2, got '\1'"),
    (r"Option '(.*)' requires an argument\.", r"\1: expected a value after it"),
)
"""Patterns of click's messages that have no class of their own, and what they become."""


def usage_message(error: click.UsageError) -> str:
    """Return the message with the command whose help answers it."""
    command = error.ctx.command_path if error.ctx is not None else "trainyard"
    return f"{_in_our_words(error)}\nSee `{command} --help`."


def _in_our_words(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"missing {error.param.human_readable_name}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = error.param.opts[-1] if isinstance(error.param, click.Option) else error.param.human_readable_name
        return f"{name}: {_reworded(error.message) or error.message}"
    message = error.format_message()
    if reworded := _reworded(message):
        return reworded
    is_sentence = message[1:2].islower()
    return (message[:1].lower() if is_sentence else message[:1]) + message[1:].rstrip(".")


def _reworded(message: str) -> str | None:
    for pattern, replacement in _REWORDED:
        if re.fullmatch(pattern, message):
            return re.sub(pattern, replacement, message)
    return None


def _unknown_option(error: click.NoSuchOption) -> str:
    from trainyard.settings.suggestions import close_match, only_close

    option = error.option_name
    parameters = error.ctx.command.params if error.ctx else []
    known = [name for parameter in parameters for name in parameter.opts]
    verbs = _verbs_with(option, error.ctx) if error.ctx else []
    if not option.startswith("--"):
        # Of `-profile` click names only `-p`.
        hint = _one_of([f"'{name}'" for name in known if name.startswith(f"-{option}")])
    elif option.lstrip("-") in (parameter.name for parameter in parameters if isinstance(parameter, click.Argument)):
        hint = f"Write its value without {option}"
    elif verbs:
        hint = f"It is an option of {_listed(verbs, 'and')}"
    else:
        # A setting is often tried as an option.
        of_settings = next((parameter.metavar for parameter in parameters if "--set" in parameter.opts), None) or ""
        name = option.strip("-").replace("-", "_")
        if of_settings and not only_close(option, known):
            hint = f"Did you mean --set {re.sub('KEY|X', name, of_settings)}?"
        else:
            hint = close_match(option, known)
    return f"unknown option {option}. {hint}".rstrip(" .")


def _one_of(names: Sequence[str]) -> str:
    return f"Did you mean {_listed(names, 'or')}?" if names else ""


def _listed(names: Sequence[str], joint: str) -> str:
    return f" {joint} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _options_of(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts]


def _verbs_with(option: str, context: click.Context) -> list[str]:
    """Return the verbs that have an option, as users call them: an option of one verb is often tried on another."""
    root = context.find_root()
    verbs = root.command
    if not isinstance(verbs, click.Group):
        return []
    found = ((name, verbs.get_command(root, name)) for name in verbs.list_commands(root))
    return [f"`trainyard {name}`" for name, verb in found if verb is not None and option in _options_of(verb)]
