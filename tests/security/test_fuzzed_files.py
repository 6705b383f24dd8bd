"""A few hundred spoilt files of each kind end in an error message; `make soak` reads ten thousand of each."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from hostile_clients import ask_often, trouble_of_language_server
from hostile_files import failures, spoilt
from hostile_kinds import KINDS
from run_records import RECORD

from trainyard.rehearse.run_store import read_record
from trainyard.report.live import LivePage, served

COUNT = 60


@pytest.mark.parametrize("name", KINDS)
def test_spoilt_files_are_refused_in_words(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    assert failures(kind.reader(tmp_path), kind.texts, name, range(COUNT), kind.refusals) == []


def test_spoilt_files_are_the_same_again() -> None:
    text = KINDS["conda.yaml"].texts["environment"]
    assert [spoilt(text, number, "a") for number in range(50)] == [spoilt(text, number, "a") for number in range(50)]


def test_spoilt_requests_leave_the_live_page_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    with served(LivePage(tmp_path, lambda: read_record(tmp_path)), 0) as address:
        ask_often(address, range(COUNT), "requests")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"</html>" in answer.read()
    assert "Traceback" not in capfd.readouterr().err


def test_spoilt_messages_leave_the_language_server_alive(tmp_path: Path) -> None:
    assert trouble_of_language_server(tmp_path, range(COUNT), "messages") == []
