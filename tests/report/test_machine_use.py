"""What jobs used of the machine, each figure against hand-made samples whose answer is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trainyard.report.machine_use import machine_uses
from trainyard.report.run_report import write_report
from trainyard.settings.run_record import read_run_record

GIB = 2**30
HEADER = {"format": "trainyard.machine_use/1", "attempt": 1, "processors": 4}


def sample(seconds: float, busy: float, gib: float, gpus: list[tuple[float, float]] | None = None) -> dict[str, Any]:
    line: dict[str, Any] = {"seconds": seconds, "processors_busy": busy, "memory_bytes": int(gib * GIB)}
    if gpus:
        line["gpus"] = {
            str(number): {"busy": share, "memory_bytes": int(used * GIB)} for number, (share, used) in enumerate(gpus)
        }
    return line


@pytest.fixture
def figures(empty_run: Any) -> Callable[..., dict[str, str]]:
    """Returns the figures of a job with these samples."""

    def read(*lines: dict[str, Any]) -> dict[str, str]:
        empty_run.add_job("train", duration_s=10.0)
        empty_run.write("jobs/train/system_logs/machine_use.jsonl", list(lines))
        (use,) = machine_uses(read_run_record(empty_run.finish()), empty_run.path)
        return {figure.label: figure.value for figure in use.figures}

    return read


def test_means_are_over_time_and_peaks_are_of_all_samples(figures: Callable[..., dict[str, str]]) -> None:
    """4 processors for 1 s, then 2 for 3 s: 2.5 on average."""
    found = figures(
        HEADER,
        sample(1, 4.0, 3, [(0.0, 1), (0.2, 2)]),
        sample(4, 2.0, 1.5, [(0.5, 30), (0.7, 10)]),
    )
    assert found == {
        "processors busy, on average": "2.5 of 4",
        "peak memory": "3.0 GiB",
        "GPUs busy, on average": "47.5 %",  # both GPUs: 0.1 for 1 s, then 0.6 for 3 s
        "peak GPU memory": "40.0 GiB",  # of both together
    }


def test_only_the_last_attempt_counts(figures: Callable[..., dict[str, str]]) -> None:
    found = figures(HEADER, sample(1, 4.0, 9), {**HEADER, "attempt": 2}, sample(1, 1.0, 1))
    assert found == {"processors busy, on average": "1.0 of 4", "peak memory": "1.0 GiB"}


def test_the_trials_of_a_sweep_have_one_entry_together(empty_run: Any) -> None:
    empty_run.add_job("search", display_name="Search", trials=[{"number": 1}, {"number": 2}, {"number": 3}])
    for number, gib in ((1, 2), (2, 1)):  # the third was too short to be sampled
        lines = [HEADER, *(sample(second, number, gib) for second in range(1, 2 + number))]
        empty_run.write(f"jobs/search/trials/{number}/system_logs/machine_use.jsonl", lines)

    uses = machine_uses(read_run_record(empty_run.finish()), empty_run.path)

    assert {use.title: [figure.value for figure in use.figures] for use in uses} == {
        "Search": ["1.6 of 4", "2.0 GiB"],  # one processor for 2 s, two for 3 s
    }


def test_the_report_draws_processors_and_memory_over_time(
    open_page: Callable[..., Any], make_digits_run: Callable[[], Any]
) -> None:
    folder = make_digits_run()
    lines = [HEADER, *(sample(60 * minute, 1.5, minute) for minute in range(1, 11))]
    folder.write("jobs/train/system_logs/machine_use.jsonl", lines)
    folder.write("jobs/evaluate/system_logs/machine_use.jsonl", [HEADER, sample(1, 1, 1)])
    folder.write("jobs/prepare/system_logs/machine_use.jsonl", lines)  # it was reused, so it ran in another run
    page = open_page(write_report(folder.finish()))

    section = page.locator("#machine")
    assert section.locator("h3").all_inner_texts() == ["train", "evaluate"]
    assert section.locator("figcaption strong").all_inner_texts() == ["Processors busy, of 4", "Memory in GiB"]
    assert "by minutes. memory in gib: first 1, last 10" in section.locator("svg[role=img]").last.get_attribute(
        "aria-label"
    )


def test_samples_that_cannot_be_read_are_left_out(empty_run: Any) -> None:
    empty_run.add_job("train")
    broken_gpus = json.dumps(HEADER) + '\n{"seconds": 1, "processors_busy": 1, "memory_bytes": 1, "gpus": {"0": {}}}\n'
    for text in ("", "{", '{"format": "trainyard.machine_use/2"}\n{"seconds": 1}', "null\n[]\n", broken_gpus):
        empty_run.write("jobs/train/system_logs/machine_use.jsonl", text)
        assert machine_uses(read_run_record(empty_run.finish()), empty_run.path) == []
