"""Sweeps and parallel jobs: what they try and divide, what they write, and how they fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from trainyard.rehearse.display import Display
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.runner import run_pipeline
from trainyard.rehearse.search_space import trials
from trainyard.report.run_report import write_report
from trainyard.resources import schema_file
from trainyard.settings.run_record import RunRecord, trials_in_words
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Value
from trainyard.spec.loading import load_job
from trainyard.spec.model import Component, Sweep

SPAN = Span(Path("sweep.yml"))

# Logs as MLflow's file store has it, without importing MLflow.
LOG_METRIC = """\
import os, sys, urllib.parse
rate, out = float(sys.argv[1]), sys.argv[2]
store = urllib.parse.urlsplit(os.environ["MLFLOW_TRACKING_URI"]).path
run = os.path.join(store, os.environ["MLFLOW_EXPERIMENT_ID"], os.environ["MLFLOW_RUN_ID"])
if rate > 1:
    raise ValueError("the rate is too high")
with open(os.path.join(run, "metrics", "loss"), "a") as metrics:
    metrics.write(f"0 {abs(rate - 0.5)} 0\\n")
with open(os.path.join(out, "rate.txt"), "w") as file:
    file.write(str(rate))
"""
SWEEP = """
type: sweep
trial:
  command: python log_metric.py ${{search_space.rate}} ${{outputs.model}}
  code: src
  environment: azureml:e:1
compute: azureml:cpu
outputs: {model: {type: uri_folder}}
sampling_algorithm: grid
search_space:
  rate: {type: choice, values: [0.1, 0.6, 2.0]}
objective: {goal: minimize, primary_metric: loss}
limits: {max_total_trials: 5, max_concurrent_trials: 2}
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "log_metric.py").write_text(LOG_METRIC)

    def run_text(text: str, **options: Any) -> RunRecord:
        file = tmp_path / "job.yml"
        file.write_text(text)
        options = {"grace_seconds": 2.0, **options}
        return run_pipeline(
            load_job(file), RunOptions(tmp_path / ".trainyard" / "runs", **options), Display(quiet=True)
        )

    return run_text


def log_of(record: RunRecord, job: str) -> str:
    return (record.folder / record.jobs[job].logs[0]).read_text()


def sweep_of(space: dict[str, Any], sampling: str = "random", most: int = 50) -> Sweep:
    values = {name: Value(each, SPAN) for name, each in space.items()}
    trial = Component("t", SPAN.file, SPAN, Value("", SPAN), {}, {})
    return Sweep(trial, values, sampling, None, "minimize", "loss", most, most)


def test_grid_tries_every_combination_in_order() -> None:
    space = {"a": {"type": "choice", "values": [1, 2]}, "b": {"type": "choice", "values": ["x", "y"]}}
    assert trials(sweep_of(space, "grid")) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


@pytest.mark.parametrize(
    ("space", "least", "most"),
    [
        ({"type": "randint", "upper": 4}, 0, 3),
        ({"type": "uniform", "min_value": 0.5, "max_value": 0.9}, 0.5, 0.9),
        ({"type": "quniform", "min_value": 1, "max_value": 9, "q": 2}, 0, 10),
        ({"type": "loguniform", "min_value": -6, "max_value": -1}, 0.0024, 0.368),
        ({"type": "qloguniform", "min_value": 0, "max_value": 3, "q": 1}, 1, 21),
        ({"type": "normal", "mu": 10, "sigma": 1}, 4, 16),
        ({"type": "qnormal", "mu": 10, "sigma": 1, "q": 0.5}, 4, 16),
        ({"type": "lognormal", "mu": 0, "sigma": 0.1}, 0.5, 2),
        ({"type": "qlognormal", "mu": 0, "sigma": 0.1, "q": 0.1}, 0.5, 2),
    ],
)
def test_each_function_draws_from_its_range(space: dict[str, Any], least: float, most: float) -> None:
    drawn = [trial["x"] for trial in trials(sweep_of({"x": space}))]

    assert drawn == [trial["x"] for trial in trials(sweep_of({"x": space}))]
    assert all(least <= value <= most for value in drawn)
    if "q" in space:
        assert all(abs(value / space["q"] - round(value / space["q"])) < 1e-9 for value in drawn)
    assert len(set(drawn)) > 1


