"""`--set` of keys that are no inputs: what `az ml job create --set` does with a file, `run` and `submit` do too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

JOB = """\
type: command
display_name: Job
command: echo "$WORD"
environment: azureml:any:1
compute: azureml:some-cluster
resources:
  instance_count: 1
environment_variables:
  WORD: written
"""
PARALLEL = """\
type: pipeline
display_name: Parallel
settings:
  default_compute: azureml:some-cluster
jobs:
  score:
    type: parallel
    mini_batch_size: "1"
    inputs:
      files: {type: uri_folder, path: few}
    outputs:
      scores: {type: uri_file}
    input_data: ${{inputs.files}}
    resources: {instance_count: 1}
    task:
      type: run_function
      code: src
      entry_script: score.py
      environment: azureml:any:1
      append_row_to: ${{outputs.scores}}
"""
SCORE = "def init(): pass\ndef run(files): return [str(len(files)) for _ in files]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job, and a pipeline with a parallel job that counts the files of its mini-batches."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yml").write_text(JOB)
    (tmp_path / "parallel.yml").write_text(PARALLEL)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/score.py").write_text(SCORE)
    for name, count in (("few", 1), ("many", 4)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / str(number)).touch()
    return tmp_path


def set_options(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_variables_and_resources_are_set_recorded_and_kept_when_resumed(trainyard: Run, folder: Path) -> None:
    given = ("environment_variables.WORD=set", "resources.instance_count=2")

    first = trainyard("run", "job.yml", "--name", "it", *set_options(*given))

    assert first.exit_code == 0, first.stderr
    file = folder / ".trainyard/runs/it/run.json"
    run = json.loads(file.read_text())
    assert run["overrides"] == {"environment_variables.WORD": "set", "resources.instance_count": "2"}
    assert run["jobs"]["job"]["nodes"] == 2
    log = file.parent / run["jobs"]["job"]["logs"][0]
    assert log.read_text() == "set\n"

    run["status"] = run["jobs"]["job"]["status"] = "canceled"
    file.write_text(json.dumps(run))
    assert trainyard("runs", "resume", "it").exit_code == 0
    assert json.loads(file.read_text())["jobs"]["job"]["nodes"] == 2
    assert log.read_text() == "set\nset\n"
    assert (folder / "job.yml").read_text() == JOB


def test_the_inputs_and_settings_of_a_parallel_job_in_place_are_set(trainyard: Run, folder: Path) -> None:
    given = ("jobs.score.inputs.files.path=many", "jobs.score.mini_batch_size=2")

    outcome = trainyard("run", "parallel.yml", "--name", "it", *set_options(*given))

    assert outcome.exit_code == 0, outcome.stderr
    written = folder / ".trainyard/runs/it/jobs/score/outputs/scores"
    assert written.read_text().split() == ["2"] * 4


@pytest.mark.parametrize(("given", "of_the_other"), [((), "canceled"), (("true",), "completed")])
def test_settings_of_the_pipeline_are_set(
    trainyard: Run, folder: Path, given: tuple[str, ...], of_the_other: str
) -> None:
    jobs = {
        name: {"type": "command", "command": command, "environment": "azureml:any:1"}
        for name, command in {"fails": "sleep 0.2; exit 1", "other": "sleep 1"}.items()
    }
    pipeline = {"type": "pipeline", "settings": {"default_compute": "azureml:some-cluster"}, "jobs": jobs}
    (folder / "two.yml").write_text(json.dumps(pipeline))
    settings = [f"settings.continue_on_step_failure={value}" for value in given]

    assert trainyard("run", "two.yml", "--name", "it", *set_options(*settings)).exit_code == 1

    run = json.loads((folder / ".trainyard/runs/it/run.json").read_text())
    assert run["jobs"]["other"]["status"] == of_the_other


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "jobs.score.inputs.files.path=./mny",
            "--set jobs.score.inputs.files.path=./mny: job 'score': input 'files': no such folder",
        ),
        (
            "jobs.score.inputs.files=./mny",
            "--set jobs.score.inputs.files.path=./mny: job 'score': input 'files': no such folder",
        ),
        ("jobs.score.inputs.files.path=azureml:x:1", "input 'files' is azureml:x:1, which only Azure ML can read"),
        ("jobs.score.inputs.file.path=many", "the job 'score' has no input 'file'. Did you mean 'files'?"),
        ("jobs.scor.inputs.files.path=many", "unknown job 'scor'. Did you mean 'score'?"),
    ],
)
def test_wrong_data_of_a_parallel_job_in_place_is_reported_as_it_was_set(
    trainyard: Run, folder: Path, setting: str, words: str
) -> None:
    outcome = trainyard("run", "parallel.yml", "--set", setting)

    assert outcome.exit_code == 2
    assert words in outcome.stderr
    assert "parallel.yml:" not in outcome.stderr, "the file is as it should be"


def test_data_of_a_parallel_job_in_place_are_looked_for_where_the_command_runs(
    trainyard: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere" / "two").mkdir(parents=True)
    for name in ("a", "b"):
        (folder / "elsewhere" / "two" / name).touch()
    monkeypatch.chdir(folder / "elsewhere")

    outcome = trainyard("run", "../parallel.yml", "--name", "it", "--set", "jobs.score.inputs.files.path=two")

    assert outcome.exit_code == 0, outcome.stderr
    written = folder / "elsewhere/.trainyard/runs/it/jobs/score/outputs/scores"
    assert written.read_text().split() == ["1"] * 2


def test_an_input_of_a_job_within_another_pipeline_is_an_input(trainyard: Run, folder: Path) -> None:
    within = {
        "type": "command",
        "component": {
            "type": "command",
            "command": "echo ${{inputs.word}}",
            "environment": "azureml:any:1",
            "inputs": {"word": {"type": "string", "default": "written"}},
        },
    }
    (folder / "inner.yml").write_text(json.dumps({"type": "pipeline", "name": "inner", "jobs": {"say": within}}))
    sub = {"type": "pipeline", "component": "./inner.yml"}
    outer = {"type": "pipeline", "settings": {"default_compute": "azureml:any"}, "jobs": {"sub": sub}}
    (folder / "outer.yml").write_text(json.dumps(outer))

    outcome = trainyard("run", "outer.yml", "--name", "it", *set_options("jobs.sub.say.inputs.word=set"))

    assert outcome.exit_code == 0, outcome.stderr
    (log,) = (folder / ".trainyard/runs/it/jobs").glob("*say/user_logs/std_log.txt")
    assert log.read_text() == "set\n"


@pytest.mark.parametrize(
    ("file", "setting", "exit_code", "words"),
    [
        ("job.yml", "resource.instance_count=2", 1, ("unknown key 'resource' here", "Did you mean 'resources'?")),
        (
            "job.yml",
            "resources.instanc_count=2",
            1,
            ("--set: error[AML101] unknown key 'instanc_count'", "'instance_count'"),
        ),
        ("job.yml", "resources.instance_count=0", 1, ("--set: error[AML106] 'instance_count' is 0; it is 1 or more",)),
        ("job.yml", "environment.image=x", 2, ("--set environment.image: there is no 'image' in 'azureml:any:1'",)),
        ("parallel.yml", "jobs.scores.mini_batch_size=2", 2, ("unknown job 'scores'. Did you mean 'score'?",)),
        ("parallel.yml", "jobs.score.resourcs.instance_count=2", 1, ("'resourcs'", "Did you mean 'resources'?")),
        ("parallel.yml", "settings.default_comput=x", 1, ("'default_comput'", "Did you mean 'default_compute'?")),
        (
            "parallel.yml",
            "jobs.score.inputs.files.mode=downlod",
            1,
            ("--set: error[AML104]", "Did you mean 'download'?"),
        ),
    ],
)
def test_a_mistyped_key_is_answered_with_the_nearest(
    trainyard: Run, folder: Path, file: str, setting: str, exit_code: int, words: tuple[str, ...]
) -> None:
    outcome = trainyard("run", file, *set_options(setting))

    assert outcome.exit_code == exit_code
    for word in words:
        assert word in outcome.stderr
    assert not (folder / ".trainyard/runs").exists()


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        (
            "job.yml",
            ("resources.instance_count=2", "environment_variables.OTHER=1.10", "display_name=Mine", "tags.a=b"),
        ),
        ("job.yml", ("limits.timeout=60", "compute=azureml:other-cluster")),
        ("parallel.yml", ("jobs.score.mini_batch_size=2", "settings.continue_on_step_failure=true")),
        ("parallel.yml", ("jobs.score.inputs.files.mode=download", "jobs.score.resources.instance_count=3")),
    ],
)
def test_the_file_is_read_as_the_client_reads_it(
    trainyard: Run, folder: Path, file: str, settings: tuple[str, ...]
) -> None:
    """The client's own `params_override`, which is its `--set`, and a file with these values send the same."""
    ml = pytest.importorskip("azure.ai.ml")
    from trainyard.azure.submission import bodies_of
    from trainyard.spec.findings import DocumentStore
    from trainyard.spec.set_keys import keys_of_file, set_in_file

    assert ml.load_job
    path, given = folder / file, dict(setting.split("=") for setting in settings)
    store = DocumentStore()
    set_in_file(path, given, store)
    (folder / "written.yml").write_text(json.dumps(store.peek(path).data))

    assert keys_of_file(path, given, store) == given
    by_client, written, unchanged = bodies_of(path, given), bodies_of(folder / "written.yml"), bodies_of(path)
    for bodies in (by_client, written, unchanged):
        del bodies["job"]["name"]  # which is generated
    assert by_client == written
    assert by_client != unchanged
