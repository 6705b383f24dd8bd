"""A pipeline as Azure's public samples write them: autolog, a model downloaded into an output, loaded from an input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "pipeline.yml": """\
type: pipeline
inputs:
  rides: {type: uri_folder, path: ./data}
outputs:
  trained_model: {mode: upload}
  predictions: {mode: upload}
compute: azureml:cpu-cluster
settings: {default_datastore: azureml:workspaceblobstore, continue_on_step_failure: false}
jobs:
  train_job:
    type: command
    component: file:./train.yml
    inputs: {rides: "${{parent.inputs.rides}}"}
    outputs: {model_output: "${{parent.outputs.trained_model}}"}
  predict_job:
    type: command
    component: file:./predict.yml
    inputs:
      model_input: ${{parent.jobs.train_job.outputs.model_output}}
      test_data: ${{parent.jobs.train_job.outputs.test_data}}
    outputs: {predictions: "${{parent.outputs.predictions}}"}
""",
    "train.yml": """\
type: command
name: train_fares
inputs: {rides: {type: uri_folder}}
outputs: {model_output: {type: mlflow_model}, test_data: {type: uri_folder}}
code: ./train_src
environment: azureml://registries/azureml/environments/sklearn-1.5/labels/latest
command: >-
  python train.py --rides ${{inputs.rides}}
  --test_data ${{outputs.test_data}} --model_output ${{outputs.model_output}}
""",
    "predict.yml": """\
type: command
name: predict_fares
inputs: {model_input: {type: mlflow_model}, test_data: {type: uri_folder}}
outputs: {predictions: {type: uri_folder}}
code: ./predict_src
environment: azureml://registries/azureml/environments/sklearn-1.5/labels/latest
command: >-
  python predict.py --model_input ${{inputs.model_input}}
  --test_data ${{inputs.test_data}} --predictions ${{outputs.predictions}}
""",
    "train_src/train.py": """\
import argparse, os, shutil
from pathlib import Path
import mlflow, pandas
from sklearn.linear_model import LinearRegression

mlflow.sklearn.autolog()
parser = argparse.ArgumentParser()
for name in ("--rides", "--test_data", "--model_output"):
    parser.add_argument(name)
args = parser.parse_args()
rides = pandas.concat(pandas.read_csv(Path(args.rides) / name) for name in os.listdir(args.rides))
with mlflow.start_run() as run:
    LinearRegression().fit(rides[["distance", "hour"]], rides["fare"])
    mlflow.MlflowClient().download_artifacts(run.info.run_id, "model", "./")
    shutil.copytree("model", args.model_output, dirs_exist_ok=True)
rides.to_csv(Path(args.test_data) / "rides.csv")
""",
    "predict_src/predict.py": """\
import argparse
from pathlib import Path
import mlflow, pandas

parser = argparse.ArgumentParser()
for name in ("--model_input", "--test_data", "--predictions"):
    parser.add_argument(name)
args = parser.parse_args()
rides = pandas.read_csv(Path(args.test_data) / "rides.csv")
model = mlflow.sklearn.load_model(args.model_input)
rides["predicted"] = model.predict(rides[["distance", "hour"]])
rides.round(3).to_csv(Path(args.predictions) / "predictions.csv", index=False)
try:
    (Path(args.model_input) / "MLmodel").write_text("overwritten")
except OSError as error:
    print("refused:", error)
""",
    "data/rides.csv": "distance,hour,fare\n" + "".join(f"{ride},{ride % 24},{3 + 2 * ride}\n" for ride in range(1, 60)),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("jobs_are_forked")
def test_a_model_that_one_job_saves_is_loaded_by_the_next(
    trainyard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    for verb in ("lint", "plan", "graph"):
        outcome = trainyard(verb, "pipeline.yml")
        assert outcome.exit_code == 0, outcome
    ran = trainyard("run", "pipeline.yml", "--name", "fares")

    assert ran.exit_code == 0, ran.stderr
    jobs = tmp_path / ".trainyard" / "runs" / "fares" / "jobs"
    assert "flavors:" in (jobs / "train_job/outputs/model_output/MLmodel").read_text(), (
        "the next job could only change its copy"
    )
    header, first, *_ = (jobs / "predict_job/outputs/predictions/predictions.csv").read_text().splitlines()
    assert header.split(",")[-2:] == ["fare", "predicted"]
    assert [float(number) for number in first.split(",")[-2:]] == [5.0, 5.0]
