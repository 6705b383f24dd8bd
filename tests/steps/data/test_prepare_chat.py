"""Conversations as rows: what is an answer, what is packed, what is cut; and the losses that they have alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from base_models import make_gpt2, make_llama
from torch.nn import functional

from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.steps import prepare_chat, train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.tokenizing.vocabulary import read_tokenizer
from trainyard.steps.training.tasks.language_modeling import LanguageModeling

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
MARKED = (
    "{% for message in messages %}[{{ message.role }}] {% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|endoftext|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|endoftext|>{% endif %}{% endfor %}"
)
FORGETFUL = "{{ messages[-1].content }}"
CHAT = [
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "Four"},
]
SHAREGPT = {"conversations": [{"from": "human", "value": "Hello there"}, {"from": "gpt", "value": "Hi"}]}
ALPACA = {"instruction": "Add these", "input": "Two and four", "output": "Six"}
COMPLETION = {"prompt": "Two and three?", "completion": " Five"}


@pytest.fixture(scope="module")
def base(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_llama(tmp_path_factory.mktemp("base"), text)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def write_lines(folder: Path, lines: Sequence[object]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def prepare(base: Path, lines: Sequence[object], out: Path, *more: object) -> int:
    source = write_lines(out.parent / f"{out.name}-source", lines)
    flags = ("--base-model", base, "--source", source, "--prepared", out, "--test-fraction", 0, *more)
    return prepare_chat.main([str(flag) for flag in ("--validation-fraction", 0, "--sequence-length", 64, *flags)])


def rows_in(folder: Path, split: str = "train") -> dict[str, Any]:
    manifest = read_manifest(folder)
    return SplitReader(folder, manifest, split).gather(np.arange(manifest.splits[split].samples))


def answers_in(folder: Path) -> list[str]:
    """The answers of the first row, as text."""
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    rows = rows_in(folder)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], rows["answers"][0], [False]])))
    return [
        tokenizer.decode(rows["tokens"][0, start:stop].tolist(), skip_special_tokens=False)
        for start, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


@pytest.mark.parametrize("template", [TEMPLATE, MARKED])
@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ({"messages": CHAT}, ["Hi<|endoftext|>", "Four<|endoftext|>"]),
        ({"prompt": CHAT[:1], "completion": CHAT[1:2]}, ["Hi<|endoftext|>"]),
        (COMPLETION, [" Five<|endoftext|>"]),
        (SHAREGPT, ["Hi<|endoftext|>"]),
        (ALPACA, ["Six<|endoftext|>"]),
    ],
)
def test_answers_are_what_the_assistant_says_and_how_it_ends(
    base: Path, tmp_path: Path, template: str, line: object, answers: list[str]
) -> None:
    (base / "chat_template.jinja").write_text(template)
    try:
        assert prepare(base, [line], tmp_path / "out") == 0
    finally:
        (base / "chat_template.jinja").write_text(TEMPLATE)
    assert answers_in(tmp_path / "out") == answers
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template


def test_instructions_need_no_chat_template(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "base", ignore=shutil.ignore_patterns("chat_template.jinja"))
    assert prepare(tmp_path / "base", [ALPACA], tmp_path / "out") == 0
    assert answers_in(tmp_path / "out") == ["Six<|endoftext|>"]
    row = rows_in(tmp_path / "out")["tokens"][0].tolist()
    assert "Add these\n\nTwo and four\n\nSix" in read_tokenizer(tmp_path / "out" / "tokenizer.json").decode(row)


@pytest.mark.parametrize(
    "header", ["<|endoftext|>Be brief. ", "{% if messages[0].role != 'system' %}<|endoftext|>Be brief. {% endif %}"]
)
def test_an_assistant_that_begins_does_not_learn_the_header(base: Path, tmp_path: Path, header: str) -> None:
    """Of a template that writes a header whatever comes, and of one that needs a first message to look at."""
    (base / "chat_template.jinja").write_text(header + TEMPLATE)
    try:
        assert prepare(base, [{"messages": [CHAT[1], *CHAT[2:]]}], tmp_path / "out") == 0
    finally:
        (base / "chat_template.jinja").write_text(TEMPLATE)
    assert answers_in(tmp_path / "out") == ["Hi<|endoftext|>", "Four<|endoftext|>"]


@pytest.mark.parametrize(
    ("lines", "template", "message"),
    [
        (
            [{"question": "?"}],
            TEMPLATE,
            "chats.jsonl:1: expected messages, prompt and completion, conversations (ShareGPT)",
        ),
        ([COMPLETION, {"messages": ["Hi"]}], TEMPLATE, "chats.jsonl:2: message 1 is not an object with role and"),
        ([{"messages": CHAT}], FORGETFUL, "chats.jsonl:1: the chat template in"),
        ([{"messages": CHAT}], None, "has no chat template, which conversations need"),
        (
            [{"messages": [CHAT[0], {"role": "bot", "content": "Hi"}]}],
            TEMPLATE,
            "chats.jsonl:1: no message has the role 'assistant', whose answers are learned; found 'bot'",
        ),
        (
            [{"conversations": [{"from": "human", "value": "?"}, {"from": "model", "value": "!"}]}],
            TEMPLATE,
            "chats.jsonl:1: turn 2 is from 'model'; expected one of system, human",
        ),
        ([{"conversations": ["Hi"]}], TEMPLATE, "chats.jsonl:1: turn 1 is not an object with from and value"),
        ([{"messages": CHAT[:1]}], TEMPLATE, "no conversation for training has an answer within --sequence-length 64"),
    ],
)
def test_conversations_that_cannot_be_learned_are_refused_with_their_line(
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[object],
    template: str | None,
    message: str,
) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    for file in base.iterdir():
        if file.name != "chat_template.jinja":
            (folder / file.name).symlink_to(file)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    assert prepare(folder, lines, tmp_path / "out") == 1
    assert message in capsys.readouterr().err


def test_what_is_cut_and_left_out_is_counted(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_answer = {"prompt": "Why?", "completion": " because" * 100}
    long_question = {"prompt": "Why?" * 100, "completion": "No"}
    assert prepare(base, [COMPLETION, long_answer, long_question], tmp_path / "out") == 0
    said = capsys.readouterr().out
    tokenizer = read_tokenizer(base / "tokenizer.json")
    cut = len(tokenizer.encode(long_answer["prompt"] + long_answer["completion"]).ids) + 1 - 64
    assert f"train: 1 of 2 conversations are longer than 64 tokens and were cut, by {cut} tokens in total" in said
    assert "train: 1 conversations were left out, which have no answer within 64 tokens" in said


def many_chats() -> list[object]:
    """Conversations of many lengths."""
    questions = ["Why?", "What is it that you do all day?", "And then?", "How many are there, and of which kind?"]
    return [
        {"prompt": f"{number} {questions[number % 4]}", "completion": f" It is {' and '.join(['so'] * (number % 7))}"}
        for number in range(40)
    ]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_packed_conversations_have_the_losses_that_they_have_alone(text: Path, tmp_path: Path, family: str) -> None:
    base = {"llama": make_llama, "gpt2": make_gpt2}[family](tmp_path / "base", text)
    packed, alone = tmp_path / "packed", tmp_path / "alone"
    assert prepare(base, many_chats(), packed) == 0
    assert prepare(base, many_chats(), alone, "--packing", "false") == 0
    rows = rows_in(packed)
    assert len(rows["tokens"]) < 30
    assert len(rows_in(alone)["tokens"]) == 40
    manifest = read_manifest(packed)
    assert manifest.text is not None
    task = LanguageModeling(manifest, LanguageModelingSettings(model_type=str(base)))
    model = task.new_model().eval()
    found, expected = [], []
    with torch.no_grad():
        for row in range(len(rows["tokens"])):
            batch = {name: torch.from_numpy(values[row : row + 1]) for name, values in rows.items()}
            for number in range(1, int(rows["documents"][row].max()) + 1):
                of_document = batch["documents"].long() == number
                only = {**batch, "answers": batch["answers"] & of_document}
                found.append(task.loss(model, only).item() / task.loss_terms(only))
                tokens = batch["tokens"][of_document].long()[None]
                logits = model(input_ids=tokens[:, :-1]).logits[0]
                losses = functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
                expected.append(float(losses[batch["answers"][of_document][1:]].mean()))
    assert len(found) == 40
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_whole_dataset_has_the_same_loss_packed_and_alone(base: Path, tmp_path: Path) -> None:
    sums = []
    for packing in ("true", "false"):
        out = tmp_path / packing
        assert prepare(base, many_chats(), out, "--packing", packing) == 0
        task = LanguageModeling(read_manifest(out), LanguageModelingSettings(model_type=str(base)))
        model = task.new_model().eval()
        batch = {name: torch.from_numpy(values) for name, values in rows_in(out).items()}
        with torch.no_grad():
            sums.append((float(task.loss(model, batch)), task.loss_terms(batch), task.measure(model, batch)))
    (packed, packed_terms, measured), (alone, alone_terms, _) = sums
    assert packed_terms == alone_terms == float(measured["tokens"])
    assert packed == pytest.approx(alone, rel=1e-6)
    assert float(measured["loss_sum"]) == pytest.approx(packed, rel=1e-6)


def test_a_model_that_takes_no_positions_needs_rows_of_one_conversation(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(base, many_chats(), tmp_path / "packed") == 0
    flags = ("--data", "packed", "--model", "m", "--checkpoints", "c", "--metrics", "x", "--task", "language_modeling")
    paths = [str(tmp_path / flag) if len(flag) == 1 or flag == "packed" else flag for flag in flags]
    sizes = '{"n_layer": 1, "hidden_size": 16, "n_head": 2}'
    assert train_ddp.main([*paths, "--model-type", "bloom", "--model-overrides", sizes]) == 1
    assert "a model of type bloom cannot keep the conversations in a row apart" in capsys.readouterr().err


def test_without_a_source_python_documentation_answers(base: Path, tmp_path: Path) -> None:
    flags = ("--base-model", base, "--prepared", tmp_path, "--sequence-length", 64)
    assert prepare_chat.main([str(flag) for flag in flags]) == 0
    manifest = read_manifest(tmp_path)
    assert list(manifest.splits) == ["train", "validation", "test"]
    assert manifest.text is not None
    assert manifest.text.tokens["train"] == rows_in(tmp_path)["answers"].sum()
