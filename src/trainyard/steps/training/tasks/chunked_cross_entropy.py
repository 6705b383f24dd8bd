"""Cross-entropy without whole logits: a model's output layer returns the loss of each token, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.imports import replaced
from trainyard.steps.training.tasks.token_rows import IGNORED


@dataclass
class TokenLosses:
    """What the output layer returned in place of logits."""

    model_type: str
    returned: list[torch.Tensor] = field(default_factory=list)
    """By each of its calls, of the shape [rows, tokens, 1]."""

    def require_unchanged(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token, [rows * tokens], from the model's own output, to which engines attach hooks.

        Raise StepError if the model did something with it that it means for logits, such as to scale or cap them.
        """
        if len(self.returned) != 1 or not _has_same_values(logits, self.returned[0]):
            raise StepError(
                f"a model of type {self.model_type} scales, caps or adds to what its output layer computes, so its "
                "loss needs whole logits; use --loss-chunk-tokens 0"
            )
        return logits.flatten()


@contextmanager
def cross_entropy_for_logits(model: torch.nn.Module, labels: torch.Tensor, chunk_tokens: int) -> Iterator[TokenLosses]:
    """Within it, the output layer computes the loss of each token; the backward pass recomputes a chunk's logits.

    The layer is called as always, so that engines gather its weights and exchange their gradients as always. `labels`
    has the shape [rows, tokens]. Raise StepError for a model whose output layer cannot do that.
    """
    language_model = _language_model(model)
    head = require_output_layer(language_model)
    logits_of = head.forward
    losses = TokenLosses(language_model.config.model_type)

    def loss_of_chunk(hidden: torch.Tensor, chunk_labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits_of(hidden).float(), chunk_labels, ignore_index=IGNORED, reduction="none")

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape[:-1] != labels.shape:
            raise StepError(
                f"a model of type {losses.model_type} gives its output layer {list(hidden.shape[:-1])} tokens at once "
                f"instead of {list(labels.shape)}; use --loss-chunk-tokens 0"
            )
        chunks = zip(hidden.flatten(0, 1).split(chunk_tokens), labels.flatten().split(chunk_tokens), strict=True)
        if torch.is_grad_enabled():
            by_chunk = [checkpoint(loss_of_chunk, *chunk, use_reentrant=False) for chunk in chunks]
        else:
            by_chunk = [loss_of_chunk(*chunk) for chunk in chunks]
        losses.returned.append(torch.cat(by_chunk).view(*labels.shape, 1))
        return losses.returned[-1]

    with replaced(head, "forward", forward):
        yield losses


def require_output_layer(language_model: Any) -> torch.nn.Module:
    """Return the layer that computes a transformers model's logits. Raise StepError if there is none."""
    head: torch.nn.Module | None = language_model.get_output_embeddings()
    if head is None:
        raise StepError(
            f"a model of type {language_model.config.model_type} has no output layer that transformers knows of, so "
            "its loss needs whole logits; use --loss-chunk-tokens 0"
        )
    return head


def _language_model(model: torch.nn.Module) -> Any:
    """Return transformers' model within what an engine wrapped around it."""
    if isinstance(model, torch.nn.DataParallel):
        raise StepError("--loss-chunk-tokens does not work with --data-parallel; use train_ddp, or leave one out")
    from transformers import PreTrainedModel

    return next(part for part in model.modules() if isinstance(part, PreTrainedModel))


def _has_same_values(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Return whether two tensors are the same memory, not written to since: engines wrap a tensor to attach hooks."""
    return (
        tensor.shape == original.shape
        and tensor.data_ptr() == original.data_ptr()
        and tensor._version == original._version
    )