def test_few_values_are_tried_once_each() -> None:
    space = {"a": {"type": "choice", "values": [1, 2]}, "b": {"type": "randint", "upper": 3}}
    found = trials(sweep_of(space))
    assert sorted((trial["a"], trial["b"]) for trial in found) == [(a, b) for a in (1, 2) for b in range(3)]


@pytest.mark.parametrize(
    ("space", "sampling", "message"),
    [
        ({"type": "chioce", "values": [1]}, "random", "unknown type 'chioce'"),
        ({"type": "uniform", "min_value": 0}, "random", "max_value of uniform: expected a number"),
        ({"type": "choice", "values": []}, "random", "values of choice: expected a list of values"),
        ({"type": "uniform", "min_value": 0, "max_value": 1}, "grid", "cannot be enumerated"),
    ],
)
def test_what_cannot_be_drawn_is_refused(space: dict[str, Any], sampling: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        trials(sweep_of({"x": space}, sampling))


def test_a_sweep_takes_over_the_outputs_of_its_best_trial(run: Any) -> None:
    record = run(SWEEP)

    job = record.jobs["job"]
    assert record.status == "completed"
    assert [(trial.status, trial.inputs) for trial in job.trials] == [
        ("completed", {"rate": 0.1}),
        ("completed", {"rate": 0.6}),
        ("failed", {"rate": 2.0}),
    ]
    assert "the rate is too high" in str(job.trials[2].reason)
    assert (record.folder / record.outputs["model"] / "rate.txt").read_text() == "0.6"
    assert "best: trial 1" in (record.folder / job.logs[0]).read_text()
    assert run(SWEEP).jobs["job"].reused_from == record.name


def test_the_trials_of_a_canceled_sweep_are_canceled_and_have_not_failed(run: Any) -> None:
    sweep = yaml.safe_load(SWEEP)
    sweep["limits"]["max_concurrent_trials"] = 1
    sweep["trial"]["command"] += " && sleep 60"
    fails = {"type": "command", "environment": "azureml:e:1", "command": "sleep 1; exit 1"}
    jobs = {"job": sweep, "fails": fails}
    record = run(yaml.safe_dump({"type": "pipeline", "settings": {"default_compute": "azureml:cpu"}, "jobs": jobs}))

    job = record.jobs["job"]
    assert (job.status, record.jobs["fails"].status) == ("canceled", "failed")
    assert {(trial.status, trial.reason) for trial in job.trials} == {("canceled", "job fails failed")}
    assert trials_in_words(job.trials) == "0 of 3"


WAITS_FOR_THE_RECORD = """\
import json, pathlib, sys, time
record = next(folder for folder in pathlib.Path.cwd().parents if (folder / "run.json").is_file()) / "run.json"
deadline = time.monotonic() + 60
while sys.argv[1] == "0.6":
    trials = json.loads(record.read_text())["jobs"]["job"]["trials"]
    if trials[0]["status"] == "completed":
        assert (trials[0]["is_best"], trials[1]["status"]) == (True, "running")
        break
    assert time.monotonic() < deadline
    time.sleep(0.02)
"""


def test_the_record_shows_the_trials_of_a_sweep_that_is_under_way(run: Any, tmp_path: Path) -> None:
    (tmp_path / "src" / "log_metric.py").write_text(WAITS_FOR_THE_RECORD + LOG_METRIC)
    record = run(SWEEP.replace("max_concurrent_trials: 2", "max_concurrent_trials: 1"))

    trials = record.jobs["job"].trials
    assert [(trial.status, trial.is_best) for trial in trials] == [
        ("completed", False),
        ("completed", True),
        ("failed", False),
    ]
    assert all(trial.started and trial.duration_s for trial in trials)
    schema = json.loads(schema_file("run").read_text())
    Draft202012Validator(schema).validate(json.loads((record.folder / "run.json").read_text()))
    assert trials_in_words(trials) == "3 of 3, 1 failed, best 0.1 by trial 1"


def test_a_sweep_jobs_own_trial_sets_variables(run: Any) -> None:
    """Those of a component are dropped, but these are sent."""
    greets = SWEEP.replace("  code: src\n", "  code: src\n  environment_variables: {GREETING: hello}\n")
    record = run(greets.replace("python log_metric.py", 'echo "$GREETING" && python log_metric.py'))
    assert (record.folder / "jobs/job/trials/0/user_logs/std_log.txt").read_text() == "hello\n"


def test_a_sweep_without_a_good_trial_fails(run: Any) -> None:
    record = run(SWEEP.replace("[0.1, 0.6, 2.0]", "[3, 4]"))
    assert "all 2 trials failed" in (record.reason or "")

    record = run(SWEEP.replace("primary_metric: loss", "primary_metric: los"))
    assert "no trial logged its primary metric 'los'" in (record.reason or "")


def test_a_sweep_without_a_metric_and_outputs_completes_and_says_so(run: Any) -> None:
    """In the manner of a public sweep that only greets."""
    greets = SWEEP.replace("primary_metric: loss", "primary_metric: los").replace(
        "outputs: {model: {type: uri_folder}}", ""
    )
    record = run(greets.replace("${{outputs.model}}", "outputs"))
    assert record.status == "completed", record.reason
    assert record.jobs["job"].warnings == [
        "no trial logged its primary metric 'los' with MLflow, so none is the best",
    ]


def test_a_sweep_in_a_pipeline_sets_inputs_of_its_component(run: Any, tmp_path: Path) -> None:
    (tmp_path / "trial.yml").write_text("""
type: command
command: python log_metric.py ${{inputs.rate}} ${{outputs.model}}
code: src
environment: azureml:e:1
inputs: {rate: {type: number}, unused: {type: string, default: x}}
outputs: {model: {type: uri_folder}}
""")
    record = run("""
type: pipeline
settings: {default_compute: azureml:cpu}
jobs:
  search:
    type: sweep
    trial: ./trial.yml
    search_space: {rate: {type: choice, values: [0.4, 0.9]}}
    sampling_algorithm: random
    objective: {goal: maximize, primary_metric: loss}
    limits: {max_total_trials: 2}
  show:
    command: cat ${{inputs.model}}/rate.txt
    environment: azureml:e:1
    inputs: {model: "${{parent.jobs.search.outputs.model}}"}
""")

    assert record.status == "completed"
    assert (record.folder / record.jobs["show"].logs[0]).read_text() == "0.9"


PARALLEL = """
type: pipeline
settings: {default_compute: azureml:cpu}
outputs: {rows: {type: uri_file}}
jobs:
  score:
    type: parallel
    mini_batch_size: "2"
    max_concurrency_per_instance: 2
    mini_batch_error_threshold: 0
    retry_settings: {max_retries: 1, timeout: 20}
    input_data: ${{inputs.data}}
    inputs: {data: {type: uri_folder, path: data}, unit: kg}
    outputs: {rows: "${{parent.outputs.rows}}"}
    task:
      type: run_function
      code: src
      entry_script: score.py
      environment: azureml:e:1
      program_arguments: --unit ${{inputs.unit}}
      append_row_to: ${{outputs.rows}}
"""
SCORE = """\
import argparse, pathlib
def init():
    global unit
    parser = argparse.ArgumentParser()
    parser.add_argument("--unit")
    unit = parser.parse_args().unit
def run(mini_batch, context):
    texts = [pathlib.Path(name).read_text() for name in mini_batch]
    return [f"{context.minibatch_index} {int(text)} {unit}" for text in texts]
"""


def test_a_parallel_job_calls_run_for_each_mini_batch(run: Any, tmp_path: Path) -> None:
    (tmp_path / "src" / "score.py").write_text(SCORE)
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"{number}.txt").write_text(str(number))

    record = run(PARALLEL)
    assert record.status == "completed"
    rows = (record.folder / record.outputs["rows"]).read_text()
    assert rows == "0 0 kg\n0 1 kg\n1 2 kg\n1 3 kg\n2 4 kg\n"

    (tmp_path / "data" / "3.txt").write_text("three")
    record = run(PARALLEL)
    assert record.status == "failed"
    assert "1 mini-batch failed, 0 allowed: ValueError: invalid literal for int()" in (
        record.jobs["score"].reason or ""
    )
    allowed = run(PARALLEL.replace("mini_batch_error_threshold: 0", "mini_batch_error_threshold: 1"))
    assert (allowed.folder / allowed.outputs["rows"]).read_text() == "0 0 kg\n0 1 kg\n2 4 kg\n"
    assert "3 of 3 mini-batches, 1 failed, 1 allowed, " in log_of(allowed, "score")
    page = write_report(allowed.folder).read_text()
    assert re.search(r"Mini-batches .*\n *<p>3 of 3 mini-batches, 1 failed, 1 allowed, \S+ items per second</p>", page)

    (tmp_path / "src" / "score.py").write_text("def init():\n    raise OSError('no model')\n")
    assert run(PARALLEL).jobs["score"].reason == "OSError: no model (its process ended with exit code 1)"


