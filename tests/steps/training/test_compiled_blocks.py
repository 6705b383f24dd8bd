"""Compiled blocks: once for each shape, and not once for all shapes."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from torch._dynamo.utils import counters

from trainyard.settings.steps.training import Training
from trainyard.steps.training.engines.blocks import prepare_blocks


class Block(torch.nn.Module):
    """A layer alone: what is between layers, a C++ compiler would take seconds for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.layer(values))


class TwoBlocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            values = block(values)
        return values


@pytest.fixture(autouse=True)
def _compiler_as_before() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8, optimize_ddp=True):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_small_last_batch_does_not_change_how_full_ones_are_computed() -> None:
    settings = cast(
        Training,
        types.SimpleNamespace(compile=True, float8=False, activation_checkpointing=False, activation_offload=False),
    )
    model = TwoBlocks()
    prepare_blocks(model, settings)
    for samples in (8, 3, 5, 8):
        model(torch.ones(samples, 4, requires_grad=True))
    # With kernels for any number of samples it would be two, and full batches would be computed by the second.
    assert counters["stats"]["unique_graphs"] == 3
