"""Questions about Python's standard library, answered by its documentation: what is tuned on without a source."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

from trainyard.steps.data.text.text_formats import JsonLine
from trainyard.steps.runtime.errors import StepError

_MODULES = (
    "builtins calendar cmath collections datetime decimal difflib fractions functools heapq inspect io ipaddress "
    "itertools logging math operator os pathlib random re shutil statistics string sys textwrap threading time"
)
"""Of the standard library: those whose documentation says in sentences what a function does."""
_FIRST_SENTENCE = re.compile(r"([A-Z][a-z]+ [^.:(]{15,150}\.)(\s|$)")


def about_python() -> Iterator[JsonLine]:
    """Questions what a function or method does, each answered by the first sentence of its documentation, once."""
    answered = set()
    for module in _MODULES.split():
        for name, documented in sorted(_functions(importlib.import_module(module)).items()):
            found = _FIRST_SENTENCE.match(inspect.getdoc(documented) or "")
            answer = " ".join(found[1].split()) if found else ""
            if answer and answer not in answered:
                answered.add(answer)
                yield JsonLine(name, name, {"prompt": f"What does {name} do?\n", "completion": answer})
    if not answered:
        raise StepError("this Python comes without documentation; give your own conversations by --source")


def _functions(module: ModuleType) -> dict[str, object]:
    """Return a module's public functions, and the methods of its classes, by name."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        members = vars(value) if inspect.isclass(value) else {}
        for full_name, each in {name: value, **{f"{name}.{key}": member for key, member in members.items()}}.items():
            if inspect.isroutine(each) and "._" not in f".{full_name}":
                found[f"{module.__name__}.{full_name}"] = each
    return found


def pairs_about_python() -> Iterator[JsonLine]:
    """`Return …` is better than `It returns …`, as PEP 257 has it; a model of other text finds the latter likelier."""
    for line in about_python():
        prompt, answer = line.fields["prompt"], line.fields["completion"]
        if answer.startswith("Return "):
            rejected = f"It returns {answer.removeprefix('Return ')}"
            yield line._replace(fields={"prompt": prompt, "chosen": answer, "rejected": rejected})
