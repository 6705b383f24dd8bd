"""The files of a new project, of a new component and of a new pipeline: their content by path; nothing here writes.

Templates, profiles and schemas are those of Trainyard's own repository. What only a new project has is in `scaffold/`,
as templates with `<<name>>` and `<% if %>`, since GitHub's workflows and our own templates use `{{`.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from trainyard import __version__
from trainyard.errors import UsageError, unknown_name
from trainyard.project_files import text_or_empty
from trainyard.render.copies import current_copies
from trainyard.render.installed_from import WHEELS, InstalledFrom
from trainyard.render.project import Project
from trainyard.render.steps import own_steps, step_descriptions
from trainyard.resources import shipped

RECIPES = ("ddp", "fsdp", "deepspeed", "blank")
_SCAFFOLD = Path(__file__).with_name("scaffold")
_SUFFIX = ".in"
_PIPELINE = "train"
_PROFILES = ("local", "t4", "nd96")
_SHARED_TEMPLATES = (
    "components/_step.j2",
    "compute/_cluster.j2",
    "compute/cpu_cluster.yaml.j2",
    "compute/gpu_cluster.yaml.j2",
    "pipelines/_pipeline.j2",
)
_TRAINING = ("components/check_cluster", "components/evaluate")
_OWN_ENVIRONMENT = ("environments/_requirements", "environments/trainyard.yaml", "environments/trainyard/")
_SCHEMAS = ("component", "pipeline", "profile")
_TEMPLATES = {
    "ddp": (*_TRAINING, "components/prepare_images", "components/train_ddp", "pipelines/_image_classifier"),
    "fsdp": (*_TRAINING, "components/prepare_text", "components/train_fsdp", "pipelines/_language_model"),
    "deepspeed": (
        *_TRAINING,
        "components/prepare_text",
        "components/train_deepspeed",
        "components/deepspeed/",
        "pipelines/_language_model",
        *_OWN_ENVIRONMENT,
    ),
    "blank": _OWN_ENVIRONMENT,
}
"""What each recipe needs beyond the shared templates and its own pipeline: templates without suffix, and folders."""
_TASKS = {
    "ddp": ("images", "a classifier of handwritten digits"),
    "fsdp": ("text", "a small language model of Python's documentation"),
    "deepspeed": ("text", "a small language model of Python's documentation"),
    "blank": (None, "a model"),
}
"""The scaffold with a recipe's task, and what it trains."""


_IMAGE_OF_STEP = re.compile(r"(?m)^(?:  #.*\n)*  (\w+): (?:azureml:|trainyard).*\n")
"""The line of a profile for a step's image, with the comment above it."""


def new_project(name: str, recipe: str, source: InstalledFrom) -> dict[str, str]:
    """Return the text of a new project's files, by path; what Trainyard copies and renders is not among them.

    Raise UsageError for an unknown recipe, and for a name that no Python package can be derived from.
    """
    if recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    package = package_name(name)
    scaffold, what = _TASKS[recipe]
    values = {
        "name": name, "package": package, "version": __version__, "what": what, "pipeline": recipe != "blank",
        "requirement": source.requirement("train"), "problem": source.problem, "recipe": recipe,
    }  # fmt: skip
    texts = dict(_scaffold("project", values))
    if scaffold is not None:
        texts |= dict(_scaffold(scaffold, values))
    for template in sorted(path.relative_to(shipped("templates")) for path in shipped("templates").rglob("*.j2")):
        if (new_place := _place_in_project(template.as_posix(), recipe)) is not None:
            text = (shipped("templates") / template).read_text(encoding="utf-8")
            if not template.name.startswith("_"):
                # What a user's own task takes and returns is not known.
                text = text.replace("{% set exports = true %}\n", "").replace(f'"{recipe}"', f'"{_PIPELINE}"')
            texts[f"templates/{new_place}"] = text
    for profile in _PROFILES:
        text = (shipped("profiles") / f"{profile}.yaml").read_text(encoding="utf-8")
        texts[f"profiles/{profile}.yaml"] = _profile_for(text, recipe)
    return texts


def copies_of_project(recipe: str, source: InstalledFrom) -> dict[str, bytes]:
    """Return what a new project keeps copies of, by path: the steps, schemas, and the wheel Trainyard is from."""
    settings = () if recipe == "blank" else (f"settings/train_{recipe}",)
    copies = current_copies((*_SCHEMAS, *settings))
    return {**copies, **wheel_of(source)}


def wheel_of(source: InstalledFrom) -> dict[str, bytes]:
    """Return the wheel that Trainyard was installed from, by its path in a project; nothing where it was none."""
    return {} if source.wheel is None else {f"{WHEELS}/{source.wheel.name}": source.wheel.read_bytes()}


def existing_repository(name: str, source: InstalledFrom, clusters: Sequence[str] = ()) -> dict[str, str]:
    """Return the text of the files that lint needs in a repository which already has Azure ML YAML, by path.

    `clusters` are those whose machines nothing in the repository describes.
    """
    values = {
        "name": name, "requirement": source.requirement(), "problem": source.problem, "wheel": source.wheel,
        "clusters": clusters,
    }  # fmt: skip
    return dict(_scaffold("existing", values))


