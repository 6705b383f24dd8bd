"""Sweeps, parallel and Spark jobs: from their YAML to what a local run executes, with their scripts checked.

A value that cannot be read is left at its default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.project_files import is_within_root
from trainyard.settings.suggestions import close_match, did_you_mean
from trainyard.spec.bindings import check_command
from trainyard.spec.components import read_distribution, read_environment, read_resources
from trainyard.spec.documents import Node, Value
from trainyard.spec.expressions import UNKNOWN_COMMAND_PORT, bindings_of_value
from trainyard.spec.literals import whole_number
from trainyard.spec.model import Component, Parallel, Port, Spark, Sweep, Task
from trainyard.spec.parsed import CODE_NOT_FOUND, SCRIPT_NOT_FOUND, Reading, is_code_of_this_machine, is_remote

# https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-parallel
_ANY_NUMBER_OF_FAILURES = -1
_DEFAULT_RETRIES = 2
_DEFAULT_TIMEOUT_SECONDS = 60


def read_sweep(node: Node, trial: Component) -> Component:
    """A sweep's `search_space`, `objective` and `limits` around what each trial runs.

    The component that is returned lacks the inputs that the sweep draws.
    """
    drawn = {name: entry.value.value for name, entry in node.entries_of("search_space").items()}
    most = _number(node, "limits", "max_total_trials", default=1000)  # as in Microsoft's reference
    sampling = node.text_of("sampling_algorithm") or node.text_of("sampling_algorithm", "type")
    sweep = Sweep(
        trial=trial,
        search_space=drawn,
        sampling=sampling.lower() or "random",
        seed=_optional_number(node, "sampling_algorithm", "seed"),
        goal=node.text_of("objective", "goal").lower() or "minimize",
        primary_metric=node.text_of("objective", "primary_metric"),
        max_total_trials=most,
        max_concurrent_trials=_number(node, "limits", "max_concurrent_trials", default=most),
        timeout_seconds=_optional_number(node, "limits", "timeout"),
        trial_timeout_seconds=_optional_number(node, "limits", "trial_timeout"),
    )
    return trial._replace(inputs={n: port for n, port in trial.inputs.items() if n not in drawn}, task=sweep)


def read_step(
    kind: str,
    node: Node,
    inputs: dict[str, Port],
    outputs: dict[str, Port],
    reading: Reading,
    name: str,
    own: Node | None = None,
) -> Component | None:
    """A parallel or Spark component, or an inline job; None for other kinds, and without a script.

    `own` are keys of a job: of a parallel one, they replace its component's; Spark's configuration is added to it.
    """
    own = own or node
    holder = node
    task: Task | None = _spark(node, own) if kind == "spark" else None
    written, resources = node.get("args"), own if own.get("resources") is not None else node
    if kind == "parallel" and (step := node.get("task")) is not None and step.get("entry_script") is not None:
        holder, resources, task = step, node, _parallel(node, step, own)
        written = step.get("program_arguments") or step.get("args")
    if task is None:
        return None
    return Component(
        name=node.text_of("name") or name,
        file=reading.file,
        span=node.span,
        command=written.value if written is not None and written.is_text else Value("", node.span),
        inputs=inputs,
        outputs=outputs,
        code=_folder(holder, reading),
        # Azure ML's client adds an image to Spark's where there is none.
        environment=read_environment(holder.get("environment"), reading, needs_image=kind != "spark"),
        resources=read_resources(resources, reading, may_take_all=kind == "parallel"),
        is_deterministic=reading.findings.boolean(node, "is_deterministic", default=True),
        task=task,
    )


def _parallel(node: Node, task: Node, own: Node) -> Parallel:
    def holder(key: str) -> Node:
        return own if own.get(key) is not None else node

    def setting(key: str) -> Value | None:
        found = holder(key).get(key)
        return found.value if found is not None and found.data is not None else None

    def failures(key: str) -> int:
        return _number(holder(key), key, default=_ANY_NUMBER_OF_FAILURES)

    append_to, keys = task.find_text("append_row_to"), holder("partition_keys").items_of("partition_keys")
    retries = holder("retry_settings")
    return Parallel(
        entry_script=task.text_of("entry_script"),
        input_data=setting("input_data") or Value("", node.span),
        mini_batch_size=setting("mini_batch_size"),
        partition_keys=tuple(key.text for key in keys),
        append_row_to=append_to.value if append_to is not None else None,
        error_threshold=failures("error_threshold"),
        mini_batch_error_threshold=failures("mini_batch_error_threshold"),
        max_retries=_number(retries, "retry_settings", "max_retries", default=_DEFAULT_RETRIES),
        timeout_seconds=_number(retries, "retry_settings", "timeout", default=_DEFAULT_TIMEOUT_SECONDS),
        max_concurrency_per_instance=setting("max_concurrency_per_instance"),
    )


def _spark(node: Node, own: Node) -> Spark | None:
    entry = node.find_text("entry", "file")
    conf = {key: each.value.text for key, each in (node.entries_of("conf") | own.entries_of("conf")).items()}
    files = {key: tuple(item.text for item in node.items_of(key)) for key in ("py_files", "files", "jars", "archives")}
    return Spark(entry.text, conf, **files) if entry is not None else None


def with_own_settings(component: Component, node: Node, reading: Reading) -> Component:
    """A sweep's trial with the `resources` and `distribution` that its job sets."""
    return component._replace(
        distribution=read_distribution(node, reading) or component.distribution,
        resources=read_resources(node, reading, may_take_all=True) or component.resources,
    )


