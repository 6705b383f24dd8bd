"""Causal language models, sized to the dataset's vocabulary and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.models.from_transformers import ModelNeeds


@dataclass(frozen=True)
class LanguageModelNeeds(ModelNeeds):
    """Vocabulary, length of a row, and the token that ends a text."""

    vocabulary_size: int
    sequence_length: int
    end_of_text: int

    kind = "causal language model"
    auto_class = "AutoModelForCausalLM"
    types_table = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"

    def settings_of(self, config: Any, *, has_weights: bool) -> Mapping[str, Any]:
        """A model with weights keeps its own. The model has no padding token: its embedding would never be trained."""
        if has_weights:
            return {}
        positions = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
        settings = {
            "vocab_size": self.vocabulary_size,
            positions: self.sequence_length,
            "bos_token_id": self.end_of_text,
            "eos_token_id": self.end_of_text,
            "pad_token_id": None,
        }
        return {name: value for name, value in settings.items() if hasattr(config, name)}

    def defaults_of(self, config: Any) -> Mapping[str, Any]:
        """No dropout, whatever transformers' default for a model type: a language model usually sees its text once."""
        return {
            name: 0.0
            for name, value in config.to_dict().items()
            if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, float)
        }

    def require_fit(self, config: Any, what: str) -> None:
        """The vocabulary and the positions must suffice for the dataset."""
        if config.vocab_size < self.vocabulary_size:
            raise StepError(
                f"{what} has {config.vocab_size} tokens; the dataset has {self.vocabulary_size}. Prepare the text "
                "with the model's own tokenizer (--tokenizer)"
            )
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and positions < self.sequence_length:
            raise StepError(
                f"{what} takes at most {positions} tokens at once; the dataset's rows have {self.sequence_length}. "
                f"Prepare the text with --sequence-length {positions}"
            )


@contextmanager
def rows_are_not_packed() -> Iterator[None]:
    """Keep a forward pass from looking for several texts packed in a row, which makes the host wait for the device.

    It follows from positions, which a row of ours counts from its beginning to its end.
    """
    from transformers import masking_utils

    look = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = look
