"""Models to start from, with weights that nobody trained, and data for them: small enough to be made in a moment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from trainyard.steps.data.dataset.manifest import read_manifest

LLAMA_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def make_llama(folder: Path, data: Path, **sizes: int) -> Path:
    """A Llama with the vocabulary of a dataset of tokens; `sizes` replace those above."""
    from transformers import LlamaConfig, LlamaForCausalLM

    manifest = read_manifest(data)
    assert manifest.text is not None
    torch.manual_seed(7)
    end = manifest.text.end_of_text
    ends = {"bos_token_id": end, "eos_token_id": end}
    config = LlamaConfig(vocab_size=manifest.text.vocabulary_size, **ends, **{**LLAMA_SIZES, **sizes})
    model = LlamaForCausalLM(config)
    # Larger than transformers' own first weights, so that wrong positions or masks change a loss visibly.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.3)
    return _save(model, folder, data)


def make_gpt2(folder: Path, data: Path) -> Path:
    """A GPT-2 with the vocabulary of a dataset of tokens: its positions are learned, not rotary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    manifest = read_manifest(data)
    assert manifest.text is not None
    torch.manual_seed(7)
    end = manifest.text.end_of_text
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
    config = GPT2Config(vocab_size=manifest.text.vocabulary_size, bos_token_id=end, eos_token_id=end, **sizes)
    return _save(GPT2LMHeadModel(config), folder, data)


def _save(model: Any, folder: Path, data: Path) -> Path:
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(data / name, folder / name)
    return folder


def make_small_text(data: Path, folder: Path) -> Path:
    """A small dataset of text, all of it for training, with the vocabulary and length of another."""
    from trainyard.steps import prepare_text

    (folder / "source").mkdir(parents=True)
    (folder / "source" / "a.txt").write_text("So it is, and so it was. " * 400)
    flags = ("--source", folder / "source", "--tokenizer", data, "--prepared", folder / "prepared")
    fractions = ("--validation-fraction", 0, "--test-fraction", 0, "--sequence-length", 32)
    assert prepare_text.main([str(flag) for flag in (*flags, *fractions)]) == 0
    return folder / "prepared"


def write_pairs(folder: Path, number: int) -> Path:
    """Pairs of answers to questions, of many lengths, as JSON lines."""
    folder.mkdir()
    lines = [
        {
            "prompt": f"{each} and {each % 5}?",
            "chosen": f" It is {' and '.join(['so'] * (1 + each % 4))}",
            "rejected": f" No{' no' * (each % 3)}",
        }
        for each in range(number)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
