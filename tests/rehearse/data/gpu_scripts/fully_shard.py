"""`fully_shard` over a mesh of GPUs, with a model that is made without memory."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.accelerator.set_device_index(device.index)
dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
with torch.device("meta"):
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh)
model.to_empty(device="cuda")
for layer in (model[0], model[2]):
    layer.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = model(torch.randn(4, 8, device=device)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", loss.item())
dist.destroy_process_group()
