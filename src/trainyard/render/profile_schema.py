"""A profile held to `schemas/profile.schema.json` and to the settings that the project's pipelines accept.

A pipeline's template declares what a profile may set: `{% set accepted_settings = ["source", "clean"] %}`, where the
name of a step (`clean`) stands for all parameters of that step. A template that extends another adds to its settings.
`{% set batch_shared_by = "workers" %}` says that one worker per machine shares a batch, not one process per GPU.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from trainyard.project_files import text_or_empty
from trainyard.render import rules
from trainyard.render.layers import Layers
from trainyard.render.project import Project
from trainyard.render.steps import StepDescription, step_descriptions
from trainyard.resources import schema_source
from trainyard.settings.step_fields import StepField
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.steps.tasks import BUILT_IN_TASKS
from trainyard.settings.suggestions import close_match, closest, did_you_mean
from trainyard.settings.task_fields import step_fields
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import describe

_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_ACCEPTED = re.compile(r"\{%-?\s*set\s+accepted_settings\s*=\s*(\[[^\]]*\])")
_SHARED_BY_WORKERS = re.compile(r"\{%-?\s*set\s+batch_shared_by\s*=\s*\"workers\"")
_EXTENDS = re.compile(r"\{%-?\s*extends\s+\"([^\"]+)\"")


def check_against_schema(project: Project, layers: Layers) -> list[Diagnostic]:
    """Return every way in which a profile breaks its schema, in the order of the file."""
    import jsonschema_rs

    schema = profile_schema(project)
    errors = jsonschema_rs.validator_for(schema).iter_errors(layers.data)
    problems = [problem for error in errors for problem in _problems(layers, error, schema)]
    return sorted(problems, key=lambda problem: problem.span)


def profile_schema(project: Project) -> dict[str, Any]:
    """Return the schema of `schemas/`, closed to the pipelines of a project and the settings that each accepts."""
    schema: dict[str, Any] = json.loads(schema_source("profile").read_text(encoding="utf-8"))
    known = schema["$defs"]["pipeline"]["properties"]
    steps = step_descriptions(project)
    schema["properties"]["pipelines"] |= {
        "additionalProperties": False,
        "properties": {
            pipeline: _closed({name: _setting_schema(name, steps, known) for name in settings})
            for pipeline, settings in accepted_settings(project).items()
        },
    }
    return schema


def accepted_settings(project: Project) -> dict[str, list[str]]:
    """Return the settings that each pipeline of the templates accepts, by the pipeline's name."""
    return {
        pipeline: [str(name) for text in texts for names in _ACCEPTED.findall(text) for name in ast.literal_eval(names)]
        for pipeline, texts in _pipeline_templates(project).items()
    }


def settings_file(pipeline: str, keys: Mapping[str, Any]) -> str:
    """Return the file that says what a pipeline trains, from the project's root; `keys` are the profile's for it."""
    return str(keys.get("settings", f"settings/{pipeline}.yaml"))


def shared_by_workers(project: Project) -> list[str]:
    """Return the pipelines whose batches are shared by one worker per machine."""
    templates = _pipeline_templates(project)
    return [pipeline for pipeline, texts in templates.items() if any(map(_SHARED_BY_WORKERS.search, texts))]


def rendered_names(project: Project, folder: str, suffix: str) -> list[str]:
    """What the project renders into a folder, by the name that a profile may say."""
    files = (project.templates / folder).glob(f"*{suffix}")
    return sorted(file.name.removesuffix(suffix) for file in files if not file.name.startswith("_"))


def _pipeline_templates(project: Project) -> dict[str, list[str]]:
    """Return the template's text of each pipeline, after the text of those that it extends."""
    names = rendered_names(project, "pipelines", ".yaml.j2")
    return {name: list(_texts_of_template(project, f"pipelines/{name}.yaml.j2")) for name in names}


