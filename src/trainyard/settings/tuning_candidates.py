"""The settings that autotuning tries together: proposed on the author's side, written as one text, read by the step."""

from __future__ import annotations

from dataclasses import dataclass

_EXPECTED = "expected 'config=NAME micro_batch_size=N activation_checkpointing=true|false'"


@dataclass(frozen=True)
class Candidate:
    """One choice of DeepSpeed's configuration (by the name of its file), micro-batch and activation checkpointing."""

    config: str
    micro_batch_size: int
    activation_checkpointing: bool

    def __str__(self) -> str:
        checkpointing = str(self.activation_checkpointing).lower()
        return f"config={self.config} micro_batch_size={self.micro_batch_size} activation_checkpointing={checkpointing}"


def read_candidate(text: str) -> Candidate:
    """Return the candidate of a text as `str` writes it. ValueError says what is expected."""
    pairs = dict(word.partition("=")[::2] for word in text.split())
    config, size, checkpointing = (pairs.get(name, "") for name in Candidate.__dataclass_fields__)
    is_complete = len(pairs) == len(text.split()) == len(Candidate.__dataclass_fields__)
    if not (is_complete and config and size.isdecimal() and int(size) and checkpointing in ("true", "false")):
        raise ValueError(f"not a candidate: {text!r}; {_EXPECTED}")
    return Candidate(config, int(size), checkpointing == "true")