@pytest.mark.parametrize(
    ("threshold", "returned", "reason"),
    [
        # The count of what run() returns is less than the mini-batch's: reference-yaml-job-parallel.
        (0, "names[1:]", "2 mini-batches failed, 0 allowed: run() returned fewer results than it was given items"),
        (-1, "names[1:]", None),
        # More than it was given does not make up for another mini-batch.
        (0, "names * 2 if len(names) > 1 else []", "1 mini-batch failed, 0 allowed: run() returned fewer"),
        # What Microsoft's driver of parallel jobs raises: EntryScriptRunReturnWrongType, NoResultToAppendError.
        (-1, "None", "all mini-batches failed: TypeError: run() returned NoneType, expected a list or a pandas"),
        (-1, "{'names': names}", "all mini-batches failed: TypeError: run() returned dict, expected a list"),
        (-1, "[]", "there is nothing to append: run() returned fewer results than it was given items"),
        (-1, "tuple(names)", None),
    ],
)
def test_what_run_returns_decides_about_its_mini_batch(
    run: Any, tmp_path: Path, threshold: int, returned: str, reason: str | None
) -> None:
    (tmp_path / "src" / "score.py").write_text(f"def run(names):\n    return {returned}\n")
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.txt").touch()

    record = run(PARALLEL.replace("mini_batch_error_threshold: 0", f"mini_batch_error_threshold: {threshold}"))

    assert (reason or "") in (record.jobs["score"].reason or "")
    assert record.status == ("completed" if reason is None else "failed")


