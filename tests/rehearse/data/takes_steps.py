"""Takes forty steps and saves every fifth.

SIGTERM saves and exits with 75; `deaf` ignores it, and `polite` exits with 0.
"""

import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

state, behaviour = Path(sys.argv[1], "step"), sys.argv[2] if len(sys.argv) > 2 else "saves"
note = Path("outputs", "attempts")
note.write_text((note.read_text() if note.exists() else "") + "attempt\n")
print("attempts in ./outputs:", note.read_text().count("attempt"))
step = int(state.read_text()) if state.exists() else 0
print(f"resuming from step {step}")
asked_to_stop = []
signal.signal(signal.SIGTERM, lambda *_: None if behaviour == "deaf" else asked_to_stop.append(True))
while step < 40:
    time.sleep(0.03)
    step += 1
    print(f"step {step}/40")
    if (step % 5 == 0 or asked_to_stop) and os.environ.get("RANK", "0") == "0":
        state.with_suffix(".new").write_text(str(step))
        state.with_suffix(".new").rename(state)
    if asked_to_stop:
        request = urllib.request.Request(os.environ["SCHEDULED_EVENTS_URL"], headers={"Metadata": "true"})
        print("announced:", urllib.request.urlopen(request).read().decode())
        sys.exit(0 if behaviour == "polite" else 75)
