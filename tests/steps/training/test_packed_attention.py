"""Attention within documents by a kernel that is told where they begin: the same numbers as by masks.

Torch's kernel runs on GPUs only. Here one of the same interface computes document by document what it is told to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from base_models import make_llama
from rank_processes import training_arguments
from torch.nn import functional

from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.settings.steps.training import TrainDDP
from trainyard.steps import prepare_chat, train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.engines.blocks import prepare_blocks
from trainyard.steps.training.tasks import packed_attention
from trainyard.steps.training.tasks.language_modeling import LanguageModeling
from trainyard.steps.training.tasks.packed_attention import (
    PLAIN_MODEL_TYPES,
    PackedAttention,
    attention_within,
    document_starts,
)
from trainyard.steps.training.tasks.token_rows import DOCUMENT_STARTS, TokenRows

CPU = torch.device("cpu")
LENGTH, VOCABULARY = 24, 40
DOCUMENTS = torch.tensor([[1] * 7 + [2] * 16 + [0], [1] * 11 + [2] + [3] * 12])
BEGINNINGS = [0, 7, 23, 24, 35, 36, 48]
SIZES: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": LENGTH,
    "sliding_window": None,
    "pad_token_id": None,
    **dict.fromkeys(("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
}


class DocumentByDocument:
    """A kernel with the interface of torch's."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        starts: torch.Tensor,
        key_starts: torch.Tensor,
        longest: int,
        longest_key: int,
        *,
        scale: float | None,
        window_size: tuple[int, int],
        enable_gqa: bool,
    ) -> torch.Tensor:
        assert starts.dtype == torch.int32
        assert starts is key_starts
        assert longest == longest_key
        assert window_size == (-1, 0)
        assert enable_gqa == (query.shape[1] != key.shape[1])
        self.calls += 1
        attended = []
        for start, stop in pairwise(starts.tolist()):
            assert stop - start <= longest
            if start < stop:
                of_document = (tensor[start:stop].transpose(0, 1)[None] for tensor in (query, key, value))
                output = functional.scaled_dot_product_attention(
                    *of_document, is_causal=True, scale=scale, enable_gqa=enable_gqa
                )
                attended.append(output[0].transpose(0, 1))
        return torch.cat(attended)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[DocumentByDocument]:
    computed = DocumentByDocument()
    monkeypatch.setattr(packed_attention, "kernel_on", lambda device, dtype: computed)
    packed_attention._problem_of_kernel.cache_clear()
    yield computed
    packed_attention._problem_of_kernel.cache_clear()


def new_model(model_type: str, **settings: object) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    known = AutoConfig.for_model(model_type)
    sizes = {name: value for name, value in {**SIZES, **settings}.items() if hasattr(known, name)}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes))


def packed_rows(starts: torch.Tensor | None = None) -> TokenRows:
    tokens = torch.randint(VOCABULARY, DOCUMENTS.shape, generator=torch.Generator().manual_seed(1))
    within = [list(range(stop - start)) for start, stop in pairwise(BEGINNINGS)]
    positions = torch.tensor([position for document in within for position in document]).view_as(DOCUMENTS)
    return TokenRows(tokens, tokens, positions, DOCUMENTS, starts)


