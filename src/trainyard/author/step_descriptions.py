"""What templates see of a step: its dataclass, put the way a component is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainyard.foundation.configs import STEP_CONFIGS
from trainyard.foundation.step_fields import StepField, step_fields


@dataclass(frozen=True)
class StepDescription:
    """A step by its module's name, the sentence its dataclass begins with, and its fields."""

    name: str
    description: str
    fields: tuple[StepField, ...]

    @property
    def title(self) -> str:
        """The name for people: `train_ddp` becomes `Train DDP`."""
        return " ".join(_PROPER_NAMES.get(word, word.capitalize()) for word in self.name.split("_"))

    @property
    def inputs(self) -> tuple[StepField, ...]:
        """Folders and files that are read, then parameters: a component's inputs."""
        data = tuple(field for field in self.fields if field.kind == "input")
        return data + tuple(field for field in self.fields if field.kind == "parameter")

    @property
    def outputs(self) -> tuple[StepField, ...]:
        """Folders that are written: a component's outputs."""
        return tuple(field for field in self.fields if field.kind == "output")

    @property
    def field(self) -> dict[str, StepField]:
        """The fields by name."""
        return {field.name: field for field in self.fields}


_PROPER_NAMES = {"ddp": "DDP", "fsdp": "FSDP", "deepspeed": "DeepSpeed"}


@cache
def step_descriptions() -> dict[str, StepDescription]:
    """Every step by its name."""
    return {
        name: StepDescription(name, " ".join((config.__doc__ or "").split()), step_fields(config))
        for name, config in STEP_CONFIGS.items()
    }
