"""A model whose weights only rank 0 has at first: no node holds it more than once in main memory.

But for the moments in which every rank builds one of the few models that cannot be built without memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from trainyard.steps.runtime.world import World


class ModelFromRankZero:
    """Built on the CPU by rank 0, and without any memory by the others; `bring` gives them the weights.

    Part by part, so that an engine can shard one before the next arrives. A tensor with several names stays one.
    """

    def __init__(self, new_model: Callable[[], torch.nn.Module], world: World) -> None:
        self._world = world
        self.module = new_model() if world.is_main else without_memory(new_model)
        self._brought: set[torch.nn.Module] = set()
        # A tensor is kept here only until the last place that knows it has its new one.
        self._places = Counter(tensor for owner in self.module.modules() for _, _, tensor in _own_tensors(owner))
        self._arrived: dict[torch.Tensor, torch.Tensor] = {}

    def bring(self, part: torch.nn.Module) -> None:
        """Bring what is not there yet of a part onto every rank's device: parameters, and all buffers, saved or not."""
        for owner in part.modules():
            if owner not in self._brought:
                self._brought.add(owner)
                for tensors, name, tensor in list(_own_tensors(owner)):
                    tensors[name] = self._arrive(tensor)

    def _arrive(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self._arrived:
            self._arrived[tensor] = self._broadcast(tensor)
        self._places[tensor] -= 1
        return self._arrived[tensor] if self._places[tensor] else self._arrived.pop(tensor)

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._world.is_main:
            values = tensor.detach().to(self._world.device)
        else:
            values = torch.empty_like(tensor, device=self._world.device, requires_grad=False)
        dist.broadcast(values, src=0)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(values, requires_grad=tensor.requires_grad)
        return values


def without_memory(new_model: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """The model on the meta device: names and shapes."""
    # Models import it, which in torch 2.8 fails while a device is set.
    import torch._dynamo

    try:
        with torch.device("meta"):
            model = new_model()
    except Exception:
        # Some need numbers while they are built, and a user's task may read weights: built as rank 0's, then emptied.
        return _emptied(new_model())
    return _emptied(new_model()) if _keeps_tensors_aside(model) else model


def _keeps_tensors_aside(model: torch.nn.Module) -> bool:
    """Whether there are tensors that are no parameters or buffers: nobody would bring their values."""
    return any(isinstance(value, torch.Tensor) for owner in model.modules() for value in vars(owner).values())


def _emptied(model: torch.nn.Module) -> torch.nn.Module:
    emptied: dict[torch.Tensor, torch.Tensor] = {}
    for owner in model.modules():
        for tensors, name, tensor in list(_own_tensors(owner)):
            if tensor not in emptied:
                values = tensor.detach().to("meta")
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                emptied[tensor] = torch.nn.Parameter(values, tensor.requires_grad) if is_parameter else values
            tensors[name] = emptied[tensor]
    return model


def _own_tensors(owner: torch.nn.Module) -> Iterator[tuple[dict[str, torch.Tensor], str, torch.Tensor]]:
    """A module's own parameters and buffers: where each is kept, its name there, and itself."""
    for tensors in (owner._parameters, owner._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                yield tensors, name, tensor  # type: ignore[misc]
