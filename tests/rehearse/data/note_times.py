"""Writes when it started and ended, half a second apart, into a folder."""

import sys
import time
from pathlib import Path

started = time.time()
time.sleep(0.5)
Path(sys.argv[1], "times.txt").write_text(f"{started} {time.time()}")