def test_a_mini_batch_that_fails_in_another_way_at_its_second_try_is_reported_with_both(
    run: Any, tmp_path: Path
) -> None:
    (tmp_path / "src" / "score.py").write_text(
        "import pathlib\n"
        "def run(names):\n"
        "    taken = pathlib.Path('taken')\n"
        "    if taken.exists():\n"
        "        raise FileExistsError('taken')\n"
        "    taken.touch()\n"
        "    raise MemoryError('too large')\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.txt").touch()

    reason = run(PARALLEL).jobs["score"].reason or ""
    assert "failed, 0 allowed: FileExistsError: taken (at its first try: MemoryError: too large)" in reason


TABLE = """
paths: [{pattern: "./*.csv"}]
transformations:
  - read_delimited: {delimiter: ",", encoding: utf8}
"""


@pytest.mark.parametrize(
    ("division", "wanted"), [("mini_batch_size: '2'", [2, 1]), ("partition_keys: [store]", [1, 2])]
)
def test_a_table_is_divided_by_rows_or_keys(run: Any, tmp_path: Path, division: str, wanted: list[int]) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "MLTable").write_text(TABLE)
    (tmp_path / "data" / "a.csv").write_text("store,sold\n2,5\n1,6\n")
    (tmp_path / "data" / "b.csv").write_text("store,sold\n2,7\n")
    script = "import json\ndef run(rows, context):\n    return [json.dumps([len(rows), context.partition_key_value])]\n"
    (tmp_path / "src" / "score.py").write_text(script.replace("json.dumps(", "json.dumps(default=int, obj="))
    text = PARALLEL.replace('mini_batch_size: "2"', division).replace("uri_folder, path: data", "mltable, path: data")

    record = run(text)
    assert record.status == "completed", record.reason
    rows = [json.loads(line) for line in (record.folder / record.outputs["rows"]).read_text().splitlines()]
    assert [row[0] for row in rows] == wanted
    if "keys" in division:
        assert [row[1] for row in rows] == [{"store": 1}, {"store": 2}]


