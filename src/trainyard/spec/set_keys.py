"""`--set resources.instance_count=4`: any key of a job's file, as `az ml job create --set` takes it.

Azure ML's client sets a path of keys and indices, `jobs.J.outputs.x.mode` or `tags[0]`, in what it read of the file
(`add_param_overrides` in azure-ai-ml 1.35, `azure/ai/ml/_schema/core/schema.py`): mappings on the way are made, a
string on the way is refused, and each value is a string that the field's type converts.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.documents import Entry, Node
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.findings import DocumentStore
from trainyard.spec.schema_checks import bundled_schema, schema_of
from trainyard.spec.set_arguments import COMMAND_LINE

_STEP = regex(r"[^.\[\]]+")
_NUMBER = regex(r"-?(?:0|[1-9]\d*)(?:\.\d*[1-9])?")
# Fields whose values are texts, whatever they look like.
_OF_TEXTS = frozenset({"environment_variables", "tags", "properties", "inputs"})


def keys_of_file(file: Path, given: Mapping[str, str], store: DocumentStore) -> dict[str, str]:
    """Return those of the `--set` keys that set something in a job's file; the others name inputs and settings."""
    if not given:
        return {}  # without reading the file once more
    document = store.peek(Path(os.path.abspath(file)))
    schema = schema_of(kind_of(document) or "pipeline")
    known = {*document.root.entries, *(bundled_schema(schema).get("properties", {}) if schema else ())}
    return {key: text for key, text in given.items() if _is_of_file(key, document.root, known)}


def set_in_file(file: Path, given: Mapping[str, str], store: DocumentStore) -> None:
    """Set these keys, as far as they are of the file, in what `store` has of it; later readers find them there.

    Raise UsageError for a key within a string, such as the name of a component, and for an index that a list lacks.
    """
    for key, text in keys_of_file(file, given, store).items():
        holder = store.peek(Path(os.path.abspath(file))).root
        *above, last = _STEP.findall(key)
        for step in above:
            found = _member(holder, step, key)
            if found is None or found.data is None:
                found = _put(holder, step, {}, "")
            holder = found
        old = _member(holder, last, key)
        is_text = old is not None and old.is_text and "${{" not in old.text
        _put(holder, last, text if is_text or _OF_TEXTS.intersection(above) else _converted(text), text)


def _is_of_file(key: str, root: Node, known: set[str]) -> bool:
    steps: list[str] = _STEP.findall(key)
    job = root
    if steps[:1] == ["jobs"] and len(steps) > 2:
        _, name, *steps = steps
        jobs = root.entries_of("jobs")
        if name not in jobs and jobs and steps[0] != "inputs":
            raise UsageError(f"--set {key}: unknown job '{name}'. {did_you_mean(name, jobs)}")
        if name not in jobs:
            return False
        job = jobs[name].value
    elif not steps or (len(steps) == 1 and steps[0] not in known):
        return False  # probably an input without `inputs.`, or a profile's key
    if steps[0] == "input":
        return False  # no job has such a key: what reads inputs names the one that is meant
    if steps[0] != "inputs":
        # `jobs.J.K.inputs.X` is an input of K in the pipeline that J is.
        return steps[0] != "jobs" and (steps[0] in job.entries or "inputs" not in steps)
    within = job.find(*steps[:2])
    return len(steps) > 2 and steps[-1] != "path" and within is not None and within.is_mapping


def _converted(text: str) -> Any:
    """A number or a boolean that is written in no other way; any other text itself."""
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return {"true": True, "false": False}.get(text, text)


def _member(holder: Node, step: str, key: str) -> Node | None:
    if holder.is_mapping:
        return holder.get(step)
    if not step.isdecimal() or int(step) >= len(holder.items):
        raise UsageError(f"--set {key}: there is no '{step}' in {holder.text or 'the list'!r}")
    return holder.items[int(step)]


def _put(holder: Node, step: str, data: Any, text: str) -> Node:
    """Set a member, whose place is the command line: paths of data are relative to this folder."""
    if not holder.is_mapping:
        holder.items[int(step)] = value = _at(holder.items[int(step)], data, text)
        holder.data[int(step)] = data
        return value
    known = holder.get(step)
    value = _at(known or holder, data, text)
    key = _at(holder, step, step)
    holder.entries = {**holder.entries, step: Entry(holder.entries[step].key if known is not None else key, value)}
    holder.data[step] = data
    return value


def _at(place: Node, data: Any, text: str) -> Node:
    made = copy.copy(place)
    made.file, made.data, made.text, made.entries, made.items = COMMAND_LINE, data, text, {}, []
    return made