def new_component(project: Project, name: str) -> dict[str, str]:
    """Return the text of a new step and of its component's template, by path. Raise UsageError for a taken name."""
    _check_name("component", name, step_descriptions(project))
    package = own_package(project)
    values = {
        "step": name,
        "package": package,
        "title": name.replace("_", " ").capitalize(),
        "class_name": "".join(word.capitalize() for word in name.split("_")),
    }
    step, template = (text for _, text in sorted(_scaffold("step", values), key=lambda file: file[0], reverse=True))
    return {f"src/{package}/{name}.py": step, f"templates/components/{name}.yaml.j2": template}


def new_pipeline(project: Project, name: str, component: str | None) -> dict[str, str]:
    """Return the text of a new pipeline's template that runs one component, and of that component's if it is not here.

    Without a component it is the project's own step of the pipeline's name, or its only one. Raise UsageError for a
    taken name and an unknown component.
    """
    _check_name("pipeline", name, {file.name.partition(".")[0] for file in (project.templates / "pipelines").iterdir()})
    own = own_steps(project)
    if component is None:
        candidates = [name] if name in own else list(own)
        if len(candidates) != 1:
            found = f"this project has {', '.join(own)}" if own else "this project has no step of its own yet"
            raise UsageError(f"which component does the pipeline run? Add --component NAME; {found}.")
        (component,) = candidates
    steps = step_descriptions(project)
    if component not in steps:
        raise unknown_name("component", component, steps)
    step, template = steps[component], f"components/{component}.yaml.j2"
    here = text_or_empty(project.templates / template)
    of_component = here or text_or_empty(shipped("templates") / template)
    values = {
        "name": name,
        "step": step,
        "parameters": [field for field in step.inputs if field.kind == "parameter" and not field.optional],
        "required": [field for field in step.inputs if field.kind == "input" and not field.optional],
        "outputs": step.outputs,
        # A step without GPUs says so in its component's template.
        "uses_gpus": not re.search('resources_without_gpus|type="spark"', of_component),
    }
    ((_, text),) = _scaffold("pipeline", values)
    copied = {f"templates/{template}": of_component} if of_component and not here else {}
    return {f"templates/pipelines/{name}.yaml.j2": text, **copied}


def package_name(name: str) -> str:
    """Return the Python package of a project: `my-project` becomes `my_project`. Raise UsageError without one."""
    package = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise UsageError(f"{name!r} does not make a Python package; expected a name such as my-project.")
    if package in (*sys.stdlib_module_names, "trainyard", "torch", "numpy", "transformers", "deepspeed", "mlflow"):
        raise UsageError(f"{name!r} would hide the Python module {package}; choose another name.")
    return package


def own_package(project: Project) -> str:
    """Return the package of a project's own code: the only one in src/ besides Trainyard. Raise UsageError else."""
    packages = sorted(file.parent.name for file in project.source.glob("*/__init__.py"))
    own = [name for name in packages if name != "trainyard"]
    if len(own) != 1:
        found = ", ".join(own) or f"none: write {project.shown(project.source)}/NAME/__init__.py first"
        raise UsageError(f"expected one package of your own in {project.shown(project.source)}; found {found}.")
    return own[0]


def _scaffold(folder: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file of a scaffold; `_name` stands for `.name`, `package` for the package."""
    environment = Environment(
        variable_start_string="<<", variable_end_string=">>", block_start_string="<%", block_end_string="%>",
        comment_start_string="<#", comment_end_string="#>", trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, undefined=StrictUndefined, autoescape=False,
    )  # fmt: skip
    root = _SCAFFOLD / folder
    for file in sorted(root.rglob(f"*{_SUFFIX}")):
        parts = file.relative_to(root).as_posix().removesuffix(_SUFFIX).split("/")
        places = [values["package"] if part == "package" else re.sub(r"^_(?!_)", ".", part) for part in parts]
        yield "/".join(places), environment.from_string(file.read_text(encoding="utf-8")).render(values)


def _place_in_project(template: str, recipe: str) -> str | None:
    """Return where one of our templates goes in a new project, below templates/; None where it is not needed."""
    if template == f"pipelines/{recipe}.yaml.j2":
        return f"pipelines/{_PIPELINE}.yaml.j2"
    # `prepare_text` is not `prepare_text_spark`.
    beginnings = (name if name.endswith("/") else f"{name}." for name in _TEMPLATES[recipe])
    return template if template.startswith((*_SHARED_TEMPLATES, *beginnings)) else None


def _profile_for(text: str, recipe: str) -> str:
    """Return one of our profiles with the settings of one recipe only, under the new pipeline's name."""
    steps = {"default", *(template.rpartition("/")[2] for template in _TEMPLATES[recipe])}
    text = _IMAGE_OF_STEP.sub(lambda line: line.group() if line[1] in steps else "", text)
    head, found, pipelines = text.partition("\npipelines:\n")
    pattern = rf"^  {recipe}:\n(?:(?:    .*)?\n)*"
    settings = re.search(pattern, pipelines, re.MULTILINE)
    if not found or settings is None:
        return f"{head.rstrip()}\n"
    _, _, lines = settings.group().partition("\n")
    lines = lines.rstrip().replace(f"settings/{recipe}_", f"settings/{_PIPELINE}_")
    return f"{head}\npipelines:\n  {_PIPELINE}:\n{lines}\n"


def _check_name(kind: str, name: str, taken: Any) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(f"invalid {kind} name {name!r}; expected lower-case letters, digits and _, as in clean_text.")
    if name in taken:
        raise UsageError(f"there is a {kind} {name!r} already; choose another name.")
