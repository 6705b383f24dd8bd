"""Lint, plan and run read the same values, and the right ones: pipelines within pipelines, with known answers."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from settings_project import SCHEMA, change, write_project
from trainyard.lint.checks import LintContext
from trainyard.lint.placements import Placement, placements_of_pipeline
from trainyard.plan.planner import plan
from trainyard.rehearse.command import fill_command
from trainyard.rehearse.local_data import KeptData, LocalPath
from trainyard.rehearse.local_jobs import LocalPipeline, Source, local_pipeline
from trainyard.settings.steps.training import TrainDDP
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import read_document
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.findings import DocumentStore, Findings
from trainyard.spec.loading import load_job
from trainyard.spec.model import Pipeline, code_of
from trainyard.spec.parsed import Parsed, Reading
from trainyard.spec.pipelines import ComponentCache, read_pipeline
from trainyard.spec.resolution import JobUse
from trainyard.spec.resolved import DataPath, JobOutput, Known, PipelineOutput, Resolved, Unknown
from trainyard.spec.set_inputs import resolve_with
from trainyard.steps.runtime.flags import parse_task_flags

sys.path.insert(0, str(Path(__file__).parent))

from generated_pipelines import UNKNOWN, WRONG, Generator, JobAnswers

ROOT = Path(__file__).parents[2]
PIPELINES = sorted(
    file
    for folder in ("pipelines", "tests/golden", "tests/lint/projects", "tests/lint/public_style", "tests/spec/data")
    for file in (ROOT / folder).rglob("*.y*ml")
    if kind_of(read_document(file)) == "pipeline"
)
NOT_LOADED = frozenset(
    {
        "automl.yml",
        "batch.yml",
        "flow.yml",
        "if_else.yml",
        "local_run.yml",
        "name_of_the_run.yml",
        "pipeline.yml",
        "registered.yml",
        "registry.yml",
        "said_again.yml",
        "transfer.yml",
    }
)
"""Pipelines with components that only Azure ML has, with jobs that only Azure ML runs, or with a key written twice."""
EVERY_PROCESS = 10**9
"""Else a run scales jobs down to the processors of this machine."""
SEEDS = 4
SOAK_SEEDS = 100
"""`make soak` goes on to this one."""
CASES_PER_SEED = 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(SEEDS), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(SEEDS, SOAK_SEEDS))]
)
def test_generated_pipelines_come_to_what_they_were_written_for(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    for case in range(CASES_PER_SEED):
        folder = tmp_path / str(case)
        (folder / "data").mkdir(parents=True)
        generator = Generator(folder, random)
        file, expected = generator.pipeline()
        check(file, expected, loads=generator.trouble != WRONG)
        shutil.rmtree(folder)


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: "/".join(file.parts[-3:]))
def test_lint_plan_and_run_agree_on_the_pipelines_of_the_corpora(file: Path) -> None:
    store = DocumentStore()
    answers = {name: as_answers(placement) for name, placement in lint_reads(file, store).items()}
    if file.name in NOT_LOADED:
        with pytest.raises(SpecError):
            load_job(file, store, strict=True)
        return
    pipeline = load_job(file, store, strict=True)
    assert not any(value in (UNKNOWN, WRONG) for job in answers.values() for value in values_of(job))
    planned = plan_reads(pipeline)
    assert {name: planned[name] for name in answers} == {
        name: (job.nodes, job.processes_per_node, (job.compute or "").removeprefix("azureml:"))
        for name, job in answers.items()
    }
    if planned.keys() != answers.keys():
        kinds = {name: code_of(pipeline.jobs[name].component).task for name in planned.keys() - answers.keys()}
        assert all(kinds.values()), "lint reads the machines of every job but sweeps, parallel and Spark jobs"
        return
    run = run_here(pipeline)
    assert {name: (job.counts.nodes, job.counts.processes_per_node) for name, job in run.jobs.items()} == {
        name: (job.nodes, job.processes_per_node) for name, job in answers.items()
    }
    for name, job in run.jobs.items():
        literals = {port: source for port, source in job.inputs.items() if isinstance(source, (str, int, float))}
        assert literals == {port: answers[name].inputs[port] for port in literals}


def test_the_corpora_hold_pipelines_within_pipelines() -> None:
    names = {name for file in PIPELINES for name in lint_reads(file, DocumentStore())}
    assert len(PIPELINES) >= 25
    assert any("." in name for name in names)


PORTS: dict[str, list[Any]] = {
    "task": ["image_classification"],
    "model_type": ["convnext", "vit"],
    "epochs": [1, 7],
    "learning_rate": [0.1, "3e-4"],
    "micro_batch_size": [4, 8],
    "global_batch_size": [64, 128],
    "precision": ["fp32", "fp16"],
}
SETTINGS: dict[str, list[Any]] = PORTS | {
    "weight_decay": [0, "1e-2", 0.25],
    "compile": [True, "no"],
    "max_steps": [None, 12],
    "optimizer": ["adamw", "adafactor"],
    "stop_file": ["stop", "a b"],
    "model_overrides": [{"num_hidden_layers": 2, "layer_norm_eps": 1e-6}, {"patch_size": 4}],
    "label_smoothing": [0, 0.5],
}
"""Values that the settings of a training may have, as they are written; `PORTS` are inputs of its component too."""


def drawn(random: Random, names: Iterable[str]) -> dict[str, Any]:
    return {name: random.choice(SETTINGS[name]) for name in names if random.random() < 0.4}


def as_flow(values: Mapping[str, Any]) -> str:
    """Overrides on one line, texts in double quotes."""
    return f"{{{', '.join(f'{name}: {json.dumps(value)}' for name, value in values.items())}}}"


@pytest.mark.parametrize("seed", range(60))
def test_lint_plan_run_and_the_step_itself_agree_on_settings(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    file = write_project(tmp_path)
    in_file, overrides = drawn(random, SETTINGS), drawn(random, SETTINGS)
    bound, literals = drawn(random, PORTS), drawn(random, PORTS)
    constants = drawn(random, ["weight_decay", "optimizer"])
    document = yaml.safe_load(file.read_text())
    job = document["jobs"]["train"]
    document["inputs"] = {"overrides": as_flow(overrides) if overrides else "", **bound}
    job["inputs"] = {name: job["inputs"][name] for name in ("data", "settings", "overrides")} | literals
    job["inputs"] |= {name: f"${{{{parent.inputs.{name}}}}}" for name in bound}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    (tmp_path / "settings" / "ddp.yaml").write_text(SCHEMA + yaml.safe_dump(in_file))
    component = tmp_path / "components" / "train.yaml"
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in constants.items())
    change(component, "--data '${{inputs.data}}'", f"--data '${{{{inputs.data}}}}' {flags}")

    written = {**in_file, **constants, **literals, **bound, **overrides}
    linted = lint_reads(file, DocumentStore())["train"].use
    assert settings_of(linted) == expected_settings(written)

    given = {name: value for name, value in drawn(random, SETTINGS).items() if value is not None}
    pipeline = load_job(file, strict=True)
    arguments = {f"inputs.{name}": as_typed(value) for name, value in given.items()}
    resolution = resolve_with(pipeline, arguments)
    over_overrides = {name: value for name, value in given.items() if name not in bound}
    over_ports = {name: value for name, value in given.items() if name in bound}
    written |= over_ports | overrides | over_overrides
    use = resolution.jobs["train"]
    assert settings_of(use) == expected_settings(written)

    resolved = local_pipeline(pipeline, resolution, kept=KeptData(tmp_path, tmp_path), selected=()).jobs["train"]
    inputs = {name: str(source.path) if isinstance(source, LocalPath) else source
              for name, source in resolved.inputs.items()}  # fmt: skip
    command = fill_command(resolved.component, inputs, {}, strict=True)
    arguments_of_step = [*shlex.split(command)[3:], "--model", "m", "--checkpoints", "c", "--metrics", "s"]
    parsed = parse_task_flags(TrainDDP, "trainyard.steps.train_ddp", arguments_of_step)
    for name, value in expected_settings(written).items():
        taken = getattr(parsed.step, name) if hasattr(parsed.step, name) else parsed.task.get(name)
        if name not in written:
            continue  # a task's own class has its defaults
        assert (json.loads(taken) if name == "model_overrides" and taken else taken) == value, name


def expected_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `SETTINGS` by their types, with the defaults of train_ddp and of its task."""
    defaults = {
        "task": "image_classification", "model_type": "convnext", "epochs": 16, "learning_rate": 0.003,
        "micro_batch_size": 32, "global_batch_size": 64, "precision": "fp32", "weight_decay": 0.3, "compile": False,
        "max_steps": None, "optimizer": "adamw", "stop_file": None, "model_overrides": None, "label_smoothing": 0.05,
    }  # fmt: skip
    numbers = ("learning_rate", "weight_decay", "label_smoothing")
    typed = {name: float(value) if name in numbers else value for name, value in written.items()}
    typed |= {"compile": typed["compile"] is True} if "compile" in typed else {}
    return defaults | typed


