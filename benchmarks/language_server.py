"""How long after a keystroke `trainyard lsp` publishes findings, in a repository of 500 files, and its peak memory.

    python benchmarks/language_server.py [--keystrokes 200]

The server is the real process. Keystrokes are single characters typed into one pipeline, each sent when the findings of
the one before are there; half of them come after a pause, when a full pass is running. Results go to
benchmarks/results/language_server.json. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from lint_speed import plant
from results import save_results

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "lsp"))

from editor import Editor  # noqa: E402

FILES = 500
MOST_SECONDS = 0.1
MOST_MEGABYTES = 200.0
_PAUSE_SECONDS = 0.45


def peak_megabytes(editor: Editor) -> float:
    """Return the server's peak memory; Linux only."""
    status = Path(f"/proc/{editor.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def type_into(editor: Editor, name: str, keystrokes: int) -> list[float]:
    """Type into a file, and return the seconds from each keystroke to its findings."""
    text = (editor.folder / name).read_text(encoding="utf-8")
    editor.open(name)
    seconds = []
    word = "# what is typed here "
    for number in range(keystrokes):
        if number % 2:
            time.sleep(_PAUSE_SECONDS)
        typed = text + (word * keystrokes)[: number + 1]
        started = time.perf_counter()
        editor.type(name, typed)
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keystrokes", type=int, default=200)
    keystrokes = parser.parse_args().keystrokes
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name).resolve()
        files = plant(folder, FILES)
        started = time.perf_counter()
        editor = Editor(folder)
        try:
            editor.settle()
            first = time.perf_counter() - started
            name = next(path for path in sorted(folder.rglob("ddp.yaml"))).relative_to(folder).as_posix()
            seconds = type_into(editor, name, keystrokes)
            editor.settle()
            megabytes = peak_megabytes(editor)
        finally:
            editor.close()
    median, slowest = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    print(
        f"{files} files: findings {median * 1000:.0f} ms after a keystroke (95 % within {slowest * 1000:.0f} ms; "
        f"bar {MOST_SECONDS * 1000:.0f} ms), all files after {first:.1f} s, "
        f"{megabytes:.0f} MB (bar {MOST_MEGABYTES:.0f})"
    )
    figures = {
        "files": files,
        "keystrokes": keystrokes,
        "median_seconds": median,
        "p95_seconds": slowest,
        "first_findings_of_all_seconds": first,
        "peak_megabytes": megabytes,
    }
    save_results("language_server", figures)
    return int(median > MOST_SECONDS or megabytes > MOST_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
