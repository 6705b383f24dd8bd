"""What layers keep for the backward pass: computed again, or in main memory, the gradients have the same bits."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import training_arguments
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.settings.steps.training import TrainSingle
from trainyard.steps import train_ddp
from trainyard.steps.training.engines.blocks import ActivationOffload, prepare_blocks

NOWHERE = {name: Path("unused") for name in ("data", "model", "checkpoints", "metrics")}
RECOMPUTED = {"activation_checkpointing": True}
CHEAP = RECOMPUTED | {"checkpointed_operators": "cheap"}
OFFLOADED = {"activation_offload": True}


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


class Copies(TorchDispatchMode):
    """Notes the shapes of what is copied into a tensor that exists, as offloading does."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def gradients(**settings: Any) -> tuple[list[torch.Tensor], Counter[str]]:
    """Of a small Llama's loss, and how often each operator ran, forward and backward."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).train()
    prepare_blocks(model, TrainSingle(**NOWHERE, **settings))
    tokens = torch.arange(64).view(2, 32)
    with Operators() as operators:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None], operators.counts


def test_gradients_have_the_same_bits() -> None:
    plain, often = gradients()
    found = {
        name: gradients(**settings)
        for name, settings in {
            "again": RECOMPUTED,
            "cheap again": CHEAP,
            "offloaded": OFFLOADED,
            "inputs offloaded": RECOMPUTED | OFFLOADED,
        }.items()
    }
    for name, (each, _) in found.items():
        assert len(each) == len(plain) == 3 * 9 + 3
        assert all(torch.equal(*both) for both in zip(each, plain, strict=True)), name

    # Seven matrix products a layer: again all but the last, whose result nobody needs; or the second, fourth and sixth.
    again, cheap = (found[name][1]["aten::mm"] - often["aten::mm"] for name in ("again", "cheap again"))
    assert (again, cheap) == (3 * 6, 3 * 3)
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert [found[name][1][attention] for name in ("again", "cheap again")] == [2 * 3, 3]
    copies = [found[name][1]["aten::copy_"] - often["aten::copy_"] for name in ("offloaded", "inputs offloaded")]
    assert copies[0] > copies[1] >= 3, "all that a layer keeps, or its input"


def test_activations_are_moved_and_weights_are_not() -> None:
    layer = torch.nn.Linear(64, 64)
    with ActivationOffload().around(layer):
        result = torch.exp(layer(torch.ones(8, 64, requires_grad=True)))
    exponential: Any = result.grad_fn
    product = exponential.next_functions[0][0]
    assert exponential._saved_result.data_ptr() != result.data_ptr()
    assert torch.equal(exponential._saved_result, result)
    assert product._saved_mat2.data_ptr() == layer.weight.data_ptr()


@pytest.mark.parametrize("frozen", [False, True])
def test_copies_of_weights_in_autocasts_precision_are_not_moved(frozen: bool) -> None:
    """A trained weight is rounded again, and a frozen one's copy stays; both give the same bits."""

    def gradients_of(offload: ActivationOffload | None) -> tuple[list[torch.Tensor], list[tuple[int, ...]]]:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.Linear(64, 48))
        layers[2].requires_grad_(not frozen)
        moved: list[tuple[int, ...]] = []
        inputs = torch.randn(32, 48, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16), offload.around(layers) if offload else nullcontext():
            if offload is not None:
                with Copies() as copies:
                    result = layers(inputs)
                moved = copies.shapes
            else:
                result = layers(inputs)
        result.square().sum().backward()
        trained = [parameter.grad for parameter in layers.parameters() if parameter.grad is not None]
        assert inputs.grad is not None
        return [*trained, inputs.grad], moved

    (plain, _), (offloaded, moved) = gradients_of(None), gradients_of(ActivationOffload())
    assert all(torch.equal(*both) for both in zip(plain, offloaded, strict=True))
    assert moved
    assert not {(48, 64), (64, 48)} & set(moved)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--checkpointed-operators", "cheap"), "needs --activation-checkpointing true"),
        (("--activation-offload", "true", "--compile", "true"), "--activation-offload does not work with --compile"),
    ],
)
def test_settings_that_exclude_each_other(
    digits: Path, tmp_path: Path, flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = training_arguments(digits, tmp_path, "tiny_task:TinyTask", *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 1
    assert words in capsys.readouterr().err
