"""DistributedDataParallel, as tutorials have it for GPUs: devices by number, a snapshot, rank 0 prints."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
dist.init_process_group(backend="nccl", device_id=torch.device("cuda", gpu))
assert torch.cuda.device_count() == 2

data = TensorDataset(torch.rand(80, 20), torch.rand(80, 1))
loader = DataLoader(data, batch_size=4, pin_memory=True, shuffle=False, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(20, 1).to(gpu), device_ids=[gpu], output_device=gpu)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for inputs, targets in loader:
    inputs, targets = inputs.to(gpu), targets.cuda(non_blocking=True)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    mean = torch.tensor([loss.item(), float(dist.get_rank())], device=f"cuda:{gpu}")
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert mean[1] == 1.5
    print("step", mean[0].item(), torch.cuda.max_memory_allocated())
torch.save(model.module.state_dict(), "model.pt")
dist.barrier(device_ids=[gpu])
torch.load("model.pt", map_location={"cuda:0": f"cuda:{gpu}"})
dist.destroy_process_group()