def settings_of(use: JobUse) -> dict[str, Any]:
    values = {name: found.value for name in SETTINGS if isinstance(found := use.setting(name), Known)}
    overrides = values["model_overrides"]
    return {**values, "model_overrides": json.loads(overrides) if isinstance(overrides, str) else None}


def as_typed(value: Any) -> str:
    """A value as somebody types it after `--set KEY=`."""
    return json.dumps(value) if isinstance(value, (dict, bool)) else str(value)


def check(file: Path, expected: dict[str, JobAnswers], *, loads: bool) -> None:
    """Ask lint, plan and run for every value of a pipeline; what is unknown or wrong, plan and run refuse."""
    store = DocumentStore()
    linted = lint_reads(file, store)
    assert {name: as_answers(placement) for name, placement in linted.items()} == expected
    assert {name: (placement.nodes, placement.processes_per_node) for name, placement in linted.items()} == {
        name: (known_count(job.nodes), known_count(job.processes_per_node)) for name, job in expected.items()
    }
    if not loads:
        with pytest.raises(SpecError):
            load_job(file, store, strict=True)
        return
    pipeline = load_job(file, store, strict=True)
    counts = [count for job in expected.values() for count in (job.nodes, job.processes_per_node)]
    if UNKNOWN in counts:
        with pytest.raises(SpecError):
            plan(pipeline, Computes(DocumentStore()))
    else:
        assert plan_reads(pipeline) == {
            name: (job.nodes, job.processes_per_node, (job.compute or "").removeprefix("azureml:"))
            for name, job in expected.items()
        }
    if any(value in (UNKNOWN, WRONG) for job in expected.values() for value in values_of(job)):
        with pytest.raises(SpecError):
            run_reads(pipeline)
    else:
        assert run_reads(pipeline) == {
            name: (
                {port: value for port, value in job.inputs.items() if value is not None},
                {name: str(value) for name, value in job.variables.items()},
                job.nodes,
                job.processes_per_node,
            )
            for name, job in expected.items()
        }


