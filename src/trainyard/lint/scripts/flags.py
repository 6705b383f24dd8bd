"""The flags that a script takes, as far as they can be told."""

import ast
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from trainyard.lint.scripts.syntax import constant, keyword

NUMBERS: Mapping[str, Literal["int", "float"]] = {"int": "int", "float": "float"}
"""The functions that make a flag's value a number."""


class Flag(NamedTuple):
    """One flag: its spellings, and what is known about its value."""

    names: tuple[str, ...]
    line: int
    file: Path
    is_required: bool = False
    choices: tuple[str, ...] | None = None
    takes_value: bool | None = None
    """Whether exactly one value follows it; None if unknown."""
    number: Literal["int", "float"] | None = None
    """The kind of number that its value must be."""
    default: str | None = None
    """Its default, if that is a known string."""
    is_truth: bool = False
    """Whether its type is Python's `bool`, to which every text but an empty one is true."""


class ScriptFlags(NamedTuple):
    """All flags of a script. `takes_others`: it leaves unknown flags alone. `abbreviates`: `--epo` is `--epochs`.

    `takes_words`: words without a flag may stand among them. `commands`: the flags of each sub-command, by its name.
    `for_trainer`: it has those of transformers' TrainingArguments besides.
    """

    flags: Mapping[str, Flag] = MappingProxyType({})
    takes_others: bool = False
    abbreviates: bool = False
    takes_words: bool = True
    commands: Mapping[str, "ScriptFlags"] = MappingProxyType({})
    needs_command: bool = False
    for_trainer: bool = False
    task_folder: Path | None = None
    """Where the modules of users' own tasks lie, for a step whose `--task` decides what other flags it takes."""

    def find(self, name: str) -> Flag | None:
        """The flag that a name means."""
        if name in self.flags or not self.abbreviates or not name.startswith("--"):
            return self.flags.get(name)
        meant = {flag.names: flag for known, flag in self.flags.items() if known.startswith(name)}
        return next(iter(meant.values())) if len(meant) == 1 else None


class Undecidable:
    """The result for a script that uses a library in a way that cannot be read."""


UNDECIDABLE = Undecidable()
Found = ScriptFlags | Undecidable | None


def help_flags(maker: ast.Call | None, file: Path) -> dict[str, Flag]:
    """Return the flags that a parser adds by itself."""
    if maker is not None and constant(keyword(maker, "add_help")) is False:
        return {}
    return dict.fromkeys(("-h", "--help"), Flag(("-h", "--help"), 1, file, takes_value=False))
