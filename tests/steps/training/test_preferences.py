"""Preference tuning (DPO): the numbers of the published formula and of trl, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from base_models import make_llama, write_pairs
from forked_ranks import forked_ranks
from rank_processes import training_arguments

from trainyard.settings.steps.tasks import PreferencesSettings
from trainyard.steps import compute_reference, evaluate, prepare_chat, train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.training.tasks.preferences import Preferences

PAIRS = 24
BETA = 0.5


@pytest.fixture(scope="module")
def base(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("base"), text)


@pytest.fixture(scope="module")
def pairs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of answers, several in a row, without a reference model's numbers."""
    folder = tmp_path_factory.mktemp("pairs")
    assert prepare(base, write_pairs(folder / "source", PAIRS), folder / "prepared") == 0
    return folder / "prepared"


@pytest.fixture(scope="module")
def data(base: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    assert refer(pairs, base, folder) == 0
    return folder


def prepare(base: Path, source: Path, out: Path, *more: object) -> int:
    flags = ("--base-model", base, "--source", source, "--prepared", out, "--preferences", "true", *more)
    fractions = ("--validation-fraction", 0, "--test-fraction", 0)
    return prepare_chat.main([str(flag) for flag in (*fractions, "--sequence-length", 64, *flags)])


def refer(data: Path, base: Path, out: Path) -> int:
    flags = ("--data", data, "--base-model", base, "--prepared", out, "--micro-batch-size", 3)
    return compute_reference.main([str(flag) for flag in flags])


def arguments(data: Path, base: Path, out: Path, *more: object) -> list[str]:
    flags = (
        *("--base-model", base, "--beta", BETA, "--global-batch-size", 4, "--micro-batch-size", 2),
        *("--learning-rate", 0.01, "--learning-rate-schedule", "constant", "--warmup-fraction", 0),
        *("--weight-decay", 0.0, "--log-every-steps", 1, "--max-steps", 6, *more),
    )
    return [str(flag) for flag in training_arguments(data, out, "preferences", *flags)]


def losses_of(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]


def batch_of(data: Path) -> dict[str, torch.Tensor]:
    """All rows of the training split."""
    manifest = read_manifest(data)
    rows = SplitReader(data, manifest, "train").gather(np.arange(manifest.splits["train"].samples))
    return {name: torch.from_numpy(values) for name, values in rows.items()}


def read_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def moved(model: Any) -> Any:
    """The model a little away from where it began, so that every pair has a margin."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def documents_of(batch: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each document alone, with which of its tokens are answers: chosen, rejected, chosen, and so on."""
    found = []
    for row in range(len(batch["tokens"])):
        for number in range(1, int(batch["documents"][row].long().max()) + 1):
            here = batch["documents"][row].long() == number
            found.append((batch["tokens"][row, here].long(), batch["answers"][row, here]))
    return found


def answer_log_probabilities(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """log p(answer), each document alone; [pairs, 2]."""
    sums = []
    for tokens, is_answer in documents_of(batch):
        log_probabilities = torch.log_softmax(model(input_ids=tokens[None]).logits[0, :-1], dim=-1)
        sums.append(log_probabilities.gather(1, tokens[1:, None])[:, 0][is_answer[1:]].sum())
    return torch.stack(sums).view(-1, 2)


def test_a_reference_is_computed_as_exactly_as_an_evaluation(
    pairs: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default
    torch.set_float32_matmul_precision("high")
    try:
        assert refer(pairs, base, tmp_path) == 0
        assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("loss_chunk_tokens", [0, 50])
def test_losses_and_figures_are_those_of_the_published_formula(
    base: Path, data: Path, label_smoothing: float, loss_chunk_tokens: int
) -> None:
    settings = PreferencesSettings(
        model_type=str(base), beta=BETA, label_smoothing=label_smoothing, loss_chunk_tokens=loss_chunk_tokens
    )
    batch, task = batch_of(data), Preferences(read_manifest(data), settings)
    assert len(batch["tokens"]) < PAIRS  # several pairs share a row
    with torch.no_grad():
        model = moved(task.new_model().eval())
        loss, sums = float(task.loss(model, batch)), task.measure(model, batch)
        # In fp64, since the published formula subtracts sums of hundreds of nats: in fp32 it is 1e-6 to 2e-5 off.
        by_model, by_reference = (answer_log_probabilities(each.double(), batch) for each in (model, read_model(base)))
    rewards = BETA * (by_model - by_reference)
    margins = rewards[:, 0] - rewards[:, 1]
    # Rafailov et al., 2305.18290, equation 7; with label smoothing Mitchell, "A note on DPO with noisy preferences".
    expected = -(1 - label_smoothing) * torch.sigmoid(margins).log() - label_smoothing * torch.sigmoid(-margins).log()
    assert task.loss_terms(batch) == PAIRS == len(margins)
    assert margins.abs().min() > 1e-3
    assert loss / PAIRS == pytest.approx(float(expected.mean()), abs=1e-6)
    preferred = float((by_reference[:, 0] > by_reference[:, 1]).float().mean())
    assert task.untrained_figures(sums) == pytest.approx(
        {"loss": math.log(2), "reward_accuracy": 0.5, "preference_accuracy": preferred}
    )
    assert task.summarise(sums) == pytest.approx(
        {
            "loss": float(expected.mean()),
            "reward_accuracy": float((margins > 0).float().mean()),
            "preference_accuracy": float((by_model[:, 0] > by_model[:, 1]).float().mean()),
            "reward_margin": float(margins.mean()),
            "chosen_reward": float(rewards[:, 0].mean()),
            "rejected_reward": float(rewards[:, 1].mean()),
        },
        abs=1e-6,
    )


def test_the_loss_is_that_of_trl(base: Path, data: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install -c constraints.txt -e .[trl]")
    from datasets import Dataset
    from transformers import AutoTokenizer

    batch, task = batch_of(data), Preferences(read_manifest(data), PreferencesSettings(model_type=str(base), beta=BETA))
    model = moved(task.new_model().eval())
    ours = task.loss(model, batch)
    ours.backward()

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.eos_token
    settings = trl.DPOConfig(
        output_dir=str(tmp_path), beta=BETA, report_to="none", use_cpu=True, bf16=False, disable_dropout=False
    )
    unused = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    theirs = moved(read_model(base))
    trainer = trl.DPOTrainer(
        theirs, ref_model=read_model(base), args=settings, train_dataset=unused, processing_class=tokenizer
    )
    documents = documents_of(batch)
    in_order = [*documents[::2], *documents[1::2]]  # all chosen answers, then all rejected ones
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = {
        "input_ids": pad([tokens for tokens, _ in in_order], batch_first=True, padding_value=0),
        "attention_mask": pad([torch.ones_like(tokens) for tokens, _ in in_order], batch_first=True),
        "completion_mask": pad([is_answer.long() for _, is_answer in in_order], batch_first=True),
    }
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    assert float(ours.detach()) / PAIRS == pytest.approx(float(loss.detach()), abs=1e-5)
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad / PAIRS, other.grad, rtol=1e-4, atol=1e-5)


def test_training_prefers_the_chosen_answers_and_evaluation_says_so(base: Path, data: Path, tmp_path: Path) -> None:
    lora = ("--tuning", "lora", "--lora-rank", 4, "--max-steps", 20, "--epochs", 10)
    assert train_ddp.main(arguments(data, base, tmp_path, *lora)) == 0
    # The first loss is that of the reference model itself: log 2, whatever the pairs.
    assert losses_of(tmp_path)[0] == pytest.approx(np.log(2), abs=1e-6)
    flags = ("--data", data, "--model", tmp_path / "model", "--evaluation", tmp_path / "evaluation", "--split", "train")
    assert evaluate.main([str(flag) for flag in (*flags, "--base-model", base)]) == 0
    evaluation = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert evaluation["pairs"] == PAIRS
    assert evaluation["reward_accuracy"] > 0.9
    assert evaluation["reward_margin"] == pytest.approx(evaluation["chosen_reward"] - evaluation["rejected_reward"])
    assert evaluation["reward_margin"] > 0.5


@pytest.mark.slow
def test_ranks_compute_the_reference_and_learn_what_one_process_does(
    base: Path, pairs: Path, data: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    # With a model that ranks share, the one with a row less makes as many forward passes as the others.
    ways = {shared: (2, "--micro-batch-size", 3), tmp_path / "of shards": (3, "--shard-model", "true")}
    for folder, (ranks, *more) in ways.items():
        flags = ("--data", pairs, "--base-model", base, "--prepared", folder, "--micro-batch-size", 1, *more)
        assert forked_ranks().run("compute_reference", flags, ranks)[0] == [0] * ranks
        found, expected = batch_of(folder), batch_of(data)
        assert found.keys() == expected.keys()
        assert len(found["tokens"]) % 3 > 0
        torch.testing.assert_close(found.pop("reference"), expected.pop("reference"), rtol=1e-6, atol=1e-6)
        assert all(torch.equal(found[name], expected[name]) for name in found)

    assert train_ddp.main(arguments(shared, base, tmp_path / "alone")) == 0
    assert forked_ranks().run("train_fsdp", arguments(shared, base, tmp_path / "sharded"), 2)[0] == [0, 0]
    assert losses_of(tmp_path / "sharded") == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)


def test_other_data_and_another_base_model_are_refused(
    text: Path, base: Path, pairs: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_llama(tmp_path / "other", text)
    moved(read_model(other)).save_pretrained(other)
    wrong = [
        (arguments(pairs, base, tmp_path), "has no log-probabilities of a reference model; run compute_reference"),
        (arguments(data, other, tmp_path), "are not those of the model that training starts from"),
        (arguments(text, base, tmp_path), "the task preferences needs pairs of answers; this dataset holds tokens"),
        (
            [str(flag) for flag in training_arguments(data, tmp_path, "language_modeling", "--base-model", base)],
            "this dataset holds preferences; its task is preferences",
        ),
    ]
    for flags, message in wrong:
        assert train_ddp.main(flags) == 1
        assert message in capsys.readouterr().err


def test_a_reference_that_is_another_model_is_noticed_at_the_first_step(
    base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same weights, which the training computes with in another way."""
    other = ("--model-overrides", json.dumps({"rms_norm_eps": 1.0}))
    assert train_ddp.main(arguments(data, base, tmp_path, *other)) == 1
    assert "it is 0.6931 (log 2) where training starts from the reference model" in capsys.readouterr().err
    # With dropout the first loss is another one, and says nothing.
    dropout = ("--model-overrides", json.dumps({"attention_dropout": 0.5}), "--label-smoothing", 0.2)
    assert train_ddp.main(arguments(data, base, tmp_path / "dropout", *dropout)) == 0
    assert abs(losses_of(tmp_path / "dropout")[0] - np.log(2)) > 1e-3


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in zip(("user", "assistant"), contents, strict=True)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"prompt": "Why?", "completion": "So"}], "expected prompt, chosen and rejected, all texts or all lists of"),
        (
            [{"prompt": "Why?", "chosen": chat("Why?", "So"), "rejected": "No"}],
            "pairs.jsonl:1: expected prompt, chosen",
        ),
        ([{"prompt": "Why?", "chosen": "So", "rejected": "So"}], "no pair for training has two different answers"),
    ],
)
def test_lines_that_are_not_pairs_are_refused(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: Sequence[object], message: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert prepare(base, source, tmp_path / "out") == 1
    assert message in capsys.readouterr().err


def test_a_prompt_of_messages_may_be_in_both_answers_and_long_ones_are_cut(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_template = tmp_path / "base"
    with_template.mkdir()
    for file in base.iterdir():
        (with_template / file.name).symlink_to(file)
    template = "{% for message in messages %}{{ message.content }}<|endoftext|>{% endfor %}"
    (with_template / "chat_template.jinja").write_text(template)
    question = {"role": "user", "content": "Two?"}
    answers = [{"role": "assistant", "content": content} for content in ("Four", "Five" * 40)]
    shared = {"prompt": [question], "chosen": answers[:1], "rejected": answers[1:]}
    whole = {"chosen": [question, answers[0]], "rejected": [question, answers[1]]}
    written = []
    for number, line in enumerate((shared, whole)):
        source = tmp_path / f"source-{number}"
        source.mkdir()
        (source / "pairs.jsonl").write_text(json.dumps(line))
        assert prepare(with_template, source, tmp_path / f"out-{number}") == 0
        written.append(batch_of(tmp_path / f"out-{number}"))
        said = capsys.readouterr().out
        assert "train: 1 pairs with" in said
        assert "1 of 2 answers with their prompts are longer than 32 tokens and were cut" in said
    assert all(torch.equal(written[0][name], written[1][name]) for name in written[0])
    chosen, rejected = documents_of(written[0])
    assert len(rejected[0]) == 32
    assert chosen[1].sum() < rejected[1].sum()
