"""Fit a line on every GPU of every machine; rank 0 saves the model."""

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train on this process's part of the samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--model", type=Path, required=True)
    arguments = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")

    x = torch.linspace(-1, 1, 1024).unsqueeze(1)
    samples = TensorDataset(x, 3 * x + 1)
    sampler = DistributedSampler(samples, seed=0)
    loader = DataLoader(samples, batch_size=32, sampler=sampler)

    model = DistributedDataParallel(nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.5f} on {dist.get_world_size()} processes", flush=True)

    if rank == 0:
        torch.save(model.module.state_dict(), arguments.model / "line.pt")
    dist.barrier()  # nobody leaves while another still works
    # What DDP holds goes first: a thread of gloo that outlives Python ends the process with SIGABRT.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
