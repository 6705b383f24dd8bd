"""The pages for people who come from another way to train: their commands, their YAML and their task are real."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

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
