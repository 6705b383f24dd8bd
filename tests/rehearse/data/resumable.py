"""Fails the first time, after writing a checkpoint; completes when it finds the checkpoint."""

import sys
from pathlib import Path

checkpoint = Path(sys.argv[1], "checkpoint")
if not checkpoint.exists():
    checkpoint.write_text("step 5")
    sys.exit("preempted")
Path(sys.argv[1], "result").write_text(f"continued from {checkpoint.read_text()}")
