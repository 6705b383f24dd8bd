"""Has what a process starts with `sys.executable` start with the Python of FORKED_PYTHON instead.

Python imports this file when it starts, where its folder is on PYTHONPATH.
"""

import os
import sys

sys.executable = os.environ["FORKED_PYTHON"]
