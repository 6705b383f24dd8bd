"""How long Python and PyTorch take to start a layer of an eager model: transformers' own, so small that a GPU waits.

    python benchmarks/launch_overhead.py

Times of 8 and of 24 layers differ by those of 16: what is outside of layers does not count. Operations are the kernels
that the CPU starts. Needs a GPU, torch and transformers; prints JSON.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.profiler import profile

FEW, MANY, STEPS = 8, 24, 40
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 64, "num_attention_heads": 4},
    "gpt2": {"n_embd": 64, "n_head": 4},
    "llama": {"hidden_size": 64, "num_attention_heads": 4},
}


def passes(model_type: str, layers: int, kind: str) -> dict[str, float]:
    """Return the median seconds, and the operations, of a forward and of a backward pass."""
    config = transformers.AutoConfig.for_model(model_type, vocab_size=64, **SIZES[model_type])
    config.num_hidden_layers = layers
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().train()
    if kind == "bf16":
        model = model.bfloat16()
    if kind == "compiled":
        model.compile()
    words = torch.zeros(1, 32, dtype=torch.int64, device="cuda")
    seconds: dict[str, list[float]] = {"forward": [], "backward": []}

    def step() -> None:
        torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=kind != "bf16"):
            loss = model(input_ids=words, labels=words).loss
        torch.cuda.synchronize()
        middle = time.perf_counter()
        loss.backward()
        torch.cuda.synchronize()
        seconds["forward"].append(middle - started)
        seconds["backward"].append(time.perf_counter() - middle)
        model.zero_grad()

    for _ in range(STEPS):
        step()
    found = {name: statistics.median(each[STEPS // 2 :]) for name, each in seconds.items()}
    with profile() as traced:
        step()
    starts = sum(each.count for each in traced.key_averages() if "LaunchKernel" in each.key)
    return {**found, "operations": float(starts)}


for model_type in SIZES:
    for kind in ("bf16", "autocast", "compiled"):
        few, many = (passes(model_type, layers, kind) for layers in (FEW, MANY))
        of_a_layer = {name: (many[name] - few[name]) / (MANY - FEW) for name in few}
        print(json.dumps({"model": model_type, "kind": kind, **of_a_layer}), flush=True)
lines = Path("/proc/cpuinfo").read_text().splitlines()
cpu = next(line.split(": ")[1] for line in lines if line.startswith("model name"))
print(torch.cuda.get_device_name(), cpu, torch.__version__, transformers.__version__, sep=", ")