def _folder(node: Node, reading: Reading) -> Path | None:
    """The folder of `code:`, if it is there."""
    code = node.find_text("code")
    path = reading.path(code.text) if code is not None and not is_remote(code.text) else None
    return Path(os.path.abspath(path)) if path is not None and os.path.exists(path) else None


def _optional_number(node: Node, *keys: str) -> int | None:
    found = node.find(*keys)
    return whole_number(found.data) if found is not None else None


def _number(node: Node, *keys: str, default: int) -> int:
    number = _optional_number(node, *keys)
    return default if number is None else number


# A folder of code may hold a whole data set.
_MOST_FILES_LOOKED_AT = 2000

# Where parallel and Spark steps write what their script is called with.
_ARGUMENT_PLACES = (("task", "program_arguments"), ("task", "append_row_to"), ("input_data",), ("args",))


def check_files(node: Node, reading: Reading) -> None:
    """Report missing code and environment files of a step or of its task."""
    for holder in (node, node.get("task")):
        if holder is None:
            continue
        read_environment(holder.get("environment"), reading, needs_image=node.text_of("type") != "spark")
        code = holder.find_text("code")
        if code is not None and is_code_of_this_machine(code, reading):
            folder = reading.existing(code, CODE_NOT_FOUND, "the code")
            script = holder.find_text("entry", "file") or holder.find_text("entry_script")
            if folder is not None and os.path.isdir(folder) and script is not None:
                check_script(script, folder, reading)


def check_script(script: Node, folder: Path, reading: Reading) -> None:
    """Report a script that a folder of code does not contain."""
    if "${{" in script.text or script_file(folder, script.text) is not None:
        return
    message = f"the code '{folder.name}' contains no '{script.text}'"
    reading.findings.add(SCRIPT_NOT_FOUND.at(script.span, message, close_match(script.text, python_files(folder))))


def script_file(folder: Path, script: str) -> Path | None:
    """The file that a step's script means: its path, or a module with dots, whose imports may then be relative."""
    try:
        module = folder / (script.replace(".", "/") + ".py")
        return next((file for file in (folder / script, module) if os.path.isfile(file)), None)
    except ValueError:
        return None


def python_files(folder: Path) -> Iterator[str]:
    """Yield the Python files under a folder, by their relative path; of a large folder only the first ones."""
    looked_at = 0
    for parent, folders, names in os.walk(folder) if is_within_root(folder) else ():
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        looked_at += len(names) + 1
        relative = os.path.relpath(parent, folder)
        yield from (os.path.normpath(os.path.join(relative, name)) for name in sorted(names) if name.endswith(".py"))
        if looked_at > _MOST_FILES_LOOKED_AT:
            break


def check_arguments(node: Node, inputs: Mapping[str, Port], outputs: Mapping[str, Port], reading: Reading) -> None:
    """Report bindings of a script's arguments that name no port of the step."""
    for place in _ARGUMENT_PLACES:
        found = node.find_text(*place)
        if found is not None:
            check_command(found, inputs, outputs, reading)


def check_search_space(trial: Node, sweep: Node, reading: Reading) -> None:
    """Report `${{search_space.NAME}}` in a trial's command that the sweep does not search."""
    command, space = trial.find_text("command"), sweep.get("search_space")
    if command is None or space is None or not space.is_mapping:
        return
    for binding in bindings_of_value(command.text):
        name = ".".join(binding.path[1:])
        if binding.path[0] == "search_space" and name not in space.entries:
            span = reading.document.span_within(command, *binding.part_offsets(min(1, len(binding.path) - 1)))
            message = f"the search space has no '{name}'"
            reading.findings.add(UNKNOWN_COMMAND_PORT.at(span, message, did_you_mean(name, space.entries)))
