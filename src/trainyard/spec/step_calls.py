"""Which of Trainyard's steps a command calls, and what it gives to each of the step's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from trainyard.settings.settings_keys import SETTINGS
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import AnyComponent, code_of
from trainyard.spec.shell_words import Word, python_calls

_STEP = re.compile(r"(?:.*/)?trainyard[./]steps[./](\w+?)(?:\.py)?")


class StepCall(NamedTuple):
    """A call of a step in a command: the value of each flag, by the setting's name; None for a flag without a value.

    `may_have_others`: variables of the shell, or texts from inputs, may bring further flags along.
    """

    step: str
    flags: Mapping[str, Word | None]
    may_have_others: bool

    def port_of(self, name: str) -> str | None:
        """The input that a flag takes its value from; None if it takes it from elsewhere."""
        word = self.flags.get(name)
        binding = only_binding(word.text) if word is not None else None
        return ".".join(binding.path[1:]) if binding is not None and binding.path[0] == "inputs" else None


@lru_cache(maxsize=1024)
def step_call(command: str) -> StepCall | None:
    """Return the call of one of Trainyard's steps in a command; None if it calls none."""
    if "trainyard" not in command:
        return None
    from trainyard.settings.task_fields import is_built_in_step  # 10 ms, for commands that may call a step

    for call in python_calls(command):
        match = _STEP.fullmatch(call.script.text)
        if match is not None and is_built_in_step(match[1]):
            flags, others = _flags_among(call.arguments)
            return StepCall(match[1], flags, any(_may_be_flags(word) for word in others))
    return None


def _flags_among(words: Sequence[Word]) -> tuple[dict[str, Word | None], list[Word]]:
    """The flags among a call's arguments, and the words that are neither flags nor their values."""
    flags: dict[str, Word | None] = {}
    others: list[Word] = []
    waiting = ""
    for word in words:
        if word.text.startswith("--") and not word.is_quoted:
            name, equals, value = word.text.removeprefix("--").partition("=")
            waiting = "" if equals else name.replace("-", "_")
            start = word.end - len(value)
            flags[name.replace("-", "_")] = Word(value, start, word.end, word.is_optional) if equals else None
        elif waiting:
            flags[waiting] = word
            waiting = ""
        else:
            others.append(word)
    return flags, others


def _may_be_flags(word: Word) -> bool:
    return not word.is_plain or (not word.is_quoted and "${{" in word.text)


def settings_port(component: AnyComponent | None) -> str | None:
    """Return the input of a component that its command takes for the step's settings file; None if it has none."""
    code = code_of(component)
    command = code.command.data if code is not None else None
    call = step_call(command) if isinstance(command, str) else None
    return call.port_of(SETTINGS) if call is not None else None
