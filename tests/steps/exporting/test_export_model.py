"""A trained model is exported, loaded again by what others use, and served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_processes import clean_environment, free_port, training_arguments
from safetensors.torch import load_file, save_file

from trainyard.steps import export_model, prepare_text, train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader

TINY_CONVNEXT = ("--model-overrides", '{"hidden_sizes": [8, 16], "depths": [1, 1]}')
TINY_LLAMA = (
    "--model-type",
    "llama",
    "--model-overrides",
    '{"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}',
)


def train(data: Path, out: Path, task: str, *more: object) -> Path:
    arguments = [*training_arguments(data, out, task, "--max-steps", 3), *more]
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    return out / "model"


@pytest.fixture(scope="module")
def classifier(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(digits, tmp_path_factory.mktemp("classifier"), "image_classification", *TINY_CONVNEXT)


@pytest.fixture(scope="module")
def exported(digits: Path, classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exports of the classifier, in `mlflow` and `files`."""
    out = tmp_path_factory.mktemp("exported")
    assert export(digits, classifier, out, "--onnx", "true") == 0
    return out


def export(data: Path, model: Path, out: Path, *more: str) -> int:
    arguments = ["--data", data, "--model", model, "--mlflow-model", out / "mlflow", "--files", out / "files", *more]
    return export_model.main([str(argument) for argument in arguments])


def images(digits: Path, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = SplitReader(digits, read_manifest(digits), "test").gather(np.arange(count, dtype=np.int64))["images"]
    return np.asarray(found)


def test_the_files_are_the_model_for_transformers(exported: Path, classifier: Path) -> None:
    from transformers import AutoModelForImageClassification

    loaded = AutoModelForImageClassification.from_pretrained(exported / "files").state_dict()
    trained = load_file(classifier / "model.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in trained.items())


def test_what_the_model_takes_and_needs_is_written_down(exported: Path) -> None:
    from mlflow.models import Model

    model = Model.load(str(exported / "mlflow"))
    assert model.signature.inputs.to_dict()[0]["tensor-spec"] == {"dtype": "uint8", "shape": (-1, 1, 8, 8)}
    assert [column["name"] for column in model.signature.outputs.to_dict()] == [
        "label",
        "probability",
        "probabilities",
    ]
    requirements = (exported / "mlflow" / "requirements.txt").read_text().split()
    assert f"torch=={torch.__version__.partition('+')[0]}" in requirements
    assert {line.partition("==")[0] for line in requirements} >= {"mlflow-skinny", "pandas", "transformers"}
    example = json.loads((exported / "mlflow" / "serving_input_example.json").read_text())
    assert np.shape(example["inputs"]) == (2, 1, 8, 8)


def test_onnx_takes_any_number_of_images(digits: Path, exported: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(exported / "files" / "model.onnx")
    for count in (1, 3):
        (probabilities,) = session.run(None, {"images": images(digits, count)})
        np.testing.assert_allclose(probabilities.sum(1), np.ones(count), rtol=1e-5)


def test_a_language_model_continues_text(tmp_path: Path) -> None:
    import mlflow.pyfunc
    import pandas as pd

    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text("The quick brown fox jumps over the lazy dog. " * 8)
    flags = ["--prepared", tmp_path / "data", "--source", text, "--vocabulary-size", 300, "--sequence-length", 16]
    assert prepare_text.main([str(flag) for flag in flags]) == 0
    model = train(tmp_path / "data", tmp_path, "language_modeling", *TINY_LLAMA)
    assert export(tmp_path / "data", model, tmp_path) == 0
    served = mlflow.pyfunc.load_model(str(tmp_path / "mlflow"))
    texts = pd.DataFrame({"text": ["The quick", "A text that is longer than the model reads: " * 5]})
    short, long = served.predict(texts, params={"max_new_tokens": 3})["text"]
    assert short.startswith("The quick")
    assert long.startswith(texts["text"][1])
    assert len(short) > len("The quick")


@contextmanager
def served(model: Path, python_path: Path) -> Iterator[str]:
    """The address of `mlflow models serve`, which ends with the block."""
    port = free_port()
    mlflow = Path(sys.executable).with_name("mlflow")
    flags = ["models", "serve", "--model-uri", model, "--env-manager", "local", "--host", "127.0.0.1", "--port", port]
    environment = clean_environment({"PATH": f"{mlflow.parent}:/usr/bin:/bin", "PYTHONPATH": str(python_path)})
    process = subprocess.Popen(
        [str(word) for word in (mlflow, *flags)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"{address}/ping", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, process.stdout and process.stdout.read().decode()
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_mlflow_alone_serves_the_bits_of_the_trained_model(
    digits: Path, exported: Path, classifier: Path, tmp_path: Path
) -> None:
    """By a server that cannot import Trainyard: what the model needs travels with it."""
    from transformers import AutoModelForImageClassification

    batch = images(digits, 5)
    (tmp_path / "trainyard.py").write_text("raise ImportError('not where a model is served')\n")
    with served(exported / "mlflow", tmp_path) as address:
        body = json.dumps({"inputs": batch.tolist()}).encode()
        request = urllib.request.Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            predictions = json.load(answer)["predictions"]
    model = AutoModelForImageClassification.from_pretrained(classifier)
    torch.set_num_threads(1)
    with torch.inference_mode():
        expected = model(pixel_values=torch.from_numpy(batch).float() / 127.5 - 1).logits.softmax(1)
    assert [row["probabilities"] for row in predictions] == expected.tolist()
    assert [row["label"] for row in predictions] == [str(number) for number in expected.argmax(1).tolist()]
    assert [row["probability"] for row in predictions] == expected.max(1).values.tolist()


def test_invalid_input_is_one_line(
    digits: Path, classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = train(digits, tmp_path / "own", "tiny_task:TinyTask")
    assert export(digits, own, tmp_path) == 1
    assert "the task tiny_task:TinyTask cannot be exported" in capsys.readouterr().err

    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxscript", None)
        assert export(digits, classifier, tmp_path, "--onnx") == 2
        assert '--onnx needs the package onnxscript; pip install "trainyard-azureml[onnx]"' in capsys.readouterr().err
        without.setitem(sys.modules, "pandas", None)
        assert export(digits, classifier, tmp_path) == 2
        assert 'needs the package pandas; pip install "trainyard-azureml[train]"' in capsys.readouterr().err
    assert not (tmp_path / "mlflow").exists()


def test_an_export_that_computes_something_else_is_an_error(
    digits: Path, classifier: Path, exported: Path, tmp_path: Path
) -> None:
    from trainyard.steps.exporting.export import require_same, serving_of
    from trainyard.steps.runtime.errors import StepError
    from trainyard.steps.training.samples.batches import as_tensors
    from trainyard.steps.training.tasks.chosen import task_of_model

    shutil.copytree(exported / "mlflow", tmp_path / "mlflow")
    file = tmp_path / "mlflow" / "data" / "files" / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("bias"))
    tensors[name] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    task = task_of_model(classifier, None, {}).on(read_manifest(digits))
    batch = as_tensors({"images": images(digits, 2)}, pin=False)
    with pytest.raises(StepError, match="does not compute what the trained model computes"):
        require_same(serving_of(task, "image_classification", batch), tmp_path / "mlflow", task.load_model(classifier))
