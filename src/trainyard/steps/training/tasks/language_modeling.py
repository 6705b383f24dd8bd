"""Language modeling: the next token of a text. The task, and what it needs of a model."""

from __future__ import annotations

import inspect
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn import functional

from trainyard.settings.files import file_sha256
from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.steps.data.dataset.manifest import Manifest, TokenText
from trainyard.steps.data.tokenizing.vocabulary import (
    CHAT_TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    read_tokenizer,
    read_tokenizer_config,
)
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import write_json
from trainyard.steps.runtime.imports import replaced
from trainyard.steps.training.from_transformers import ModelNeeds, load_model, new_model, save_model
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.samples.plan import TokenCounts
from trainyard.steps.training.tasks.chunked_cross_entropy import cross_entropy_for_logits, require_output_layer
from trainyard.steps.training.tasks.packed_attention import PackedAttention, attention_within, document_starts
from trainyard.steps.training.tasks.task import Sample, SampleRequest, Task
from trainyard.steps.training.tasks.token_rows import DOCUMENT_STARTS, IGNORED, TokenRows, begins_document, rows_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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
        return dict.fromkeys(dropout_settings(config), 0.0)

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


def dropout_settings(config: Any) -> list[str]:
    """Return the names of a configuration's probabilities of dropout that are above 0."""
    return [
        name
        for name, value in config.to_dict().items()
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, float) and value > 0
    ]


def router_loss_factor(model: torch.nn.Module) -> float:
    """Return how much the loss that keeps a mixture of experts' load even counts; 0 for other models.

    transformers computes it as a mean over a forward pass, so it depends a little on the micro-batch size.
    """
    factor = getattr(model.config, "router_aux_loss_coef", None)
    is_computed = "output_router_logits" in inspect.signature(model.forward).parameters
    return float(factor) if factor is not None and is_computed else 0.0


_PROMPT_TOKENS = 16
_LIKELIEST = 50
"""A sample is drawn from this many of the likeliest tokens: less likely ones are mostly mistakes."""

_LARGEST_EXPONENT = 700.0
"""Keeps the perplexity of a model that diverged finite."""


