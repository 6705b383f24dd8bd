"""Click's errors in the words of this command line: what is wrong, the value, and which help to read."""

from __future__ import annotations

import re

import click

_REWORDED = (
    (r"Got unexpected extra arguments? \((.*)\)", r"unexpected argument '\1'; quote a value that holds spaces"),
    (r"Option '(.*)' requires an argument\.", r"\1: expected a value after it"),
)
"""Patterns of click's messages that have no class of their own, and what they become."""


def usage_message(error: click.UsageError) -> str:
    """Return the message with the command whose help answers it."""
    command = error.ctx.command_path if error.ctx is not None else "trainyard"
    return f"{_in_our_words(error)}\nSee `{command} --help`."


def _in_our_words(error: click.UsageError) -> str:
    from trainyard.foundation.suggestions import close_match

    if isinstance(error, click.NoSuchOption):
        known = _options_of(error.ctx.command) if error.ctx else []
        verbs = _verbs_with(error.option_name, error.ctx) if error.ctx else []
        hint = f"It is an option of {' and '.join(verbs)}" if verbs else close_match(error.option_name, known)
        return f"unknown option {error.option_name}. {hint}".rstrip(" .")
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"missing {error.param.human_readable_name}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = error.param.opts[-1] if isinstance(error.param, click.Option) else error.param.human_readable_name
        return f"{name}: {error.message}"
    message = error.format_message()
    for pattern, replacement in _REWORDED:
        if re.fullmatch(pattern, message):
            return re.sub(pattern, replacement, message)
    is_sentence = message[1:2].islower()
    return (message[:1].lower() if is_sentence else message[:1]) + message[1:].rstrip(".")


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
