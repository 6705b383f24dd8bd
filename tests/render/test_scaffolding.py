"""A new project, its copies of Trainyard's own files, and the components and pipelines that are added to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from trainyard import __version__
from trainyard.errors import UsageError
from trainyard.lint.scripts.reading import read_flags
from trainyard.render.copies import LOCK_FILE, current_copies, stale_copies
from trainyard.render.drift import find_drift
from trainyard.render.project import Project, find_project
from trainyard.render.rendering import render
from trainyard.render.scaffolding import RECIPES, existing_repository, new_component, new_pipeline, new_project
from trainyard.render.steps import own_steps
from trainyard.render.writing import write
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.ignore_files import ignore_rule


def written(root: Path, texts: dict[str, str]) -> Project:
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return find_project(root)


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., Project]:
    """A project that was just started and rendered."""

    def start(recipe: str = "blank") -> Project:
        project = written(tmp_path / "demo", new_project("demo", recipe))
        write(project, render(project, "local"))
        return project

    return start


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_new_project_is_rendered_and_every_profile_of_it_renders(
    started: Callable[..., Project], recipe: str
) -> None:
    project = started(recipe)
    assert find_drift(project) == []
    for profile in ("t4", "nd96"):
        names = {path.name for path in render(project, profile).files}
        assert ("train.yaml" in names) == (recipe != "blank")


@pytest.mark.parametrize("recipe", RECIPES)
def test_templates_of_a_new_project_are_those_of_this_repository(repository: Project, recipe: str) -> None:
    for path, text in new_project("demo", recipe).items():
        if path.startswith("templates/"):
            ours = (repository.root / path.replace("/train.yaml.j2", f"/{recipe}.yaml.j2")).read_text()
            names_the_task = re.compile(r"(?m)\"demo.task:\w+\"(?=\))|^\{% set accepted_settings = \[\"demo.*\n")
            without_exports = ours.replace("{% set exports = true %}\n", "")
            assert names_the_task.sub("", text.replace('"train"', f'"{recipe}"')) == without_exports


def test_the_code_in_a_new_project_is_what_this_repository_uploads_for_a_job(repository: Project) -> None:
    is_ignored, _ = ignore_rule(repository.source)
    files = (file.relative_to(repository.source).as_posix() for file in repository.source.rglob("*.py"))
    uploaded = {f"src/{file}" for file in files if not is_ignored(file)}
    assert {path for path in current_copies() if path.startswith("src/")} == uploaded


@pytest.mark.parametrize(
    ("name", "message"),
    [("class", "does not make a Python package"), ("1st", "does not make"), ("json", "would hide"), ("torch", "would")],
)
def test_a_name_that_makes_no_package_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        new_project(name, "ddp")


def test_copies_are_brought_to_the_installed_version(started: Callable[..., Project]) -> None:
    project = started()
    lock_file, copy = project.root / LOCK_FILE, project.source / "trainyard" / "__init__.py"
    lock = json.loads(lock_file.read_text())
    lock["trainyard"] = "0.0.1"
    lock["files"]["src/trainyard/gone.py"] = "0" * 16
    lock_file.write_text(json.dumps(lock))
    (project.source / "trainyard" / "gone.py").write_text("# no longer part of Trainyard\n")
    (project.root / "schemas" / "profile.schema.json").unlink()
    copy.write_text("edited = True\n")

    reasons = {drift.path.name: drift.reason for drift in find_drift(project)}
    assert reasons["profile.schema.json"] == "is missing"
    assert reasons["__init__.py"].startswith("was edited by hand; delete trainyard.lock")
    assert reasons[LOCK_FILE] == f"is from Trainyard 0.0.1; {__version__} is installed"

    report = write(project, render(project, "local"))
    assert stale_copies(project) == []
    assert report.saved[copy].read_text() == "edited = True\n"
    assert not (project.source / "trainyard" / "gone.py").exists()

    lock_file.unlink()
    copy.write_text("edited = True\n")
    assert stale_copies(project) == [], "without a lock file the copies are the project's own"


def test_a_lock_file_of_another_format_is_not_guessed_at(started: Callable[..., Project]) -> None:
    project = started()
    (project.root / LOCK_FILE).write_text('{"format": "trainyard.lock/9"}')
    with pytest.raises(SpecError, match=r"expected the format trainyard.lock/1"):
        stale_copies(project)


def test_a_component_and_a_pipeline_are_made_from_the_steps_settings(started: Callable[..., Project]) -> None:
    project = started()
    written(project.root, new_component(project, "clean_text"))
    written(project.root, new_pipeline(project, "nightly", None))
    rendering = render(project, "local", {"pipelines.nightly.clean_text.pattern": "*.md"})
    component = yaml.safe_load(rendering.files[project.root / "components/clean_text.yaml"].text)
    assert component["inputs"]["pattern"]["default"] == "**/*.py"
    assert component["inputs"]["source"]["optional"] is True
    assert "python -m demo.clean_text --result '${{outputs.result}}'" in component["command"]
    pipeline = yaml.safe_load(rendering.files[project.root / "pipelines/nightly.yaml"].text)
    assert pipeline["inputs"] == {"pattern": "*.md"}
    assert pipeline["jobs"]["clean_text"]["inputs"] == {"pattern": "${{parent.inputs.pattern}}"}
    with pytest.raises(UsageError, match=r"unknown key 'patern' in 'pipelines.nightly.clean_text'.*'pattern'"):
        render(project, "local", {"pipelines.nightly.clean_text.patern": "*.md"})


@pytest.mark.parametrize(
    ("name", "message"),
    [("Clean", "invalid component name 'Clean'"), ("evaluate", "there is a component 'evaluate' already")],
)
def test_a_component_needs_a_new_and_valid_name(started: Callable[..., Project], name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        new_component(started(), name)


def test_a_pipeline_needs_a_component_to_run(started: Callable[..., Project]) -> None:
    project = started()
    with pytest.raises(UsageError, match="this project has no step of its own yet"):
        new_pipeline(project, "nightly", None)
    with pytest.raises(UsageError, match=r"unknown component 'evalute'. Did you mean 'evaluate'"):
        new_pipeline(project, "nightly", "evalute")
    written(project.root, new_pipeline(project, "check", "evaluate"))
    pipeline = yaml.safe_load(render(project, "local").files[project.root / "pipelines/check.yaml"].text)
    assert pipeline["inputs"]["model"]["path"] == "../data/model"


STEP = """
from dataclasses import dataclass
from pathlib import Path
import company_library_that_is_not_installed
from trainyard.settings.step_fields import output_folder, parameter
from trainyard.steps.runtime.entrypoint import run_step

