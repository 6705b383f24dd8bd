"""What holds for every test."""

from __future__ import annotations

import os

# Tests start more processes than a machine may have GPUs, and state numbers to the bit: they are of the CPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
