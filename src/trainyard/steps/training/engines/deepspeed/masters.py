"""Where ZeRO keeps its fp32 masters: flat tensors, of which each rank has a part, and each parameter a range in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class MasterRange:
    """One parameter's masters on this rank."""

    flat: torch.Tensor
    """The flat tensor that the optimizer updates, and keeps its state by."""
    offset: int
    """Where the range begins in it."""
    start: int
    """Which of the parameter's elements is its first."""
    elements: int
    """How many there are; none where other ranks have them all."""

    def within(self, flat: torch.Tensor) -> torch.Tensor:
        """The range in the flat tensor, or in one of its state that is laid out like it."""
        return flat.detach().narrow(0, self.offset, self.elements)


def master_ranges(
    zero_optimizer: Any, stage: int, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, MasterRange]:
    """Every parameter's masters on this rank, by its name."""
    find = _in_partitioned_parameter if stage == 3 else _in_flat_partition
    return {name: find(zero_optimizer, parameter) for name, parameter in parameters.items()}


def rebuild_low_precision(zero_optimizer: Any, stage: int) -> None:
    """Make what the forward pass reads follow the masters again, as at the end of a step."""
    if stage < 3:
        zero_optimizer.update_lp_params()
        return
    zero_optimizer._partition_all_parameters()
    for group in range(len(zero_optimizer.fp16_groups)):
        zero_optimizer._reassign_or_swap_out_partitioned_parameters(group)
    persistent = zero_optimizer.persistent_parameters
    if persistent:
        persistent[0].all_gather(persistent)


def _in_flat_partition(zero_optimizer: Any, parameter: Any) -> MasterRange:
    """Stages 1 and 2: a group's parameters one after the other, cut into as many equal parts as there are ranks."""
    group = next(
        index for index, group in enumerate(zero_optimizer.bit16_groups) if any(parameter is member for member in group)
    )
    flat = zero_optimizer.single_partition_of_fp32_groups[group]
    mapping = parameter._hp_mapping
    if mapping is None:
        return MasterRange(flat, 0, 0, 0)
    address = mapping.get_hp_fragment_address()
    return MasterRange(flat, address.start, mapping.lp_fragment_address.start, address.numel)


def _in_partitioned_parameter(zero_optimizer: Any, parameter: Any) -> MasterRange:
    """Stage 3: each parameter is cut into as many equal parts as there are ranks, the last of which is padded."""
    group, offset, elements_each = zero_optimizer.grad_position[zero_optimizer.get_param_id(parameter)]
    start = min(parameter.ds_zero_partition_rank * elements_each, parameter.ds_numel)
    elements = min(elements_each, parameter.ds_numel - start)
    return MasterRange(zero_optimizer.fp32_partitioned_groups_flat[group], offset, start, elements)
