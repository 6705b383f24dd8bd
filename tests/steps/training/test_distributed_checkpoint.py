"""A training goes on from, and to, torch's distributed checkpoints, as docs/coming-from/torchtitan.md shows it."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from base_models import make_llama
from forked_ranks import forked_ranks
from rank_processes import training_arguments

from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "docs" / "coming-from" / "distributed_checkpoint.py"
BATCH, STEPS, RATE = 8, 6, 0.003
RENAMED = """
class Adapter:
    '''Other names, and rows of matrices in reverse.'''

    def from_hf(self, found):
        return {f"renamed.{name}": self._turned(value) for name, value in found.items()}

    def to_hf(self, found):
        return {name.removeprefix("renamed."): self._turned(value) for name, value in found.items()}

    def _turned(self, value):
        return value.flip(0).contiguous() if value.dim() == 2 else value


adapter = Adapter()
"""
Train = Callable[..., list[float]]


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def run(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


@pytest.fixture(scope="module")
def llama(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), text)


@pytest.fixture(scope="module")
def rows(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of each step, in the order in which a training here takes them."""
    reader = SplitReader(text, read_manifest(text), "train")
    ids = reader.order(seed=0, epoch=1).sample_ids(0, STEPS * BATCH)
    tokens = torch.from_numpy(reader.gather(ids)["tokens"].astype("int64"))
    file = tmp_path_factory.mktemp("rows") / "rows.pt"
    torch.save(tokens.view(STEPS, BATCH, -1), file)
    return file


@pytest.fixture(scope="module")
def train(text: Path, llama: Path) -> Train:
    """Trains into a folder up to a step, and returns the losses of the steps that were taken."""

    def run(out: Path, last_step: int, *more: object, world_size: int = 2) -> list[float]:
        flags = ("--base-model", llama, "--global-batch-size", BATCH, "--micro-batch-size", BATCH // 2)
        rate = ("--learning-rate", RATE, "--learning-rate-schedule", "constant", "--warmup-steps", 0)
        logged = ("--log-every-steps", 1, "--max-steps", last_step, *more)
        arguments = training_arguments(text, out, "language_modeling", *flags, *rate, *logged)
        exit_codes, outputs = forked_ranks().run("train_fsdp", arguments, world_size)
        assert exit_codes == [0] * world_size, outputs
        lines = (out / "metrics" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    return run


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """An undisturbed training, and its losses."""
    out = tmp_path_factory.mktemp("whole")
    return out, train(out, STEPS, "--checkpoint-every-steps", STEPS // 2)


@pytest.fixture(scope="module")
def first_step(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that took one step, to copy."""
    out = tmp_path_factory.mktemp("first")
    train(out, 1)
    return out


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_training_continues_from_its_exported_checkpoint_with_the_same_bits(
    tmp_path: Path,
    train: Train,
    whole: tuple[Path, list[float]],
    first_step: Path,
    run_script: Callable[..., None],
    with_adapter: bool,
) -> None:
    undisturbed, losses = whole
    again = shutil.copytree(first_step, tmp_path / "again")
    (tmp_path / "names.py").write_text(RENAMED)
    more = ("--adapter", f"{tmp_path / 'names.py'}:adapter") if with_adapter else ()
    middle = Path("checkpoints", f"step-{STEPS // 2:08d}")
    run_script("export-training", undisturbed / middle, tmp_path / "dcp", *more)
    run_script("import-training", tmp_path / "dcp", again / "checkpoints", *more)
    read = runpy.run_path(str(SCRIPT))["SavedTraining"].read
    before, after = (read(folder / middle) for folder in (undisturbed, again))
    assert before.tensors.keys() == after.tensors.keys()
    assert all(torch.equal(before.tensors[key], after.tensors[key]) for key in before.tensors)
    assert train(again, STEPS)[-STEPS // 2 :] == losses[STEPS // 2 :]


def run_plain(rows: Path, llama: Path, out: Path, **options: object) -> list[float]:
    given = json.dumps({"first_step": 1, "last_step": STEPS, "lr": RATE, "flat": False} | options)
    exit_codes, outputs = forked_ranks().run("plain_fsdp", [rows, llama, out, given], 2)
    assert exit_codes == [0, 0], outputs
    losses: list[float] = json.loads((out / "losses.json").read_text())
    return losses


@pytest.fixture(scope="module")
def by_plain_torch(rows: Path, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of an undisturbed training."""
    return run_plain(rows, llama, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("flat", [False, True])
def test_plain_torch_and_a_training_here_continue_each_others_training(
    tmp_path: Path,
    train: Train,
    first_step: Path,
    by_plain_torch: list[float],
    run_script: Callable[..., None],
    rows: Path,
    llama: Path,
    flat: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("begun", "continued"):
        (tmp_path / name).mkdir()
    run_plain(rows, llama, tmp_path / "begun", last_step=STEPS // 2, flat=flat)
    shutil.copytree(first_step, tmp_path / "here")
    run_script("import-training", tmp_path / "begun" / "dcp", tmp_path / "here" / "checkpoints")
    assert "warning" not in capsys.readouterr().out
    found = train(tmp_path / "here", STEPS, world_size=1 if flat else 2)
    assert found[-STEPS // 2 :] == pytest.approx(by_plain_torch[STEPS // 2 :], rel=1e-6)

    first = tmp_path / "here" / "checkpoints" / f"step-{STEPS // 2:08d}"
    run_script("export-training", first, tmp_path / "continued" / "from")
    continued = run_plain(rows, llama, tmp_path / "continued", first_step=STEPS // 2 + 1, flat=flat)
    assert continued == pytest.approx(by_plain_torch[STEPS // 2 :], rel=1e-6)


def test_what_cannot_be_imported_is_refused(
    tmp_path: Path, train: Train, run_script: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "here", 2, "--checkpoint-every-steps", 1, world_size=1)
    folder = tmp_path / "here" / "checkpoints"
    run_script("export-training", folder / "step-00000002", tmp_path / "dcp")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="start the training that is to continue with --max-steps 1"):
        run_script("import-training", tmp_path / "dcp", tmp_path / "empty")
    with pytest.raises(SystemExit, match="a training continues from the last"):
        run_script("import-training", tmp_path / "dcp", folder)
    shutil.rmtree(folder / "step-00000002")
    train(tmp_path / "other", 1, "--weight-decay", 0.1, world_size=1)
    run_script("import-training", tmp_path / "dcp", tmp_path / "other" / "checkpoints")
    assert "'weight_decay': 0.3}; the training here continues with" in capsys.readouterr().out
    damaged = folder / "step-00000001" / "state-rank-00000.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + bytes([damaged.read_bytes()[-1] ^ 1]))
    with pytest.raises(SystemExit, match="its SHA-256 differs"):
        run_script("export-training", folder / "step-00000001", tmp_path / "damaged")