@dataclass(frozen=True)
class Base:
    result: Path = output_folder()
    '''Where it goes.'''

@dataclass(frozen=True)
class Settings(Base):
    '''Do it.'''
    {field}

run_step(Settings, "demo.mine", print)
"""


def test_a_step_is_described_without_being_imported(started: Callable[..., Project]) -> None:
    project = started()
    field = "share: float | None = parameter(None, minimum=0.5)\n    '''How much.'''"
    (project.source / "demo" / "mine.py").write_text(STEP.format(field=field))
    step = own_steps(project)["mine"]
    assert (step.module, step.description, [field.name for field in step.fields]) == (
        "demo.mine", "Do it.", ["result", "share"],
    )  # fmt: skip
    assert (step.field["share"].type, step.field["share"].optional, step.field["share"].minimum) == (
        "number", True, 0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("size: int = parameter(3)", "the setting size has no documentation"),
        ("size: int = 3\n    '''x'''", "declare size with one of parameter, input_folder"),
        (
            "size: list = parameter(3)\n    '''x'''",
            "expected one of the types str, .* found list",
        ),
        ("size: int = parameter(len(sys.argv))\n    '''x'''", "defaults and limits of settings are literals"),
        ("size: int = (", "not valid Python"),
    ],
)
def test_settings_that_cannot_be_read_are_shown_at_their_line(
    started: Callable[..., Project], field: str, message: str
) -> None:
    project = started()
    (project.source / "demo" / "mine.py").write_text(STEP.format(field=field))
    with pytest.raises(SpecError, match=message) as caught:
        own_steps(project)
    (problem,) = caught.value.diagnostics
    assert (problem.rule, problem.span.file.name) == ("TY107", "mine.py")
    assert problem.span.line in (16, 18)


def test_lint_knows_the_flags_of_a_step_of_your_own(started: Callable[..., Project]) -> None:
    project = started()
    written(project.root, new_component(project, "clean_text"))
    flags = read_flags(project.source / "demo" / "clean_text.py", project.source)
    assert flags is not None
    assert set(flags.flags) == {"-h", "--help", "--result", "--source", "--pattern"}
    assert flags.flags["--result"].is_required


def test_an_existing_repository_gets_lint_and_nothing_else() -> None:
    assert set(existing_repository("ours")) == {
        ".trainyard.toml", ".pre-commit-config.yaml", ".github/workflows/azureml-lint.yml", ".vscode/settings.json",
    }  # fmt: skip
