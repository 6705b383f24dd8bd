"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) beside the frozen weights of a model."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.errors import UsageError
from trainyard.plan.estimate import ENGINES
from trainyard.plan.estimate.architectures import Architecture
from trainyard.plan.estimate.image_models import ImageModel, Linear

ALL_LINEAR = "all-linear"

QUANTIZED_BYTES = 0.5 + 0.127 / 8
"""Of a weight in NF4: 4 bits, and 0.127 bits for its share of the constants of its block, which are rounded too
(Dettmers et al. 2023, QLoRA, arXiv:2305.14314, section 3)."""


@dataclass(frozen=True)
class Adapters:
    """Adapters of a rank beside the layers that `targets` names, as peft reads it. `is_quantized` is of the others."""

    rank: int
    targets: str = ALL_LINEAR
    is_quantized: bool = False

    def layers(self, model: Architecture) -> list[tuple[int, int]]:
        """Return what each adapted matrix of a layer takes and gives. UsageError for targets that the model lacks."""
        names = [name.strip() for name in self.targets.split(",")]
        found = [
            (takes, gives)
            for name, takes, gives in model.linear_layers
            if self.targets == ALL_LINEAR or any(name == each or name.endswith(f".{each}") for each in names)
        ]
        if not found:
            known = ", ".join(name for name, _, _ in model.linear_layers)
            raise UsageError(
                f"no layer of {model.name} is called {self.targets}; expected {ALL_LINEAR} or one of: {known}"
            )
        return found

    def matrices(self, model: Architecture | ImageModel) -> list[Linear]:
        """Return all adapted matrices, with the rows that each multiplies for one token, or one image. As `layers`."""
        if isinstance(model, Architecture):
            return model.layers * [Linear(1, takes, gives) for takes, gives in self.layers(model)]
        if self.targets != ALL_LINEAR:
            raise UsageError(f"adapters of chosen layers of a {model.name} are not estimated; expected {ALL_LINEAR}")
        if not model.linear_layers:
            raise UsageError(f"a {model.name} has no linear layers to put adapters beside")
        return model.linear_layers

    def parameters(self, model: Architecture | ImageModel) -> int:
        """Return the parameters of all adapters, two matrices of this rank for each adapted one, and of a new head."""
        head = model.head_parameters if isinstance(model, ImageModel) else 0
        return head + self.rank * sum(matrix.takes + matrix.gives for matrix in self.matrices(model))

    def quantized_parameters(self, model: Architecture | ImageModel) -> int:
        """Return how many weights are kept in 4 bits: the layers' matrices, or none."""
        if not self.is_quantized:
            return 0
        if isinstance(model, Architecture):
            return model.layers * model.layer_matrix_parameters
        return sum(layer.takes * layer.gives for layer in model.linear_layers)


def engines_that_train(adapters: Adapters | None) -> tuple[str, ...]:
    """Return the engines of the training steps that train these adapters, or all weights without adapters.

    DeepSpeed has no frozen weights, and FSDP cannot shard weights of 4 bits. Other software can: published trainings
    are estimated with any engine.
    """
    if adapters is None:
        return ENGINES
    return ("ddp",) if adapters.is_quantized else ("ddp", "fsdp")
