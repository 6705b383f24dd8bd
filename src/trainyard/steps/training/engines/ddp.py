"""DistributedDataParallel: the whole model on every rank, gradients summed while the backward pass still runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainyard.steps.training.engines.base import Engine
from trainyard.steps.training.optimizer import new_optimizer
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.tensor_files import read_tensors, write_tensors
from trainyard.steps.training.world import World

# Said of every depthwise convolution: the strides of dimensions of size one differ in name only.
warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")

_MODEL_FILE = "model.safetensors"
_OPTIMIZER_FILE = "optimizer.safetensors"
_SCALER_PREFIX = "scaler/"


class DDPEngine(Engine):
    """One replica per rank. Rank 0's state is everybody's, so rank 0 alone saves it."""

    name = "ddp"

    def __init__(
        self,
        model: torch.nn.Module,
        world: World,
        precision: Precision,
        *,
        weight_decay: float,
        gradient_clip_norm: float,
    ) -> None:
        self._world, self._precision = world, precision
        self._clip_norm = gradient_clip_norm
        self._replica = model.to(world.device)
        self._optimizer = new_optimizer(self._replica, weight_decay)
        device_ids = [world.device.index] if world.device.type == "cuda" else None
        self.model = self._ddp = DistributedDataParallel(
            self._replica, device_ids=device_ids, gradient_as_bucket_view=True
        )
        self._parameters = [parameter for parameter in self._replica.parameters() if parameter.requires_grad]
        self._norm = torch.zeros((), device=world.device)

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """No exchange of gradients before the step's last micro-batch."""
        return nullcontext() if is_last else self._ddp.no_sync()

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Let DDP settle how it groups gradients, which it does after its first backward pass.

        The grouping decides in which order three or more ranks' numbers are added. Settled before the first step of
        every attempt, it makes a resumed training add in the same order as an undisturbed one. In evaluation mode,
        so that no running statistic moves.
        """
        if self._world.size > 2:
            self._ddp.eval()
            loss().backward()
            self._optimizer.zero_grad()
            self._ddp.train()

    def backward(self, loss_sum: torch.Tensor, step_samples: int) -> None:
        """DDP averages over ranks; multiplied by their number, that is the sum which an exact mean needs."""
        self._precision.scaler.scale(loss_sum * (self._world.size / step_samples)).backward()

    def gradient_norm(self) -> float:
        """The norm of the gradient, which DDP has made the same everywhere."""
        self._precision.scaler.unscale_(self._optimizer)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        self._norm = torch.nn.utils.get_total_norm(gradients)
        return self._norm.item()

    def step(self, learning_rate: float) -> None:
        """Clip to the largest allowed norm, then AdamW."""
        if self._clip_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, self._norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._precision.scaler.step(self._optimizer)
        self._precision.scaler.update()
        self._optimizer.zero_grad()

    def skip_step(self) -> None:
        """With fp16, the scaler has seen the overflow and lowers its scale."""
        self._precision.scaler.update()
        self._optimizer.zero_grad()

    def align_ranks(self) -> None:
        """Give every rank the buffers of rank 0, which are the ones that are saved."""
        for buffer in self._replica.buffers():
            dist.broadcast(buffer, src=0)

    def evaluation_model(self) -> torch.nn.Module:
        """The replica: without DDP around it, a forward pass waits for no one."""
        return self._replica

    def save(self, folder: Path) -> list[Path]:
        """Rank 0 writes the replica and the optimizer's moments; the others have nothing that it has not."""
        if not self._world.is_main:
            return []
        files = [folder / _MODEL_FILE, folder / _OPTIMIZER_FILE]
        write_tensors(files[0], dict(self._replica.state_dict()))
        write_tensors(files[1], self._optimizer_tensors())
        return files

    def load(self, folder: Path) -> None:
        """Every rank reads the same files."""
        self._replica.load_state_dict(read_tensors(folder / _MODEL_FILE, self._world.device))
        saved = read_tensors(folder / _OPTIMIZER_FILE, self._world.device)
        names = self._names()
        for parameter in self._parameters:
            prefix = names[parameter] + "/"
            state = {key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)}
            if state:
                self._optimizer.state[parameter] = state
        if self._precision.scaler.is_enabled():
            scaler = {key: saved[_SCALER_PREFIX + key].item() for key in self._precision.scaler.state_dict()}
            self._precision.scaler.load_state_dict(scaler)

    def whole_model(self) -> torch.nn.Module:
        """The replica."""
        return self._replica

    def _optimizer_tensors(self) -> dict[str, torch.Tensor]:
        names = self._names()
        tensors = {
            f"{names[parameter]}/{key}": value
            for parameter, state in self._optimizer.state.items()
            for key, value in state.items()
        }
        scaler = self._precision.scaler.state_dict()
        return tensors | {_SCALER_PREFIX + key: torch.tensor(value) for key, value in scaler.items()}

    def _names(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self._replica.named_parameters()}