def lint_reads(file: Path, store: DocumentStore) -> dict[str, Placement]:
    parsed = Parsed()
    document = store.read(file)
    read_pipeline(document.root, Reading(document, store, Findings(), parsed), ComponentCache())
    context = LintContext(parsed, Computes(store))
    placements = [each for pipeline in parsed.pipelines for each in placements_of_pipeline(pipeline, context)]
    return {placement.use.name: placement for placement in placements}


def as_answers(placement: Placement) -> JobAnswers:
    use = placement.use
    return JobAnswers(
        inputs={name: as_answer(value) for name, value in use.inputs.items()},
        nodes=as_answer(use.instance_count),
        processes_per_node=as_answer(use.processes_per_node),
        compute=as_answer(use.compute) if use.compute is not None else None,
        variables={name: as_answer(value) for name, value in use.environment_variables.items()},
        outputs={name: as_answer(value) for name, value in use.outputs.items()},
    )


def as_answer(resolved: Resolved) -> Any:
    if not isinstance(resolved, Known):
        return UNKNOWN if isinstance(resolved, Unknown) else WRONG
    value = resolved.value
    if isinstance(value, JobOutput):
        return f"{value.job}:{value.port}"
    if isinstance(value, PipelineOutput):
        return value.name
    return value.text if isinstance(value, DataPath) else value


def known_count(answer: Any) -> int | None:
    return answer if isinstance(answer, int) else None


def values_of(job: JobAnswers) -> list[Any]:
    return [job.nodes, job.processes_per_node, *job.inputs.values(), *job.variables.values()]


def plan_reads(pipeline: Pipeline) -> dict[str, tuple[int, int, str]]:
    return {
        job.name: (job.processes.nodes, job.processes.processes_per_node, job.compute)
        for job in plan(pipeline, Computes(DocumentStore())).jobs
    }


def run_here(pipeline: Pipeline) -> LocalPipeline:
    kept = KeptData(Path("downloads"), Path("datastores"))
    resolution = resolve_with(pipeline, {}, strict=True)
    return local_pipeline(pipeline, resolution, kept=kept, selected=(), max_processes=EVERY_PROCESS)


def run_reads(pipeline: Pipeline) -> dict[str, tuple[dict[str, Any], dict[str, str], int, int]]:
    resolved = run_here(pipeline)
    return {
        name: (
            {port: run_input(source, pipeline) for port, source in job.inputs.items()},
            job.environment_variables,
            job.counts.nodes,
            job.counts.processes_per_node,
        )
        for name, job in resolved.jobs.items()
    }


def run_input(source: Source, pipeline: Pipeline) -> Any:
    if isinstance(source, JobOutput):
        return f"{source.job}:{source.port}"
    if isinstance(source, LocalPath):
        assert source.path == pipeline.file.parent / "data"
        return source.written
    return source
