"""FullyShardedDataParallel on the process's GPU, in bfloat16 where the GPU has it."""

import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
assert torch.cuda.is_bf16_supported()
assert dist.is_nccl_available()
assert torch.cuda.nccl.version() >= (2, 10)
precision = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
first = FullyShardedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU()),
    auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=100),
    device_id=torch.cuda.current_device(),
    mixed_precision=precision,
)
model = FullyShardedDataParallel(
    torch.nn.Sequential(first, torch.nn.Linear(32, 2)).cuda(),
    sync_module_states=True,
    mixed_precision=precision,
)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = model(torch.randn(4, 8, device="cuda")).float().square().mean()
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    print("step", loss.item())
dist.barrier()
dist.destroy_process_group()