class LanguageModeling(Task):
    """Cross-entropy over the vocabulary; loss per token, perplexity and bits per byte as measures.

    A row is a sample, of text or of conversations: see `token_rows`. Each token that counts is predicted from those
    before it, in a conversation from those of the same conversation only.
    """

    Settings = LanguageModelingSettings
    settings: LanguageModelingSettings
    best_is: Mapping[str, Literal["lowest", "highest"]] = MappingProxyType(
        {"loss": "lowest", "perplexity": "lowest", "bits_per_byte": "lowest"}
    )

    def __init__(self, manifest: Manifest, settings: LanguageModelingSettings) -> None:
        super().__init__(manifest, settings)
        self._text = self._require_content(manifest)
        self._require_tokenizer_of_the_dataset()
        self.loss_terms_vary = "answers" in manifest.arrays
        self._length = manifest.arrays["tokens"].shape[0] - (0 if self.loss_terms_vary else 1)
        self._router_loss_factor = 0.0
        self._model_code: ModuleType | None = None
        self._packed_attention: PackedAttention | None = None
        self._needs = LanguageModelNeeds(self._text.vocabulary_size, self._length, self._text.end_of_text)

    @property
    def tokens_per_sample(self) -> int:
        """The length of a row, in tokens."""
        return self._length

    def new_model(self) -> torch.nn.Module:
        """Return a model of the settings' type with the dataset's vocabulary and length, or one from a folder."""
        self._require_same_tokens(Path(self.settings.model_type))
        model = new_model(self.settings.model_type, self.settings.model_overrides, self._needs)
        self._router_loss_factor, self._model_code = router_loss_factor(model), inspect.getmodule(type(model))
        if "documents" in self.manifest.arrays:
            if "position_ids" not in inspect.signature(model.forward).parameters:
                config: Any = model.config
                raise StepError(
                    f"a model of type {config.model_type} cannot keep the conversations in a row apart, as it takes "
                    "no positions; prepare them with --packing false"
                )
            self._packed_attention = PackedAttention(model, self._length)
        if self.settings.loss_chunk_tokens > 0:
            require_output_layer(model)
        return model

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the sum of the tokens' cross-entropies; of a mixture of experts, with its routers' loss for each."""
        rows, options = rows_of(batch, self._text), self._router_options(batch)
        cross_entropy, outputs = self._cross_entropy(model, rows, "sum", **options)
        return self._with_router_loss(cross_entropy, outputs, batch)

    def prepare(self, batch: Tensors) -> Tensors:
        """Add where documents begin, which a GPU's kernel is to be told, and a GPU would have to be waited for."""
        documents = batch.get("documents")
        return {} if documents is None else {DOCUMENT_STARTS: document_starts(documents.long())}

    def note(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Say how packed conversations are kept apart."""
        return None if self._packed_attention is None else self._packed_attention.description(device, dtype)

    def loss_terms(self, batch: Tensors) -> int:
        """Return the number of predicted tokens; training rows of text are full."""
        if self.loss_terms_vary:
            return int((rows_of(batch, self._text).labels != IGNORED).sum())
        return len(batch["tokens"]) * self._length

    def token_counts(self, batch: Tensors) -> TokenCounts:
        """Return counts of rows of conversations; each document attends to itself, and a padded row to all of it."""
        rows, is_token = rows_of(batch, self._text), self._is_token(batch)
        if rows.documents is None:
            attended = len(is_token) * self._length**2
        else:
            starts = begins_document(rows.documents).flatten().nonzero().flatten()
            lengths = starts.diff(append=torch.tensor([is_token.numel()]))
            attended = int((lengths.square() * is_token.flatten()[starts]).sum())
        return TokenCounts(int(is_token.sum()), int((rows.labels != IGNORED).sum()), attended)

    def tokens_of_samples(self, batch: Tensors) -> torch.Tensor:
        """Return the number of tokens of each row, without padding."""
        return self._is_token(batch).sum(dim=1)

    def _is_token(self, batch: Tensors) -> torch.Tensor:
        return batch["documents"].long() > 0 if "documents" in batch else batch["tokens"] != self._text.padding

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """Return the sum of the tokens' cross-entropies in nats, and the number of tokens."""
        rows = rows_of(batch, self._text)
        return {
            "loss_sum": self._cross_entropy(model, rows, "none")[0].double().sum(),
            "tokens": (rows.labels != IGNORED).sum().double(),
            "samples": torch.tensor(len(rows.inputs), dtype=torch.float64, device=rows.inputs.device),
        }

    def summarise(self, sums: Mapping[str, torch.Tensor], split: str = "validation") -> dict[str, float]:
        """Return loss per token in nats, its exponential, and bits per byte of text, end-of-text tokens included."""
        nats, tokens = float(sums["loss_sum"]), float(sums["tokens"])
        loss = nats / tokens
        # Of a part of the split it is not known how many bytes it has: each token counts as many as on average.
        text_bytes = self._text.text_bytes[split] * (tokens / self._text.tokens[split])
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, _LARGEST_EXPONENT)),
            "bits_per_byte": nats / math.log(2) / text_bytes,
        }

    def untrained_figures(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return what it is to find every token of the vocabulary as likely as any other."""
        return {"loss": math.log(self._text.vocabulary_size), "perplexity": float(self._text.vocabulary_size)}

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        """Write what `AutoModelForCausalLM` and `AutoTokenizer` of transformers read."""
        generation: Any = model.generation_config
        if generation.pad_token_id is None:  # generating in batches needs one
            generation.pad_token_id = self._text.end_of_text
        save_model(model, folder, self.shard_bytes)
        config = read_tokenizer_config(self._dataset / TOKENIZER_CONFIG_FILE)
        config["model_max_length"] = self._length
        write_json(folder / TOKENIZER_CONFIG_FILE, config)
        for name in (TOKENIZER_FILE, CHAT_TEMPLATE_FILE):
            if (self._dataset / name).is_file():
                shutil.copyfile(self._dataset / name, folder / name)

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Return a model that a training step saved. Raise StepError if it does not fit the dataset."""
        self._require_same_tokens(folder)
        return load_model(folder, self._needs)

    def sample(self, model: torch.nn.Module, request: SampleRequest) -> Sample:
        """Return text drawn token by token, with its own random generator, until it ends or is as long as requested."""
        tokenizer = self._tokenizer
        if request.prompt is None:
            prompt = self._beginning(request)
        else:
            prompt = [self._text.end_of_text, *tokenizer.encode(request.prompt, add_special_tokens=False).ids]
        generator = torch.Generator().manual_seed(0)
        tokens = list(prompt)
        for _ in range(request.tokens):
            context = torch.tensor([tokens[-self._length :]], device=request.device)
            logits = model(input_ids=context, use_cache=False).logits[0, -1].float().cpu()
            # Without those that the model has beyond the vocabulary. A temperature of 0 takes what is likeliest.
            likeliest = _LIKELIEST if request.temperature else 1
            values, choices = logits[: self._text.vocabulary_size].topk(min(likeliest, self._text.vocabulary_size))
            weights = torch.softmax(values / (request.temperature or 1.0), dim=0)
            tokens.append(int(choices[torch.multinomial(weights, 1, generator=generator)]))
            if tokens[-1] == self._text.end_of_text:
                break
        text = tokenizer.decode(tokens)
        # A prompt may end in the middle of a character, which is complete in the text.
        return Sample(os.path.commonprefix([tokenizer.decode(prompt), text]), text)  # noqa: RUF071 – of characters

    def _router_options(self, batch: Tensors) -> Mapping[str, Any]:
        """Return what a model with a router loss is asked for. Padding has no part in it."""
        if not self._router_loss_factor:
            return {}
        return {"output_router_logits": True, "routed": self._is_token(batch) if self.loss_terms_vary else None}

    def _router_loss_of(self, tokens: torch.Tensor | None) -> AbstractContextManager[None]:
        """Return a context in which a model computes its routers' loss of some tokens: it routes padding too."""
        if tokens is None:
            return nullcontext()
        name = "load_balancing_loss_func"
        balance = getattr(self._model_code, name)
        return replaced(self._model_code, name, lambda *routing: balance(*routing[:-1], tokens))

    def _with_router_loss(self, loss: torch.Tensor, outputs: Any, batch: Tensors) -> torch.Tensor:
        """Return the sum of a batch's losses with the routers' loss for each of its terms, if there are routers."""
        if self._router_loss_factor == 0:
            return loss
        router_loss: torch.Tensor = self._router_loss_factor * outputs.aux_loss * self.loss_terms(batch)
        return loss + router_loss

    def _beginning(self, request: SampleRequest) -> list[int]:
        """Return the first tokens of a split; of conversations, all before the first answer."""
        arrays = {name: values[0] for name, values in request.split.gather(np.zeros(1, dtype=np.int64)).items()}
        first_row = arrays["tokens"]
        most = int(arrays["answers"].argmax()) if "answers" in arrays else _PROMPT_TOKENS + 1
        beginning: list[int] = first_row[:most][first_row[:most] != self._text.padding].tolist()
        return beginning

    def logits(self, model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each token after a row's first, for tokens of the shape [rows, tokens]."""
        logits: torch.Tensor = self._outputs(model, rows_of({"tokens": tokens}, self._text)).logits.float()
        return logits

    def _outputs(self, model: torch.nn.Module, rows: TokenRows, **options: Any) -> Any:
        if rows.positions is not None:
            options["position_ids"] = rows.positions
            if isinstance(model, torch.nn.DataParallel):
                raise StepError("packed conversations do not work with --data-parallel; use train_ddp, or leave it out")
        with attention_within(rows), self._router_loss_of(options.pop("routed", None)):
            return model(input_ids=rows.inputs, use_cache=False, **options)

    def _cross_entropy(
        self, model: torch.nn.Module, rows: TokenRows, reduction: Literal["sum", "none"], **options: Any
    ) -> tuple[torch.Tensor, Any]:
        """Return the cross-entropy of each token that counts, or their sum, and what else the model computes."""
        if self.settings.loss_chunk_tokens == 0:
            outputs = self._outputs(model, rows, **options)
            logits, labels = outputs.logits.float().flatten(0, 1), rows.labels.flatten()
            return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction=reduction), outputs
        with cross_entropy_for_logits(model, rows.labels, self.settings.loss_chunk_tokens) as computed:
            outputs = self._outputs(model, rows, **options)
        losses = computed.require_unchanged(outputs.logits)
        return losses.sum() if reduction == "sum" else losses, outputs

    def _require_content(self, manifest: Manifest) -> TokenText:
        """Return what the dataset's tokens mean. Raise StepError if the dataset is for another task."""
        if manifest.text is None or manifest.content == "preferences":
            other = "; its task is preferences" if manifest.content == "preferences" else ""
            raise StepError(f"the task language_modeling needs tokens; this dataset holds {manifest.content}{other}")
        return manifest.text

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return read_tokenizer(self._dataset / TOKENIZER_FILE)

    @property
    def _dataset(self) -> Path:
        assert self.manifest.folder is not None
        return self.manifest.folder

    def _require_tokenizer_of_the_dataset(self) -> None:
        """Raise StepError if the tokenizer's files, which the trained model needs too, are missing or changed."""
        for file in (self._dataset / TOKENIZER_FILE, self._dataset / TOKENIZER_CONFIG_FILE):
            if not file.is_file():
                raise StepError(f"{file} is missing: a dataset of tokens has it beside its manifest")
        if file_sha256(self._dataset / TOKENIZER_FILE) != self._text.tokenizer_sha256:
            raise StepError(
                f"{self._dataset / TOKENIZER_FILE} is not what was written: its SHA-256 differs from the dataset's "
                "manifest"
            )

    def _require_same_tokens(self, folder: Path) -> None:
        """Raise StepError if a model and the dataset have different vocabularies: every figure would be wrong."""
        file = folder / TOKENIZER_FILE
        if not file.is_file():
            return
        if read_tokenizer(file).get_vocab() != self._tokenizer.get_vocab():
            raise StepError(
                f"the vocabulary of {folder} is not the dataset's: prepare the text with the model's own tokenizer "
                f"(--tokenizer {folder})"
            )