def test_a_table_of_files_that_only_azure_ml_can_read_is_refused_before_anything_runs(run: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    address = "azureml://datastores/raw/paths/a.csv"
    (tmp_path / "data" / "MLTable").write_text(TABLE.replace("./*.csv", address))
    (tmp_path / "src" / "score.py").write_text(SCORE)

    with pytest.raises(SpecError) as caught:
        run(PARALLEL.replace("uri_folder, path: data", "mltable, path: data"))

    [problem] = caught.value.diagnostics
    assert f"is data, whose MLTable names {address}, which only Azure ML can read" in problem.message
    assert problem.hint.startswith("give local data in its place: --set jobs.score.inputs.")
    assert not (tmp_path / ".trainyard" / "runs").exists()


TRANSFORMED = """
paths: [{file: ./a.csv}, {file: ./b.csv}]
transformations:
  - read_delimited: {delimiter: ";", encoding: utf8bom, header: from_first_file, empty_as_string: false}
  - convert_column_types:
      - {columns: [sold], column_type: int}
      - {columns: day, column_type: {datetime: {formats: ["%d.%m.%Y"]}}}
  - drop_columns: note
  - skip: 4
  - take: 2
"""


def test_the_transformations_of_an_mltable_are_done_in_their_order(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    data = tmp_path / "data"
    data.mkdir()
    (data / "MLTable").write_text(TRANSFORMED)
    rows = "a;1;01.02.2024;\na;2;01.02.2024;\nx y;3;01.02.2024;\na;4;01.02.2024;\n"
    (data / "a.csv").write_text(f"store;sold;day;note\n{rows}", encoding="utf-8-sig")
    (data / "b.csv").write_text("b;5;02.02.2024;\nb;6;03.02.2024;\nb;7;03.02.2024;\n", encoding="utf-8-sig")
    script = "def run(rows):\n    return [f'{[*rows]} {r.store} {r.sold} {r.day.month}' for r in rows.itertuples()]\n"
    (tmp_path / "src" / "score.py").write_text(script)
    text = PARALLEL.replace("uri_folder, path: data", "mltable, path: data")

    record = run(text)
    assert record.status == "completed", record.reason
    columns = "['store', 'sold', 'day']"
    assert (record.folder / record.outputs["rows"]).read_text() == f"{columns} b 5 2\n{columns} b 6 2\n"

    (data / "MLTable").write_text(TRANSFORMED.replace("- skip: 4", "- filter: 'col(\"sold\") > 2'"))
    assert "a local run does not do the MLTable's transformation filter" in log_of(run(text), "score")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--allowed_failed_percent 40", ""),
        ("--allowed_failed_percent -100", ""),
        ("--allowed_failed_percent 20", "1 mini-batch failed, 0 allowed: ZeroDivisionError: division by zero"),
        ("--error_threshold 1", "2 items failed, 1 allowed: ZeroDivisionError: division by zero"),
    ],
)
def test_arguments_of_a_parallel_job_say_how_much_may_fail(
    run: Any, tmp_path: Path, arguments: str, error: str
) -> None:
    (tmp_path / "src" / "score.py").write_text(
        "def run(names):\n    return [1 / (0 if name.endswith('3.txt') else 1) for name in names]\n"
    )
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"{number}.txt").touch()
    text = PARALLEL.replace("    mini_batch_error_threshold: 0\n", "").replace("--unit ${{inputs.unit}}", arguments)

    record = run(text)
    assert record.status == ("failed" if error else "completed")
    assert error in log_of(record, "score")
