"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# Tests start more processes than a machine may have GPUs, and state numbers to the bit: they are of the CPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# How long an example takes depends on what else the machine does; benchmarks/ measures time.
settings.register_profile("trainyard", deadline=None)
settings.load_profile("trainyard")
