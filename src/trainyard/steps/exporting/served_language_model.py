"""Loads an exported language model for MLflow.

This file travels with the model, so it imports nothing of Trainyard.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class LanguageModel:
    """Continues texts."""

    def __init__(self, folder: str) -> None:
        found = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._model = found.float().eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._longest = int(self._tokenizer.model_max_length)

    def predict(self, table: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the table's column `text` with each text continued by the likeliest tokens.

        `max_new_tokens` of the parameters limits how many. Of a text longer than the model reads, the end counts.
        """
        most = max(1, min(int((params or {}).get("max_new_tokens", 64)), self._longest - 1))
        return pd.DataFrame({"text": [self._continue(text, most) for text in table["text"]]})

    def _continue(self, text: str, most: int) -> str:
        end = self._model.config.eos_token_id
        tokens = [end, *self._tokenizer.encode(text, add_special_tokens=False)]
        context = torch.tensor([tokens[-(self._longest - most) :]])
        with torch.inference_mode():
            written = self._model.generate(
                input_ids=context,
                attention_mask=torch.ones_like(context),
                max_new_tokens=most,
                do_sample=False,
                pad_token_id=end,
            )
        return text + str(self._tokenizer.decode(written[0, context.shape[1] :], skip_special_tokens=True))

    def get_raw_model(self) -> torch.nn.Module:
        """Return the model itself."""
        model: torch.nn.Module = self._model
        return model


def _load_pyfunc(folder: str) -> LanguageModel:
    """Return what MLflow serves."""
    return LanguageModel(folder)
