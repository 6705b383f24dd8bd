"""Mixed precision with a scaler, streams, events, synchronized batch normalization and a compiled model."""

import os

import torch
import torch.distributed as dist
from torch.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl", init_method="env://")
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
torch.cuda.set_device(device)
torch.backends.cudnn.benchmark = True
torch.cuda.manual_seed_all(1)

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.LazyLinear(2)
).cuda()
model(torch.zeros(1, 3, 8, 8, device=device))
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = torch.compile(DistributedDataParallel(model, [device.index], device))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = GradScaler("cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
copies = torch.cuda.Stream()
start.record()
for _ in range(5):
    with torch.cuda.stream(copies):
        images = torch.rand(4, 3, 8, 8).pin_memory().to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(copies)
    with autocast("cuda", dtype=torch.float16):
        output = model(images)
        assert output.dtype != torch.float32
        loss = output.float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print("step", loss.item())
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
dist.destroy_process_group()
