"""A user's own task for the tests of engines: a real transformer, small enough to train in a moment.

Its shapes are awkward on purpose: odd sizes that no number of ranks divides, a parameter with one element, tied
weights, a buffer that is saved and one that is not.
"""

from __future__ import annotations

import os

import torch
from torch.nn import functional

from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.task import Task

LEVELS, TOKENS, WIDTH, HEADS = 17, 16, 30, 3


class Block(torch.nn.Module):
    """Attention and a feed-forward layer, each after a LayerNorm and added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_feed_forward = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = torch.nn.Linear(WIDTH, 2 * WIDTH + 1), torch.nn.Linear(2 * WIDTH + 1, WIDTH)
        self.strength = torch.nn.Parameter(torch.ones(1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = hidden.shape
        parts = self.attention_in(self.before_attention(hidden)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.strength * self.attention_out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return hidden + self.narrow(functional.gelu(self.widen(self.before_feed_forward(hidden))))


class TinyTransformer(torch.nn.Module):
    """Predicts each next level of grey."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = torch.nn.Embedding(LEVELS, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, LEVELS, bias=False)
        self.head.weight = self.levels.weight
        self.register_buffer("positions", torch.randn(TOKENS, WIDTH) * 0.1)
        self.register_buffer("temperature", torch.tensor(1.5), persistent=False)

    def forward(self, levels: torch.Tensor) -> torch.Tensor:
        hidden = self.levels(levels) + self.positions
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden) / self.temperature


class NextLevel(Task):
    """Next-token prediction on coarse digits."""

    def new_model(self) -> torch.nn.Module:
        return TinyTransformer()

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        return self._losses(model, batch).sum()

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        losses = self._losses(model, batch).double()
        return {"loss_sum": losses.sum(), "samples": torch.tensor(float(len(losses)))}

    def _losses(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """One mean over its tokens per sample."""
        coarse = functional.avg_pool2d(batch["images"].float(), 2).flatten(1) // 16
        levels = coarse.long().clamp(0, LEVELS - 1)
        logits = model(levels).float()[:, :-1]
        losses = functional.cross_entropy(logits.flatten(0, 1), levels[:, 1:].flatten(), reduction="none")
        return losses.view(len(levels), -1).mean(dim=1)


class NotFinite(NextLevel):
    """In the micro-batches named by an environment variable, the loss of the last rank is NaN."""

    calls = 0

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        self.calls += 1
        first, last = (int(number) for number in os.environ["NOT_FINITE_STEPS"].split("-"))
        is_bad_rank = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
        factor = float("nan") if is_bad_rank and first <= self.calls <= last else 1.0
        return super().loss(model, batch) * factor
