"""Backward passes require determinism: only then are those of attention on a GPU deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.randomness import ask_for_determinism, deterministic_backward


class PutsGradient(torch.autograd.Function):
    """An operation for whose backward pass torch has no deterministic algorithm, on any device."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradient).put_(torch.arange(len(gradient)), gradient)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.enable_cudnn_sdp(True)


def backward() -> None:
    with deterministic_backward():
        PutsGradient.apply(torch.ones(3, requires_grad=True)).sum().backward()


def test_a_backward_pass_without_a_deterministic_algorithm_is_named() -> None:
    ask_for_determinism()
    with pytest.raises(
        StepError, match=r"^put_ in the model's backward pass .*; train without one: --deterministic false"
    ):
        backward()


def test_determinism_is_not_required_unless_asked_for() -> None:
    backward()


def test_a_forward_pass_only_warns() -> None:
    ask_for_determinism()
    with deterministic_backward():
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        torch.zeros(3).put_(torch.arange(3), torch.ones(3))


def test_other_errors_pass_through() -> None:
    ask_for_determinism()
    with pytest.raises(RuntimeError, match="out of memory"), deterministic_backward():
        raise RuntimeError("out of memory")
