"""What is learnt: a model, its loss and its measures, one file per task, all behind `base.Task`."""

from __future__ import annotations

import difflib
import importlib

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.tasks.base import Task

_BUILT_IN = {
    "image_classification": "trainyard.steps.training.tasks.image_classification:ImageClassification",
    "language_modeling": "trainyard.steps.training.tasks.language_modeling:LanguageModeling",
}


def find_task(name: str) -> type[Task]:
    """The class of a built-in task, or of a user's own given as `package.module:Class`. StepError without one."""
    if name not in _BUILT_IN and ":" not in name:
        close = difflib.get_close_matches(name, _BUILT_IN, n=1)
        meant = f"did you mean {close[0]}?" if close else f"there is {', '.join(_BUILT_IN)}"
        raise StepError(f"--task {name!r} is unknown; {meant} Your own is given as package.module:Class.")
    module_name, _, class_name = _BUILT_IN.get(name, name).partition(":")
    if not module_name or not class_name:
        raise StepError(f"--task {name!r} lacks a name: your own is given as package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as failure:
        if failure.name is None or not f"{module_name}.".startswith(f"{failure.name}."):
            raise StepError(f"--task {name}: {module_name} needs a module that is not here: {failure.name}") from None
        raise StepError(f"--task {name}: there is no module {failure.name} in the job's code folder") from None
    except SyntaxError as failure:
        place = f"{failure.filename}:{failure.lineno}"
        raise StepError(f"--task {name}: {place} is not valid Python: {failure.msg}") from None
    task_class = getattr(module, class_name, None)
    if task_class is None:
        close = difflib.get_close_matches(class_name, dir(module), n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise StepError(f"--task {name}: the module {module_name} has no class {class_name}{meant}")
    if not (isinstance(task_class, type) and issubclass(task_class, Task)):
        raise StepError(f"--task {name}: {class_name} is not a class that derives from {Task.__module__}.Task")
    if missing := sorted(task_class.__abstractmethods__):
        raise StepError(f"--task {name}: {class_name} lacks {' and '.join(missing)}, which every task defines")
    return task_class
