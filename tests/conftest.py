"""What holds for every test."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "steps" / "helpers"))

from forked_python import ForkedPython, share, shared_python

from trainyard.cli import main
from trainyard.settings.this_machine import available_processors

# A third of the time of a collection would be spent on garbage, of which imports make next to none.
gc.disable()

# Tests start more processes than a machine may have GPUs, and state numbers to the bit: they are of the CPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Several tests run at once. Threads that wait for work of a tiny model take processors from them.
os.environ["OMP_NUM_THREADS"] = "1"

# How long an example takes depends on what else the machine does; benchmarks/ measures time.
settings.register_profile("trainyard", deadline=None)
settings.load_profile("trainyard")


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the server that forks Pythons for all workers, before there are any."""
    if hasattr(session.config, "workerinput"):
        return
    folder = tempfile.TemporaryDirectory()
    session.config.add_cleanup(folder.cleanup)
    server = ForkedPython(Path(folder.name))
    session.config.add_cleanup(server.close)
    share(server)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage from here on, but not in what is here already."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def forked_python() -> Path:
    """A Python whose modules are spared the seconds that importing torch takes."""
    return shared_python()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser, one for all tests: Playwright refuses a second beside it."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"nothing was tried in a browser: none of {', '.join(BROWSERS)} is on PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A worker more than processors (`make test` takes at most four): many tests wait for processes and timeouts.

    Each collects all tests, and prepares data of its own: one more would cost more.
    """
    return available_processors() + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: at the end of a run no worker is left alone with one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def trainyard(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command line, run in this process."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)

    return run


@pytest.fixture
def jobs_are_forked(forked_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of `trainyard run` run with that Python."""
    monkeypatch.setattr(sys, "executable", str(forked_python))
