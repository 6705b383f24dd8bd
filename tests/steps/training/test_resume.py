"""A training resumes as if nothing had happened: the same bits at the same world size, the same samples at another.

One undisturbed training of each engine with two ranks is the measure. Each case takes one of its checkpoints, and goes
on from there with the same engine or another, at the same world size or another.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from engines_to_resume import DDP, FSDP, HYBRID, ZERO_2, ZERO_3, ResumableEngine
from forked_ranks import RankServer
from rank_processes import training_arguments
from safetensors import safe_open

from trainyard.steps.training.checkpoints.checkpoint_to_resume import step_folder
from trainyard.steps.training.checkpoints.commit import Commit, read_commit

pytestmark = pytest.mark.slow

LAST_STEP = 21
CHECKPOINTS = (7, 14, 21)


ALL = (DDP, FSDP, ZERO_2, ZERO_3)


class Trainings:
    """Trains into folders of one place."""

    def __init__(self, place: Path, data: Path, server: RankServer) -> None:
        self.place, self._data, self._server = place, data, server
        self._whole: dict[tuple[str, str], Path] = {}

    def train(self, name: str, engine: ResumableEngine, world_size: int, task: str, *more: object) -> str:
        """Train to the end from whatever is there; return the output."""
        out = self.place / name
        out.mkdir(exist_ok=True)
        flags = [
            *("--micro-batch-size", 16, "--log-every-steps", 1, "--checkpoint-every-steps", 7),
            *("--keep-checkpoints", 3, "--record-samples", out / "samples"),
            *("--evaluate-every-steps", 5, "--evaluation-batches", 1, "--early-stop-patience", 9),
            *("--ema-decay", 0.9),
        ]
        arguments = training_arguments(self._data, out, f"tiny_task:{task}", *flags, *more, *engine.flags(self.place))
        log = out / f"{engine}_{world_size}.log"
        self._server.start(engine.step, arguments, world_size, log)
        exit_codes = self._server.wait()
        said = log.read_text()
        assert exit_codes == [0] * world_size, said
        return said

    def whole(self, engine: ResumableEngine, task: str) -> Path:
        """An undisturbed training with two ranks."""
        name = f"whole_{engine}_{task}"
        if not (self.place / name).is_dir():
            self.train(name, engine, 2, task)
        return self.place / name

    def cut(self, source: Path, name: str, step: int) -> Path:
        """A training that vanished after a step."""
        out = self.place / name
        shutil.copytree(source, out)
        for later in CHECKPOINTS:
            if later > step:
                shutil.rmtree(step_folder(out / "checkpoints", later))
        return out


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory, digits: Path, server: RankServer) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("trainings"), digits, server)


def commit_of(out: Path, step: int) -> Commit:
    return read_commit(step_folder(out / "checkpoints", step))


def losses(out: Path, name: str = "loss") -> dict[int, float]:
    lines = [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def samples(out: Path) -> dict[int, list[int]]:
    """The samples of each step over all ranks, in order of their number."""
    found: dict[int, list[int]] = {}
    for file in (out / "samples").iterdir():
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            found.setdefault(entry["step"], []).extend(entry["sample_ids"])
    return {step: sorted(ids) for step, ids in found.items()}


@pytest.mark.parametrize("engine", ALL, ids=str)
def test_at_the_same_world_size_every_bit_is_the_same(trainings: Trainings, engine: ResumableEngine) -> None:
    """Dropout and draws from every generator: the random state of each rank matters."""
    whole = trainings.whole(engine, "Slow")
    cut = trainings.cut(whole, f"cut_{engine}", 7)
    assert "step 7, 448 samples consumed" in trainings.train(cut.name, engine, 2, "Slow")
    # The commit has the digest of each rank's weights, optimizer state and random state.
    assert commit_of(cut, LAST_STEP) == commit_of(whole, LAST_STEP)
    of_weight = {"model/1.weight", "optimizer/1.weight/exp_avg", "optimizer/1.weight/exp_avg_sq", "average/1.weight"}
    assert of_weight | {"random/torch"} <= keys(cut)
    assert losses(cut) == losses(whole)
    assert losses(cut, "validation_loss") == losses(whole, "validation_loss")
    weights = Path("model") / "model.safetensors"
    assert (cut / weights).read_bytes() == (whole / weights).read_bytes()


@pytest.mark.parametrize(("engine", "last"), [(FSDP, 7), (ZERO_3, 7), (DDP, 14)], ids=str)
def test_nothing_stays_of_a_checkpoint_that_proves_damaged_while_it_is_restored(
    trainings: Trainings, engine: ResumableEngine, last: int
) -> None:
    """The training begins anew, or with the checkpoint before, and ends with the same bits."""
    whole = trainings.whole(engine, "Slow")
    cut = trainings.cut(whole, f"damaged_{engine}", last)
    with (step_folder(cut / "checkpoints", last) / "state-rank-00001.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        (byte,) = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))
    said = trainings.train(cut.name, engine, 2, "Slow")
    assert f"not resuming from step-{last:08d}, which is not a complete checkpoint" in said
    assert ("step 7, 448 samples consumed" in said) == (last > 7)
    assert commit_of(cut, LAST_STEP) == commit_of(whole, LAST_STEP)


@pytest.mark.parametrize("engine", [DDP, FSDP, ZERO_2], ids=str)
def test_a_model_in_evaluation_mode_is_trained_with_dropout_throughout(
    trainings: Trainings, engine: ResumableEngine
) -> None:
    """Two epochs, interrupted after the evaluation between them."""
    whole, cut = (trainings.place / f"{name}_{engine}_FromWeights" for name in ("whole", "cut"))
    trainings.train(whole.name, engine, 2, "FromWeights", "--epochs", 2)
    shutil.copytree(whole, cut)
    for later in (35, 42):
        shutil.rmtree(step_folder(cut / "checkpoints", later))
    assert "step 28, " in trainings.train(cut.name, engine, 2, "FromWeights", "--epochs", 2)
    assert commit_of(cut, 42) == commit_of(whole, 42)


def keys(out: Path) -> set[str]:
    """What the last checkpoint holds."""
    found: set[str] = set()
    for file in step_folder(out / "checkpoints", LAST_STEP).glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            found |= {name.rpartition("[")[0] for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    return found


@pytest.mark.parametrize(
    ("saved_by", "route"),
    [
        (DDP, [(DDP, 1)]),
        (DDP, [(DDP, 4)]),
        (FSDP, [(HYBRID, 4), (FSDP, 1)]),
        (ZERO_2, [(ZERO_2, 1)]),
        (ZERO_3, [(ZERO_3, 4)]),
        (DDP, [(FSDP, 2)]),
        (FSDP, [(ZERO_2, 4), (DDP, 1)]),
    ],
    ids=lambda value: "-".join(f"{engine}x{size}" for engine, size in value) if isinstance(value, list) else str(value),
)
def test_another_world_size_or_engine_takes_the_same_samples_with_the_loss_within_rounding(
    trainings: Trainings, saved_by: ResumableEngine, route: Sequence[tuple[ResumableEngine, int]]
) -> None:
    whole = trainings.whole(saved_by, "WithoutDropout")
    out, before = whole, (saved_by, 2)
    for step, (engine, world_size) in zip(CHECKPOINTS, route, strict=False):
        out = trainings.cut(out, f"{out.name}_{engine}_{world_size}", step)
        said = trainings.train(out.name, engine, world_size, "WithoutDropout")
        names = [name.step.removeprefix("train_") for name in (before[0], engine)]
        assert f"saved by engine {names[0]} at world size {before[1]}; continuing with engine {names[1]} at" in said
        before = engine, world_size
    assert samples(out) == samples(whole)
    expected, found = losses(whole), losses(out)
    assert found.keys() == expected.keys() == set(range(1, LAST_STEP + 1))
    assert max(abs(found[step] / expected[step] - 1) for step in expected) < 1e-4
    expected, found = losses(whole, "validation_loss"), losses(out, "validation_loss")
    assert found.keys() == expected.keys() == {5, 10, 15, 20, 21}
    assert max(abs(found[step] / expected[step] - 1) for step in expected) < 1e-4
    assert commit_of(out, LAST_STEP).world_size == route[-1][1]
