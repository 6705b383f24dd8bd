"""The heat map, the timeline, and quantities as people read them."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path

import pytest

from trainyard.report.drawings import HeatMap, draw_timeline, most_frequent_mistakes, process_counts
from trainyard.report.job_results import ConfusionMatrix
from trainyard.settings import quantities
from trainyard.settings.run_record import JobRecord, read_run_record

PETS = ConfusionMatrix(("cat", "dog", "owl"), ((8, 2, 0), (5, 5, 0), (0, 0, 0)))


def test_every_count_has_its_cell() -> None:
    heat_map = HeatMap(PETS)

    assert [cell.count for cell in heat_map.cells] == [8, 2, 0, 5, 5, 0, 0, 0, 0]
    assert heat_map.cells[3].tooltip == "true dog, predicted cat: 5 of 10"
    assert heat_map.cells[3].heat == pytest.approx(math.sqrt(0.5), abs=0.001)
    assert heat_map.cells[8].heat == 0  # a class without samples divides nothing


def test_many_classes_are_drawn_without_counts() -> None:
    def identity(number: int) -> ConfusionMatrix:
        names = tuple(str(index) for index in range(number))
        return ConfusionMatrix(names, tuple(tuple(int(r == c) for c in range(number)) for r in range(number)))

    forty = HeatMap(identity(40))
    assert not forty.has_counts
    assert len(forty.cells) == 40  # only those that are not empty


def test_the_most_frequent_mistakes_come_first() -> None:
    found = [
        (mistake.true, mistake.predicted, mistake.count, mistake.share) for mistake in most_frequent_mistakes(PETS)
    ]

    assert found == [("dog", "cat", 5, 0.5), ("cat", "dog", 2, 0.2)]


def test_the_timeline_shows_attempts_one_after_the_other(make_failed_run, tmp_path: Path) -> None:
    folder = make_failed_run()
    folder.add_job("export", duration_s=1.1, attempts=[_attempt("2026-11-20T22:17:23.200000Z", 1.1)])

    timeline = draw_timeline(read_run_record(folder.finish()))

    assert timeline is not None
    assert [row.job.name for row in timeline.rows] == ["train", "export"]
    train, export = (row.bars for row in timeline.rows)
    assert timeline.seconds == pytest.approx(19.1)
    assert [bar.start for bar in train] == [0, pytest.approx(9.9 / 19.1 * 100, abs=0.01)]
    assert export[0].start + export[0].length == pytest.approx(100, abs=0.01)
    assert train[1].tooltip.startswith("train, attempt 2 of 2: began after 9.9 s, took 8.2 s; rank 1")


def test_one_job_makes_no_timeline(empty_run) -> None:
    empty_run.add_job("train", attempts=[_attempt("2026-11-20T22:17:05+00:00", 3.0)])

    assert draw_timeline(read_run_record(empty_run.finish())) is None


def test_moments_are_read_with_and_without_a_zone(empty_run) -> None:
    for started in ("2026-11-20T22:17:05Z", "2026-11-20T23:17:05+01:00", "2026-11-20T22:17:05"):
        empty_run.run["started"] = started
        assert quantities.moment(read_run_record(empty_run.finish()).started_at) == "20 Nov 2026, 22:17:05 UTC"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.06061, "61 ms"),
        (0.9996, "1.0 s"),
        (41.26, "41.3 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (12_000, "3 h 20 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert quantities.duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0.0 %"),
        (1, "100.0 %"),
        (0.9861, "98.6 %"),
        (0.9996, "99.96 %"),
        (0.9999999, "> 99.99 %"),
        (0.0002, "0.02 %"),
        (0.00001, "< 0.01 %"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(share: float | None, text: str) -> None:
    assert quantities.percentage(share) == text


def test_other_quantities() -> None:
    assert quantities.counted(1, "process") == "1 process"
    assert quantities.counted(1200, "process") == "1,200 processes"
    assert quantities.counted(2, "job") == "2 jobs"
    assert quantities.number(None) == "–"
    assert quantities.number(0.07131) == "0.07131"
    assert quantities.number(3e-5) == "0.00003"
    assert quantities.number(11_527.4) == "11,527"
    assert quantities.number(0.0) == "0"
    assert quantities.number(math.inf) == "not finite"
    assert quantities.memory(65536) == "64 KiB"
    assert quantities.memory(512 * 2**20) == "512 MiB"
    assert quantities.memory(31.25 * 2**30) == "31.2 GiB"
    assert quantities.figure("top_5_accuracy", 0.5) == "50.0 %"
    assert quantities.figure("perplexity", 109.947) == "109.9"
    assert quantities.moment(None) == "–"
    assert quantities.moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)) == "2 Jan 2026, 03:04:05 UTC"
    assert quantities.as_text({"a": True}) == '{"a": true}'


@pytest.mark.parametrize(
    ("nodes", "each", "world_size", "text"),
    [
        (1, 1, None, "1 process"),
        (1, 8, None, "8 processes"),
        (2, 8, None, "2 nodes × 8 = 16 processes"),
        (2, 2, 3, "3 processes on 2 nodes"),
    ],
)
def test_processes_of_a_job(nodes: int, each: int, world_size: int | None, text: str) -> None:
    assert process_counts(JobRecord("train", nodes=nodes, processes_per_node=each, world_size=world_size)) == text


def _attempt(started: str, duration_s: float) -> dict[str, object]:
    return {"started": started, "duration_s": duration_s, "exit_codes": {"0": 0}, "reason": None}
