"""A training with nothing but torch and transformers: FSDP2, AdamW, and torch's distributed checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM


def main(rows: str, base_model: str, out: str, options: str) -> int:
    """Train on rows of tokens, one batch a step, and write all losses; with `first_step`, from `out/from` on.

    Writes a checkpoint into `out/dcp` after the last step.
    """
    given = json.loads(options)
    dist.init_process_group("gloo")
    batches = torch.load(rows)[given["first_step"] - 1 : given["last_step"]]
    model: Any = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": [parameter for parameter in model.parameters() if parameter.dim() >= 2]},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=given["lr"],
        betas=(0.9, 0.95),
        weight_decay=0.3,
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # as a schedule of torch does
    flat = StateDictOptions(flatten_optimizer_state_dict=given["flat"])
    if given["first_step"] > 1:
        weights, moments = get_state_dict(model, optimizer, options=flat)
        state = {**weights, "optimizer": moments, "train_state": {"step": 0}}
        dcp.load(state, checkpoint_id=Path(out) / "from")
        assert state["train_state"]["step"] == given["first_step"] - 1
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=flat)
    losses = []
    for batch in batches:
        own = batch.chunk(dist.get_world_size())[dist.get_rank()]
        logits = model(own[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), own[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    weights, moments = get_state_dict(model, optimizer, options=flat)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=Path(out) / "dcp")
    if dist.get_rank() == 0:
        (Path(out) / "losses.json").write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()
    return 0
