"""What a training takes before it runs: memory, time and money of a model on machines, from published formulas.

Here is what may be chosen for a training. The command line imports it, so it imports nothing.
"""

from __future__ import annotations

ENGINES = ("ddp", "fsdp", "zero0", "zero1", "zero2", "zero3")

PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "bf16-true")
"""fp32 computes in fp32; fp16, bf16 and fp8 keep parameters and AdamW in fp32; bf16-true keeps everything in bf16."""

CHECKPOINTING = ("none", "selective", "full")

STACKS = ("eager", "sdpa", "fused")
"""eager: attention is many operations, as before 2023; sdpa: it is one kernel; fused: norms, rotary positions and
nonlinearities are too, as in Liger Kernel, Apex or Transformer Engine."""

STACK_YEAR = 2026
"""Of the software that the training steps run."""

OPTIMIZERS = ("adamw", "adafactor", "adamw8bit")

TUNINGS = ("full", "lora", "qlora")
"""What is trained: all weights, or adapters beside frozen ones, which qlora keeps in 4 bits."""

OFFLOADS = ("none", "optimizer", "all")
"""What is kept in main memory: the optimizer's state, or parameters too."""