def _texts_of_template(project: Project, template: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the text of each template in a chain of `extends`; a missing or circular one is reported by rendering."""
    text = text_or_empty(project.templates / template)
    parent = _EXTENDS.search(text)
    if parent is not None and parent.group(1) not in seen:
        yield from _texts_of_template(project, parent.group(1), seen | {template})
    yield text


def _setting_schema(name: str, steps: dict[str, StepDescription], known: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what a pipeline accepts: a key of our pipelines, all parameters of a step, or any value."""
    if name in steps:
        parameters = [field for field in steps[name].fields if field.kind == "parameter"]
        return _closed({field.name: _schema_of(field) for field in parameters})
    return dict(known.get(name, {}))


def _schema_of(field: StepField) -> dict[str, Any]:
    return {
        "description": field.description,
        "type": field.type,
        **({"minimum": field.minimum} if field.minimum is not None else {}),
        **({"maximum": field.maximum} if field.maximum is not None else {}),
        **({"enum": list(field.choices)} if field.choices else {}),
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _problems(layers: Layers, error: Any, whole_schema: dict[str, Any]) -> list[Diagnostic]:
    path = tuple(str(step) for step in error.instance_path)
    what = f"'{'.'.join(path)}'" if path else "the profile"
    kind = error.kind.name
    schema = whole_schema
    for step in error.schema_path[:-1]:
        schema = schema[step]
    if kind == "additionalProperties":
        return [_unknown_key(layers, path, key, schema, whole_schema) for key in error.kind.unexpected]
    if kind == "required":
        message = f"{what} lacks '{error.kind.property}'"
        return [layers.problem(path, rules.PROFILE_KEY, message, f"Add: {error.kind.property}: …")]
    found, hint = describe(error.instance), schema.get("description", "")
    if kind == "type":
        types = schema["type"]
        expected = " or ".join(_TYPE_NAMES[each] for each in ([types] if isinstance(types, str) else types))
        message = f"{what}: expected {expected}, found {found}"
    elif kind == "enum":
        choices = [str(choice) for choice in schema["enum"]]
        message = f"{what}: expected one of {', '.join(choices)}, found {found}"
        hint = close_match(str(error.instance), choices)
    elif kind in ("minimum", "maximum"):
        message = f"{what}: {error.instance} is out of range; the {kind} is {schema[kind]}"
    elif kind == "minLength":
        message = f"{what} is empty"
    else:
        message = f"{what}: expected {_PATTERN_WORDS[schema['pattern']]}, found {found}"
    return [layers.problem(path, rules.PROFILE_VALUE, message, hint)]


def _unknown_key(
    layers: Layers, path: tuple[str, ...], key: str, schema: dict[str, Any], whole_schema: dict[str, Any]
) -> Diagnostic:
    known = list(schema["properties"])
    of_profiles = whole_schema["$defs"]["pipeline"]["properties"]
    message = f"unknown key '{key}' in '{'.'.join(path)}'" if path else f"unknown key '{key}' in the profile"
    hint = _in_another_place(path, key, whole_schema) or close_match(key, known) or did_you_mean(key, known)
    if path == ("pipelines",):
        message = f"unknown pipeline '{key}': there is no templates/pipelines/{key}.yaml.j2"
    elif "settings" in known and (meant := closest(key, _settings_of_trainings())) and meant not in of_profiles:
        message = f"'{meant}' is a setting of the training"
        hint = f"Write it in {settings_file(path[-1], layers.data['pipelines'][path[-1]])}."
    return layers.problem((*path, key), rules.PROFILE_KEY, message, hint, at_key=True)


@cache
def _settings_of_trainings() -> frozenset[str]:
    """The names of what settings files hold: the settings of steps that read one, and of the built-in tasks."""
    described = [step_fields(config) for config in STEP_CONFIGS.values()]
    of_steps = [fields for fields in described if any(field.name == "settings" for field in fields)]
    of_tasks = [step_fields(config) for config in BUILT_IN_TASKS.values()]
    return frozenset(field.name for fields in (*of_steps, *of_tasks) for field in fields)


def _in_another_place(path: tuple[str, ...], key: str, whole_schema: dict[str, Any]) -> str:
    """A hint for a key at the top that belongs to the pipelines, or to a run; empty for others."""
    if path:
        return ""
    if key in ("inputs", "jobs"):
        return f"`trainyard run --set {key}.…` sets it for one run."
    pipelines = whole_schema["properties"]["pipelines"]["properties"]
    having = [name for name, schema in pipelines.items() if key in schema["properties"]]
    if having:
        return f"It is the key pipelines.NAME.{key} of these pipelines: {', '.join(having)}."
    if key in _settings_of_trainings():
        return "It is a setting of the training: write it in a settings file, such as settings/ddp.yaml."
    return ""


_PATTERN_WORDS = {
    "^[^\\n]+$": "one line of text",
    "^[a-z0-9][a-z0-9_-]*$": "the name of a profile: lower-case letters, digits, _ and -",
    "^[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]$": "3 to 24 letters, digits and hyphens, a letter first: Azure's rule",
    "^[1-9][0-9]*[kmgKMG]$": "a whole number followed by k, m or g, such as 64g",
    "^azureml:": "an address that begins with azureml:",
}