def logits_and_gradients(model: Any, rows: TokenRows) -> list[torch.Tensor]:
    model.zero_grad()
    with attention_within(rows):
        logits = model(input_ids=rows.inputs, position_ids=rows.positions, use_cache=False).logits
    logits.square().mean().backward()
    return [logits.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def test_starts_of_documents_are_those_of_rows_laid_end_to_end() -> None:
    starts = document_starts(DOCUMENTS)
    assert starts.dtype == torch.int32
    assert starts.tolist() == [BEGINNINGS + [48] * (64 - len(BEGINNINGS))] * 4, "the longest has 16 tokens"
    # One document a token: as many as there can be, and still an end.
    assert document_starts(torch.arange(64)[None]).tolist() == [[*range(64), *[64] * 32]]


def test_thousands_of_documents_have_few_sizes_and_at_most_a_third_is_empty() -> None:
    counts = range(64, 5_000, 13)
    sizes = [document_starts(torch.arange(2 * count).div(2, rounding_mode="floor")[None]).shape for count in counts]
    assert all(count < size <= 1 + count * 3 / 2 for count, (_, size) in zip(counts, sizes, strict=True))
    assert len(set(sizes)) <= 14


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("model_type", sorted(PLAIN_MODEL_TYPES))
def test_models_compute_by_the_kernel_what_they_compute_by_masks(
    model_type: str, recomputed: bool, kernel: DocumentByDocument
) -> None:
    model = new_model(model_type)
    by_masks = logits_and_gradients(model, packed_rows())
    assert kernel.calls == 0
    attention = PackedAttention(model, LENGTH)
    assert attention.description(CPU, torch.float32).endswith("by flash attention of variable length")
    folder = Path()
    settings = TrainDDP(
        data=folder, model=folder, checkpoints=folder, metrics=folder, activation_checkpointing=recomputed
    )
    prepare_blocks(model, settings)
    kernel.calls = 0
    by_kernel = logits_and_gradients(model, packed_rows(document_starts(DOCUMENTS)))
    assert kernel.calls == (4 if recomputed else 2)
    for found, expected in zip(by_kernel, by_masks, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    # Without documents, as when a sample of text is drawn, attention is the usual one, bit by bit.
    rows = packed_rows()
    with torch.no_grad():
        usual = new_model(model_type)(input_ids=rows.inputs, use_cache=False).logits
        assert torch.equal(model(input_ids=rows.inputs, use_cache=False).logits, usual)


def test_a_kernel_that_computes_something_else_is_found_out(
    kernel: DocumentByDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    def across_documents(*arguments: Any, **options: Any) -> torch.Tensor:
        query, key, value, starts = arguments[:4]
        from_end_to_end = torch.tensor([0, len(query)], dtype=starts.dtype)
        return kernel(query, key, value, from_end_to_end, from_end_to_end, len(query), len(query), **options)

    model = new_model("llama")
    expected = logits_and_gradients(model, packed_rows())
    monkeypatch.setattr(packed_attention, "kernel_on", lambda device, dtype: across_documents)
    attention = PackedAttention(model, LENGTH)
    assert "by masks: flash attention of variable length differs from masks by " in attention.description(
        CPU, torch.float32
    )
    for found, wanted in zip(logits_and_gradients(model, packed_rows()), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("model_type", "settings", "why"),
    [
        ("opt", {}, "was not compared for models of type opt"),
        ("mistral", {"sliding_window": 8}, "the model's layers see 8 tokens back, less than a row"),
        ("llama", {"attention_dropout": 0.1}, "has no dropout"),
        ("gpt2", {"attn_pdrop": 0.1}, "has no dropout"),
    ],
)
def test_other_models_keep_masks(model_type: str, settings: dict[str, Any], why: str) -> None:
    model = new_model(model_type, **settings)
    attention = PackedAttention(model, LENGTH)
    assert why in attention.description(CPU, torch.bfloat16)
    assert model.config._attn_implementation == "sdpa"


@pytest.fixture(scope="module")
def chats(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Conversations in rows of 64, and the model whose tokens they have."""
    folder = tmp_path_factory.mktemp("chats")
    base = make_llama(folder / "base", text)
    return packed_in_rows_of(64, folder, base), base


@pytest.fixture(scope="module")
def long_rows(chats: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same conversations in rows that hold several, and padding."""
    return packed_in_rows_of(256, tmp_path_factory.mktemp("long"), chats[1])


def packed_in_rows_of(length: int, folder: Path, base: Path) -> Path:
    flags = ("--base-model", base, "--prepared", folder / "packed", "--sequence-length", length)
    assert prepare_chat.main([str(flag) for flag in flags]) == 0
    return folder / "packed"


def test_a_task_prepares_where_documents_begin_and_has_the_same_loss(
    chats: tuple[Path, Path], kernel: DocumentByDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, base = chats
    manifest = read_manifest(packed)
    arrays = SplitReader(packed, manifest, "train").gather(torch.arange(4).numpy())
    batch = {name: torch.from_numpy(values) for name, values in arrays.items()}
    task = LanguageModeling(manifest, LanguageModelingSettings(model_type=str(base)))
    model = task.new_model()
    assert task.note(CPU, torch.float32) is not None
    ready = task.prepare(batch)
    assert ready[DOCUMENT_STARTS][0, -1] == 4 * 64
    kernel.calls = 0
    by_kernel = task.loss(model, {**batch, **ready}).item()
    assert kernel.calls == model.config.num_hidden_layers
    assert task.loss(model, batch).item() == by_kernel
    with pytest.raises(StepError, match="--data-parallel"):
        task.loss(torch.nn.DataParallel(model), batch)
    monkeypatch.undo()
    packed_attention._problem_of_kernel.cache_clear()
    assert by_kernel == pytest.approx(task.loss(model, batch).item(), rel=1e-6)


def training_arrays(dataset: Path) -> dict[str, Any]:
    manifest = read_manifest(dataset)
    samples = torch.arange(manifest.splits["train"].samples).numpy()
    return dict(SplitReader(dataset, manifest, "train").gather(samples))


def test_padding_is_no_token_and_documents_do_not_see_each_other(long_rows: Path) -> None:
    arrays = training_arrays(long_rows)
    rows = arrays["documents"]
    lengths = [(row == number).sum() for row in rows for number in range(1, row.max() + 1)]

    counts = LanguageModeling(read_manifest(long_rows), LanguageModelingSettings()).token_counts(
        {name: torch.from_numpy(values) for name, values in arrays.items()}
    )

    assert len(lengths) > len(rows)
    assert counts.tokens == sum(lengths) < rows.size
    assert counts.attended == sum(length**2 for length in lengths)
    assert counts.predicted == arrays["answers"][:, 1:].sum()


def test_measures_of_a_training_count_no_padding(long_rows: Path, tmp_path: Path) -> None:
    sizes = '{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}'
    small = ("--model-type", "llama", "--model-overrides", sizes)
    flags = ("--epochs", 1, "--global-batch-size", 4, "--micro-batch-size", 2, "--log-every-steps", 10**6)
    arguments = training_arguments(long_rows, tmp_path, "language_modeling", *small, *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    (*_, line) = map(json.loads, (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines())
    arrays = training_arrays(long_rows)
    assert line["padding_share"] == pytest.approx((arrays["documents"] == 0).mean())
    answers = arrays["answers"][:, 1:].sum() / (arrays["documents"] > 0).sum()
    assert line["supervised_tokens_per_second"] == pytest.approx(answers * line["tokens_per_second"])


def test_a_training_says_how_conversations_are_kept_apart_and_saves_an_ordinary_model(
    chats: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, base = chats
    flags = ("--base-model", base, "--max-steps", 1, "--global-batch-size", 2, "--micro-batch-size", 1)
    arguments = training_arguments(packed, tmp_path, "language_modeling", *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    assert "conversations in a row are kept apart by masks: flash attention needs a GPU" in capsys.readouterr().out
    assert "within_documents" not in (tmp_path / "model" / "config.json").read_text()
