"""Where ZeRO keeps its fp32 master weights: in flat tensors, in which each parameter has a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class MasterRange:
    """One parameter's master weights on this rank."""

    flat: torch.Tensor
    """The flat tensor that the optimizer updates, and the key of its state."""
    offset: int
    """Where the range begins in it."""
    start: int
    """The index of its first element in the flattened parameter."""
    elements: int
    """How many elements there are; 0 if other ranks have them all."""

    def within(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the range in the flat tensor, or in state of the same layout."""
        return flat.detach().narrow(0, self.offset, self.elements)


def master_ranges(
    zero_optimizer: Any, stage: int, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, MasterRange]:
    """Return every parameter's master weights on this rank, by name."""
    find = _in_partitioned_parameter if stage == 3 else _in_flat_partition
    return {name: find(zero_optimizer, parameter) for name, parameter in parameters.items()}


def rebuild_low_precision(zero_optimizer: Any, stage: int) -> None:
    """Update what the forward pass reads from the master weights, as at the end of a step."""
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
    """Stages 1 and 2: a group's parameters end to end, cut into as many equal parts as there are ranks."""
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
    """Stage 3: each parameter is cut into as many equal parts as there are ranks, the last one padded."""
    group, offset, elements_each = zero_optimizer.grad_position[zero_optimizer.get_param_id(parameter)]
    start = min(parameter.ds_zero_partition_rank * elements_each, parameter.ds_numel)
    elements = min(elements_each, parameter.ds_numel - start)
    return MasterRange(zero_optimizer.fp32_partitioned_groups_flat[group], offset, start, elements)
