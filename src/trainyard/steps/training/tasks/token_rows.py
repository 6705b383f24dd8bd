"""Rows of tokens as a language model takes them: what it reads, and which tokens it is to predict.

A row of text has one token more than the model reads: each but the first is predicted, across the documents in it. A
row of conversations (the array `answers`) predicts answers only. Where several are packed into a row (the array
`documents`, counted from 1, padding 0), positions and attention begin again with each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from trainyard.steps.data.dataset.manifest import TokenText
from trainyard.steps.training.samples.batches import Tensors

DOCUMENT_STARTS = "document_starts"
"""The name of a batch's tensor that is not an array of the dataset: see `TokenRows.starts`."""

IGNORED = -100
"""The label of a token that is not predicted, cross_entropy's default."""


class TokenRows(NamedTuple):
    """Rows as int64 tensors of one shape, [rows, length]."""

    inputs: torch.Tensor
    labels: torch.Tensor
    """The token after each; IGNORED where none is predicted."""
    positions: torch.Tensor | None = None
    """Of each token in its document; None where rows are counted from end to end."""
    documents: torch.Tensor | None = None
    """The number of each token's document."""
    starts: torch.Tensor | None = None
    """Where documents begin, if that was computed before (`packed_attention.document_starts`)."""


def rows_of(batch: Tensors, text: TokenText) -> TokenRows:
    """Return the rows of a batch."""
    tokens = batch["tokens"].long()
    if "answers" not in batch:
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        return TokenRows(_readable(inputs, text), labels.masked_fill(labels == text.padding, IGNORED))
    nothing = torch.full_like(tokens[:, :1], IGNORED)
    labels = torch.cat([tokens[:, 1:].masked_fill(~batch["answers"][:, 1:], IGNORED), nothing], dim=1)
    if "documents" not in batch:
        return TokenRows(_readable(tokens, text), labels)
    documents = batch["documents"].long()
    place = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    positions = place - place.masked_fill(~begins_document(documents), 0).cummax(dim=1).values
    return TokenRows(_readable(tokens, text), labels, positions, documents, batch.get(DOCUMENT_STARTS))


def _readable(tokens: torch.Tensor, text: TokenText) -> torch.Tensor:
    """Padding is not a token; nothing is predicted from what stands in for it."""
    return tokens.masked_fill(tokens == text.padding, text.end_of_text)


def begins_document(documents: torch.Tensor) -> torch.Tensor:
    """Return which tokens are the first of their document, or of their row."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins
