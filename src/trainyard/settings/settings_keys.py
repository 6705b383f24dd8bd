"""Which keys a settings file may have, and what to say of one that it may not have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from trainyard.settings.step_fields import StepField, step_fields
from trainyard.settings.suggestions import closest

SETTINGS = "settings"
OVERRIDES = "overrides"


def has_settings_file(fields: Iterable[StepField]) -> bool:
    """Return whether a step with these fields reads a settings file."""
    return any(field.name == SETTINGS and field.kind == "input" for field in fields)


def keys_of_file(own: Iterable[StepField], of_task: Iterable[StepField] = ()) -> dict[str, StepField]:
    """Return the keys that the settings file of a step may have: its settings and those of its task."""
    return {field.name: field for field in (*own, *of_task) if field.kind == "parameter" and field.name != OVERRIDES}


def why_unknown(key: str, step: str, own: Sequence[StepField], known: Collection[str], task: str | None) -> str:
    """Return why a settings file of a step cannot have a key that is not among the known ones, and what to do."""
    if any(field.name == key for field in own):
        return f"{key} is not in settings files; give it with --{key.replace('_', '-')}, or bind it in the pipeline"
    if task is not None and (tasks := tasks_with(key)):
        return f"unknown key {key!r} for the task {task}; it belongs to {_in_words(tasks)}"
    if steps := steps_with(key):
        return f"unknown key {key!r} for {step}; it belongs to {_in_words(steps)}"
    name, colon, value = key.partition(":")
    if colon and name in known:
        return f"unknown key {key!r}; write a space after the colon: {name}: {value}"
    meant = closest(key, known)
    return f"unknown key {key!r}" + (f"; did you mean {meant}?" if meant else "")


def tasks_with(setting: str) -> list[str]:
    """Return the built-in tasks that have a setting."""
    from trainyard.settings.steps.tasks import BUILT_IN_TASKS
    from trainyard.settings.task_fields import task_fields

    return [name for name in BUILT_IN_TASKS if any(field.name == setting for field in task_fields(name))]


def steps_with(setting: str) -> list[str]:
    """Return the steps whose settings file may have a key."""
    from trainyard.settings.steps import STEP_CONFIGS

    fields_by_step = {step: step_fields(config_class) for step, config_class in STEP_CONFIGS.items()}
    return [
        step for step, fields in fields_by_step.items() if has_settings_file(fields) and setting in keys_of_file(fields)
    ]


def _in_words(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
