"""Two datasets made once; and this folder on the path, for the tests' helpers and their own task."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from forked_ranks import RankServer, forked_ranks


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, in several shards, so that gathering crosses their bounds."""
    from trainyard.steps import prepare_images

    folder = tmp_path_factory.mktemp("digits")
    assert prepare_images.main(["--prepared", str(folder), "--shard-samples", "500"]) == 0
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's documentation in rows of 32 tokens, the last of a held-out split not full."""
    from trainyard.steps import prepare_text

    folder = tmp_path_factory.mktemp("text")
    assert prepare_text.main(["--prepared", str(folder), "--vocabulary-size", "320", "--sequence-length", "32"]) == 0
    return folder


@pytest.fixture(scope="session")
def server() -> RankServer:
    """What starts ranks in a moment."""
    return forked_ranks()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable that steers a step, and the signal handlers as they were."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
