"""The pages for people who come from another way to train: their commands, their YAML and their task are real."""

from __future__ import annotations

import pickle
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml
from safetensors.torch import load_file, save_file

from trainyard.settings.steps import STEP_CONFIGS
from trainyard.steps import prepare_images, train_ddp
from trainyard.steps.runtime.flags import parse_task_flags

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
STEP_COMMAND = re.compile(r"^python -m trainyard\.steps\.(\w+) (.+)$", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(autouse=True)
def _task_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def test_every_page_is_listed() -> None:
    contents = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} == set(re.findall(r"\]\((\w+\.md)\)", contents))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_have_flags_that_their_steps_take(page: Path) -> None:
    commands = [found for block in blocks(page, "console") for found in STEP_COMMAND.findall(block)]
    assert commands or blocks(page, "yaml")
    for step, flags in commands:
        parse_task_flags(STEP_CONFIGS[step], f"trainyard.steps.{step}", shlex.split(flags))


def test_the_task_of_the_pages_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare_images.main(["--prepared", str(tmp_path / "digits")]) == 0
    ((_, flags),) = STEP_COMMAND.findall(blocks(FOLDER / "data_parallel.md", "console")[0])
    arguments = shlex.split(flags.replace("data/digits", str(tmp_path / "digits")).replace("out/", f"{tmp_path}/out/"))
    assert train_ddp.main([*arguments, "--epochs", "3"]) == 0
    assert "validation accuracy" in capsys.readouterr().out
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


def test_the_distribution_of_horovod_is_that_of_the_job() -> None:
    (text,) = blocks(FOLDER / "sdk_v1.md", "yaml")
    (distribution,) = blocks(FOLDER / "horovod.md", "yaml")
    assert yaml.safe_load(distribution).items() <= yaml.safe_load(text).items()


@pytest.mark.parametrize("page", ["sdk_v1", "own_script", "deepspeed", "tensorflow"])
def test_the_job_of_a_page_passes_lint(
    trainyard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    (text,) = blocks(FOLDER / f"{page}.md", "yaml")
    (tmp_path / "src").mkdir()
    program = "import argparse\np = argparse.ArgumentParser()\n"
    program += "".join(f"p.add_argument('--{name}')\n" for name in ("data", "epochs", "deepspeed_config"))
    program += "p.add_argument('--deepspeed', action='store_true')\np.parse_args()\n"
    (tmp_path / "src" / "train.py").write_text(program)
    (tmp_path / "src" / "ds_config.json").write_text("{}")
    (tmp_path / "job.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    outcome = trainyard("lint", "job.yaml")
    assert outcome.exit_code == 0, outcome.stderr
    assert "no findings" in outcome.stdout + outcome.stderr


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """docs/coming-from/distributed_checkpoint.py with some arguments, in this process; SystemExit with its message."""
    script = str(FOLDER / "distributed_checkpoint.py")

    def run(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(script, run_name="__main__")

    return run


def test_weights_come_back_from_a_distributed_checkpoint_as_they_went(
    tmp_path: Path, run_script: Callable[..., None]
) -> None:
    torch.manual_seed(0)
    tensors = {"a.weight": torch.randn(30, 7).bfloat16(), "a.bias": torch.randn(30), "steps": torch.tensor(3)}
    (tmp_path / "model").mkdir()
    save_file({"a.weight": tensors["a.weight"]}, tmp_path / "model" / "model-00001-of-00002.safetensors")
    save_file(
        {name: tensors[name] for name in ("a.bias", "steps")}, tmp_path / "model" / "model-00002-of-00002.safetensors"
    )
    run_script("export", tmp_path / "model", tmp_path / "dcp")
    read = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    dcp.load(dict(read), checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert all(torch.equal(read[name], tensors[name]) for name in tensors), "torch reads the same"
    dcp.save({"model": tensors, "lr": 0.1}, checkpoint_id=tmp_path / "of_a_loop", no_dist=True)
    for checkpoint, prefix in (("dcp", ()), ("of_a_loop", ("model.",))):
        run_script("import", tmp_path / checkpoint, tmp_path / f"from_{checkpoint}", *prefix)
        found = load_file(tmp_path / f"from_{checkpoint}" / "model.safetensors")
        assert found.keys() == tensors.keys()
        assert all(
            torch.equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype for name in tensors
        )


class Runs:
    """A pickle that makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_a_distributed_checkpoint_runs_no_code_and_reads_no_other_folder(
    tmp_path: Path, run_script: Callable[..., None]
) -> None:
    dcp.save({"x": torch.ones(3)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    metadata = tmp_path / "dcp" / ".metadata"
    outside = metadata.read_bytes().replace(b"__0_0.distcp", b"../../secret")
    for content, said in ((pickle.dumps(Runs(tmp_path / "made")), "is not a part of"), (outside, "../../secret")):
        metadata.write_bytes(content)
        with pytest.raises(SystemExit, match=re.escape(said)):
            run_script("import", tmp_path / "dcp", tmp_path / "model")
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "model").exists()
