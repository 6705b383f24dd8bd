"""One rank fails after saying why; the others sleep for a minute, with a child process each that outlives SIGTERM."""

import os
import subprocess
import sys
import time

failing_rank, how = sys.argv[1], sys.argv[2]
if os.environ["RANK"] == failing_rank:
    time.sleep(0.3)
    if how == "raise":
        raise RuntimeError("the third batch has no labels")
    os.kill(os.getpid(), 9)
subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"],
    start_new_session=True,
)
print("waiting for the others", flush=True)
time.sleep(60)
