"""The tokens of a dataset: a byte-level BPE vocabulary, learned from the text or read from a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.steps.data.dataset.manifest import TokenText
from trainyard.steps.data.text.text_source import Piece, TextFile, TextSource
from trainyard.steps.data.tokenizing.splits import SplitRule
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import parse_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
"""How a model's conversations become text; not every model has one."""
_END_OF_TEXT = "<|endoftext|>"
_KNOWN_ENDS = (_END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
"""The usual names, for a tokenizer whose configuration does not name it."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as in its two files, and the token that ends every document. Picklable."""

    tokenizer_json: str
    config: dict[str, Any]
    size: int
    """The largest token plus one."""

    end_of_text: int

    @property
    def padding(self) -> int:
        """The number that fills the rest of a row; it is not a token."""
        return 0xFFFF if self.size <= 0xFFFF else 0xFFFFFFFF

    @property
    def dtype(self) -> str:
        """The numpy type that can hold every token and the padding."""
        return "uint16" if self.size <= 0xFFFF else "uint32"

    def write(self, folder: Path) -> None:
        """Write the files that transformers' `AutoTokenizer.from_pretrained` reads."""
        (folder / TOKENIZER_FILE).write_text(self.tokenizer_json, encoding="utf-8")
        config = json.dumps(self.config, indent=1, ensure_ascii=False) + "\n"
        (folder / TOKENIZER_CONFIG_FILE).write_text(config, encoding="utf-8")

    def token_text(self, **by_split: Mapping[str, int]) -> TokenText:
        """Return what a manifest says of tokens of this vocabulary, with what it counts in each split."""
        digest = hashlib.sha256(self.tokenizer_json.encode()).hexdigest()
        return TokenText(self.size, self.end_of_text, self.padding, digest, **by_split)


def plain_tokenizer(tokenizer_json: str) -> Tokenizer:
    """Return a tokenizer that reads special tokens in a text as plain text, and text of any length."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a document that spells out <|endoftext|> does not end there
    return tokenizer


def learn_vocabulary(source: TextSource, rule: SplitRule, size: int, sample_bytes: int) -> Vocabulary:
    """Learn byte-level BPE from the beginnings of the files' training documents, at most `sample_bytes` in all."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[_END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(source, rule, sample_bytes), trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _END_OF_TEXT,
        "eos_token": _END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    return _vocabulary(tokenizer, config, _END_OF_TEXT)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Return the tokenizer in a folder. Raise StepError if there is none or it has no end-of-text token."""
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise StepError(f"--tokenizer {folder} has no {TOKENIZER_FILE}")
    tokenizer = read_tokenizer(file)
    config = read_tokenizer_config(folder / TOKENIZER_CONFIG_FILE)
    named = config.get("eos_token")
    named = named.get("content") if isinstance(named, dict) else named
    candidates = _KNOWN_ENDS if named is None else (named,)
    end = next((token for token in candidates if tokenizer.token_to_id(token) is not None), None)
    if end is None:
        raise StepError(
            f"--tokenizer {folder} has no end-of-text token: name it as eos_token in {TOKENIZER_CONFIG_FILE}, or add "
            f"one of {' '.join(_KNOWN_ENDS)} to the vocabulary"
        )
    return _vocabulary(tokenizer, {**config, "eos_token": end}, end)


def read_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer in a tokenizer.json. Raise StepError if it is invalid."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as failure:  # tokenizers raises plain Exception
        raise StepError(f"{file} is not a tokenizer that the package tokenizers reads: {failure}") from None


def _vocabulary(tokenizer: Tokenizer, config: dict[str, Any], end: str) -> Vocabulary:
    end_of_text = tokenizer.token_to_id(end)
    assert end_of_text is not None
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return Vocabulary(tokenizer.to_str(), config, size, end_of_text)


def read_tokenizer_config(file: Path) -> dict[str, Any]:
    """Return a tokenizer_config.json, or what stands in for one. Raise StepError if it is invalid."""
    if not file.is_file():
        return {"tokenizer_class": "PreTrainedTokenizerFast"}
    config = parse_json(file.read_bytes(), file)
    if not isinstance(config, dict):
        raise StepError(f"{file} is not a JSON object")
    # It names code in a model's folder, which nobody who loads the copy may be led to run.
    config.pop("auto_map", None)
    return config


def _sample(source: TextSource, rule: SplitRule, sample_bytes: int) -> Iterator[str]:
    """Yield training text from the beginning of every file, in proportion to the file's size."""
    total_bytes = max(1, sum(file.size_bytes for file in source.files))
    rest_bytes = sample_bytes
    for file in source.files:
        # Compressed files have more text than bytes; if all of the text fits, all of it is taken.
        share_bytes = rest_bytes if total_bytes <= sample_bytes else file.size_bytes * sample_bytes // total_bytes
        for piece in _beginning(file, share_bytes):
            rest_bytes -= piece.text_bytes
            if rule.split_of(piece.document) == "train":
                yield piece.text


def _beginning(file: TextFile, most_bytes: int) -> Iterator[Piece]:
    """Yield the file's first pieces; the last one is cut."""
    for block in file.blocks():
        for piece in block.pieces(replace_undecodable=True):
            if piece.text_bytes > most_bytes:
                text = piece.text.encode()[:most_bytes].decode(errors="ignore")
                yield dataclasses.replace(piece, text=text, text_bytes=most_bytes)
                return
            most_bytes -= piece.text_bytes
            yield piece
