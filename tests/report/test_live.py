"""The live page in a real browser: it follows a run by itself, and nothing else reaches its server."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from trainyard.errors import UsageError
from trainyard.report.live import LivePage, RunsPage, served
from trainyard.report.run_report import LONG_SILENCE_SECONDS, running_jobs, write_report
from trainyard.settings.quantities import duration
from trainyard.settings.run_record import read_run_record

PATIENCE_MS = 30_000
OF_24_POINTS = re.compile(r"^M[^L]+(L[^L]+){23}$")
LAPTOP, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 860}


@pytest.fixture
def running(make_digits_run: Callable[[], Any], training_lines: Callable[..., Any]) -> Any:
    """A run whose training is under way; a test lets it go on."""
    folder = make_digits_run()
    folder.run.update(status="running", duration_s=None)
    folder.run["jobs"]["train"].update(status="running", duration_s=None)
    folder.run["jobs"]["evaluate"].update(status="waiting", duration_s=None, attempts=[])
    folder.write("jobs/train/outputs/metrics/metrics.jsonl", training_lines(range(10, 61, 10)))
    folder.finish()
    return folder


@pytest.fixture
def address(running: Any) -> Iterator[str]:
    with served(LivePage(running.path, lambda: read_run_record(running.path))) as url:
        yield url


@pytest.fixture
def open_live(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens the live page; nothing may have been complained of, nor any other address asked for."""
    contexts, complaints, requests = [], [], []

    def open_it(viewport: dict[str, int] = LAPTOP, color_scheme: str = "light") -> Any:
        contexts.append(browser.new_context(viewport=viewport, color_scheme=color_scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []
    assert {request for request in requests if not request.startswith("data:")} == {address, f"{address}events"}


def log_of(page: Any, rank: int) -> Any:
    return page.locator(f"pre[data-log='jobs/train/user_logs/std_log_process_{rank}.txt']")


def test_states_curves_and_logs_of_every_rank_follow_the_run(
    open_live: Callable[..., Any], running: Any, training_lines: Callable[..., Any]
) -> None:
    page = open_live()
    assert page.locator(".graph-wide [data-job=train] .node-state").inner_html() == "running"
    page.locator("#job-train > summary").click()
    page.locator("#job-train details.log").nth(1).locator("summary").click()
    expect(log_of(page, 1)).to_have_text("what the step said", timeout=PATIENCE_MS)

    with (running.path / "jobs/train/user_logs/std_log_process_1.txt").open("a") as log:
        log.write("\x1b[32mstep 70\x1b[0m\n")
    expect(log_of(page, 1)).to_have_text("what the step said step 70", timeout=PATIENCE_MS)

    running.write("jobs/train/outputs/metrics/metrics.jsonl", training_lines(range(10, 241, 10)))
    running.run["jobs"]["train"].update(status="completed", duration_s=36.1)
    running.finish()
    page.wait_for_selector(".graph-wide [data-job=train][data-state=completed]")
    assert page.locator("#job-train").get_attribute("open") is not None, "what was opened stays open"
    assert log_of(page, 1).is_visible()
    expect(page.locator("path[data-series=training]").first).to_have_attribute("d", OF_24_POINTS, timeout=PATIENCE_MS)

    running.run.update(status="completed", duration_s=41.0)
    running.finish()
    expect(page.locator("#head .tile dd", has_text="41.0 s")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".notice.live")).to_have_text("The run has ended: completed.", timeout=PATIENCE_MS)


def test_a_page_whose_server_ends_with_the_run_shows_how_the_run_ended(browser: Any, running: Any) -> None:
    """As with `run --watch`: the server is gone before a browser could ask for the page again."""
    context = browser.new_context(viewport=LAPTOP)
    page = context.new_page()
    with served(LivePage(running.path, lambda: read_run_record(running.path))) as url:
        page.goto(url)
        expect(page.locator(".notice.live")).to_have_text("Live: the page follows the run.")
        page.wait_for_selector(".graph-wide [data-job=train][data-state=running]")
        assert page.get_by_role("link", name="All runs").count() == 0, "it is alone"
        running.run["jobs"]["train"].update(status="failed", reason="out of memory", duration_s=36.1)
        running.run.update(status="failed", duration_s=41.0)
        running.finish()
    expect(page.locator(".notice.live")).to_have_text("The run has ended: failed.", timeout=PATIENCE_MS)
    assert page.locator(".graph-wide [data-job=train]").get_attribute("data-state") == "failed"
    assert page.locator("#head .tile dd", has_text="41.0 s").is_visible()
    context.close()


def test_the_index_of_runs_is_searched_filtered_and_compared_from(
    browser: Any, make_run_to_compare: Callable[[str], Path]
) -> None:
    folders = {letter: make_run_to_compare(letter) for letter in "ABC"}
    runs_folder = folders["A"].parent

    def records() -> list[Any]:
        return [read_run_record(folder) for folder in folders.values() if folder.exists()]

    context = browser.new_context(viewport=LAPTOP)
    page = context.new_page()
    with served(RunsPage(runs_folder, records, read_run_record)) as url:
        page.goto(url)
        shown = page.locator("tbody tr:visible")
        expect(shown).to_have_count(3)
        page.fill("#search", "train SEED")  # of a parameter, by all words, in any case
        expect(shown).to_have_count(0)
        page.fill("#search", folders["B"].name)
        expect(shown).to_have_count(1)
        for search, count in {"epochs=2": 1, "inputs.epochs=2": 1, "format=digits": 3, "format=digit": 0}.items():
            page.fill("#search", search)  # as --set takes it: the whole value counts
            expect(shown).to_have_count(count)
        page.fill("#search", "")
        page.select_option("#metric", "test_accuracy")
        assert shown.locator(".metric").all_inner_texts() == ["0.9", "0.8", "0.7"], "the highest first"
        assert page.locator("#compare").is_disabled()
        for box in page.locator("tbody tr:visible input").all():
            box.check()
        shutil.rmtree(folders["C"])
        page.select_option("#metric", "")
        expect(shown).to_have_count(2, timeout=PATIENCE_MS)
        page.click("#compare")
        expect(page.locator(".kicker")).to_have_text("Comparison of 2 runs")
        page.locator(".compared-runs a").first.click()
        expect(page.locator("#graph")).to_be_visible()
        assert urlsplit(page.url).path == f"{urlsplit(url).path}{folders['A'].name}/"
        page.get_by_role("link", name="All runs").click()
        expect(shown).to_have_count(2)
        page.locator("tbody a").first.click()
        expect(page.locator(".notice.live")).to_have_text("The run has ended: completed.", timeout=PATIENCE_MS)
        expect(page.get_by_role("link", name="All runs")).to_be_visible()  # also after the last update
        assert ask(url, f"{urlsplit(url).path}compare?run=nothing") == (404, "expected 2 to 6 runs to compare\n")
        assert ask(url, f"{urlsplit(url).path}../secret")[0] == 404
    context.close()


def test_the_index_keeps_what_was_chosen_while_runs_come_and_one_looks_at_others(
    browser: Any, make_run_to_compare: Callable[[str], Path]
) -> None:
    folders = [make_run_to_compare(letter) for letter in "AB"]

    def records() -> list[Any]:
        return [read_run_record(folder) for folder in folders]

    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    with served(RunsPage(folders[0].parent, records, read_run_record)) as url:
        page.goto(url)
        rows, shown = page.locator("tbody tr"), page.locator("tbody tr:visible")
        expect(page.locator("#found")).to_have_text("2 of 2 runs")
        page.select_option("#status", "completed")
        shown.locator("input").first.check()
        expect(page.locator("#found")).to_have_text("2 of 2 runs; tick another run to compare")
        shown.locator("input").last.check()
        failed = make_run_to_compare("C")
        record = json.loads((failed / "run.json").read_text())
        (failed / "run.json").write_text(json.dumps({**record, "status": "failed"}))
        folders.append(failed)
        expect(rows).to_have_count(3, timeout=PATIENCE_MS)
        expect(page.locator("#status option")).to_have_text(["any", "completed", "failed"])
        assert page.locator("#status").input_value() == "completed", "also where the list of statuses is a new one"
        expect(shown).to_have_count(2)
        page.select_option("#metric", "test_accuracy")
        assert shown.locator(".metric").all_inner_texts() == ["0.9", "0.8"]
        page.click("#order")
        assert shown.locator(".metric").all_inner_texts() == ["0.8", "0.9"], "the lowest first"
        page.select_option("#metric", "")
        assert rows.locator("input").evaluate_all("boxes => boxes.map(box => box.value)") == [
            folder.name for folder in folders
        ], "in the order of the list again"
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.click("#compare")
        expect(page.locator(".kicker")).to_have_text("Comparison of 2 runs")
        page.go_back()
        expect(shown).to_have_count(2)
        assert page.locator("#status").input_value() == "completed"
        expect(page.locator("#compare")).to_have_text("Compare 2 runs")
        expect(page.locator("#compare")).to_be_enabled()
        page.click("#compare")
        page.get_by_role("link", name="All runs").click()
        expect(page.locator("#compare")).to_have_text("Compare 2 runs")
        page.fill("#search", "no such run")
        expect(page.locator("#found")).to_have_text("none of 3 runs: change the search or a filter")
    context.close()


def test_the_index_follows_the_metrics_of_what_runs(running: Any, training_lines: Callable[..., Any]) -> None:
    index = RunsPage(running.path.parent, lambda: [read_run_record(running.path)], read_run_record)
    index.page()
    events = index.events()
    assert [next(events)[0], next(events)[0]] == ["page", ""]
    running.write("jobs/train/outputs/metrics/metrics.jsonl", training_lines(range(10, 71, 10)))
    assert next(events)[0] == "page"


# Says again when a job was last heard of whenever the page has the true time from its server, until that is counted.
SILENT_SINCE = """([seconds, words, isLong]) => {
  const said = document.querySelector('#now time.said')
  if (said.dataset.seconds !== String(seconds) || said.dateTime !== said.dataset.since) {
    said.dateTime = said.dataset.since = new Date(Date.now() - 1000 * seconds).toISOString()
    said.dataset.seconds = seconds
    return false
  }
  return new RegExp(words).test(said.textContent) && said.classList.contains('long') === isLong
}"""


def test_what_runs_now_is_counted_on(open_live: Callable[..., Any], running: Any) -> None:
    """How long the run and each running job took so far, the attempt, how long it has been silent, its last line."""
    running.run["jobs"]["train"]["attempts"] = [
        {"started": "2026-11-20T22:17:05Z", "duration_s": 5.0, "exit_codes": {"0": 143}},
        {"started": "2026-11-20T22:17:12Z", "duration_s": None, "exit_codes": {}},
    ]
    logs = [f"jobs/train/user_logs/std_log_process_{rank}.txt" for rank in (0, 1)]
    spoken = [datetime(2026, 11, 20, 22, 18, second, tzinfo=timezone.utc) for second in (5, 35)]
    for log, moment in zip(logs, spoken, strict=True):
        os.utime(running.write(log, f"step {moment.second}/240\n"), (moment.timestamp(),) * 2)
    running.finish()

    (job,) = running_jobs(read_run_record(running.path), running.path)
    assert (job.name, job.attempt, job.last_line, job.said_at) == ("train", 2, "step 35/240", spoken[1])
    assert job.began == datetime(2026, 11, 20, 22, 17, 12, tzinfo=timezone.utc)

    page = open_live()
    hours = re.compile(r"^\d+ h \d\d min$")
    expect(page.locator("#head .tile time")).to_have_text(hours, timeout=PATIENCE_MS)
    for number, shown in enumerate((hours, "2", hours), start=1):
        expect(page.locator("#now tr[data-logs] > *").nth(number)).to_have_text(shown, timeout=PATIENCE_MS)
    assert page.locator("#now time.said.long").count() == 1, "a long silence stands out"
    expect(page.locator("#now .said td")).to_have_text("step 35/240")

    for seconds in (LONG_SILENCE_SECONDS - 60, LONG_SILENCE_SECONDS, 3 * 3600 + 20 * 60):
        in_words = [re.escape(duration(seconds + later)) for later in range(int(PATIENCE_MS / 1000))]
        is_long = seconds >= LONG_SILENCE_SECONDS
        page.wait_for_function(SILENT_SINCE, arg=[seconds, "|".join(in_words), is_long], timeout=PATIENCE_MS)

    page.locator("#job-train > summary").click()
    page.locator("#job-train details.log").first.locator("summary").click()
    expect(log_of(page, 0)).to_have_text("step 5/240", timeout=PATIENCE_MS)
    with (running.path / logs[0]).open("a") as log:
        log.write("step 80/240\n")
    expect(page.locator("#now .said td")).to_have_text("step 80/240", timeout=PATIENCE_MS)
    expect(page.locator("#now time.said")).to_have_text(re.compile(r"^\d+ s$"), timeout=PATIENCE_MS)


def test_a_chart_that_is_being_read_by_keyboard_is_still_read_after_an_update(
    open_live: Callable[..., Any], running: Any, training_lines: Callable[..., Any]
) -> None:
    page = open_live()
    page.locator("figure.chart > svg").first.focus()
    page.keyboard.press("ArrowRight")
    running.write("jobs/train/outputs/metrics/metrics.jsonl", training_lines(range(10, 241, 10)))
    expect(page.locator("path[data-series=training]").first).to_have_attribute("d", OF_24_POINTS, timeout=PATIENCE_MS)
    assert page.locator("figure.chart .readout").first.inner_text().startswith("step 10")
    page.keyboard.press("ArrowRight")
    assert page.locator("figure.chart .readout").first.inner_text().startswith("step 20")

    page.locator(".graph-wide [data-job=train]").focus()
    running.run["jobs"]["train"].update(status="completed", duration_s=36.1)
    running.finish()
    page.wait_for_selector(".graph-wide [data-job=train][data-state=completed]")
    assert page.evaluate("document.activeElement.dataset.job") == "train"


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_live_page_fits_the_screen(
    open_live: Callable[..., Any], screen: dict[str, int], color_scheme: str
) -> None:
    page = open_live(screen, color_scheme)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") == screen["width"]


def test_the_report_is_the_live_page_without_what_makes_it_live(running: Any) -> None:
    live = LivePage(running.path, lambda: read_run_record(running.path)).page().decode()
    frozen = write_report(running.path).read_text()
    for part in ("<style>", 'id="graph"', 'id="curves-train"', 'id="details"'):
        assert part in live
        assert part in frozen
    assert "EventSource" in live
    assert "EventSource" not in frozen
    assert "connect-src" not in frozen
    assert "what the step said" in frozen, "logs end with the report's last lines"


def ask(address: str, path: str | None = None, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """The status and body of an answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.request(method, path or parts.path, headers={"Host": host or parts.netloc})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_only_this_machine_and_only_with_the_token(address: str) -> None:
    parts = urlsplit(address)
    assert parts.hostname == "127.0.0.1"
    assert ask(address)[0] == 200
    assert ask(address, host=f"localhost:{parts.port}")[0] == 200
    for host in ("evil.example", f"evil.example:{parts.port}", "127.0.0.1", "127.0.0.1.evil.example"):
        assert ask(address, host=host) == (403, "unknown Host\n")
    for path in ("/", "/events", "/x/", "/run.json", parts.path[:-2] + "/"):
        assert ask(address, path) == (403, "the address lacks its token\n")


def test_an_address_without_its_last_slash_leads_to_the_page(address: str) -> None:
    with urlopen(address.removesuffix("/"), timeout=30) as answer:
        assert answer.url == address
        assert answer.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(address: str, method: str) -> None:
    assert ask(address, method=method)[0] == 405


def test_files_of_the_run_are_text_and_no_others_are_served(address: str, running: Any, tmp_path: Path) -> None:
    root = urlsplit(address).path
    (running.path / "jobs/train/outputs/evil.html").parent.mkdir(exist_ok=True)
    (running.path / "jobs/train/outputs/evil.html").write_text("<script>alert(1)</script>")
    (tmp_path / "secret").write_text("secret")
    (running.path / "link").symlink_to(tmp_path / "secret")

    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(address).port, timeout=30)
    connection.request("GET", f"{root}jobs/train/outputs/evil.html")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert json.loads(ask(address, f"{root}run.json")[1])["name"] == "brave-otter-7"
    assert "metrics/" in ask(address, f"{root}jobs/train/outputs")[1].splitlines()
    for path in ("../secret", "%2e%2e/secret", "link", "nothing", "..%2fsecret"):
        assert ask(address, root + path)[0] == 404


def test_serving_ends_with_130_on_ctrl_c(running: Any) -> None:
    running.run["status"] = "completed"
    running.finish()
    command = [sys.executable, "-m", "trainyard", "runs", "serve", str(running.path)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a terminal starts it: what runs in the background ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert ask(address)[0] == 200
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == "Ctrl-C ends the server\n", "no error: it was asked for"
    assert not os.path.exists(f"/proc/{process.pid}")


def test_a_port_that_is_taken_is_named(address: str, running: Any) -> None:
    port = urlsplit(address).port
    command = [sys.executable, "-m", "trainyard", "runs", "serve", str(running.path), "--port", str(port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"--port {port}: address already in use; choose another port" in ended.stderr
    live = LivePage(running.path, lambda: read_run_record(running.path))
    with pytest.raises(UsageError, match="--port 99999: expected 0 to 65535"), served(live, 99999):
        pass


def test_a_large_graph_names_the_pipelines_within_and_is_zoomed_and_fitted(
    open_page: Callable[..., Any], empty_run: Any
) -> None:
    empty_run.add_job("prepare")
    for region in range(12):
        for model in range(8):
            name = f"pipeline_of_region_{region:02}.train_a_gradient_boosting_model_{model}"
            empty_run.add_job(name, depends_on=["prepare"])
    page = open_page(write_report(empty_run.finish()))
    folded = page.locator("#graph .card > .graph-wide .node")
    assert folded.count() == 13
    folded.nth(4).click()
    assert page.locator("details[open] .graph-wide .node").count() == 8
    page.locator("#job-all-jobs summary").click()

    texts = page.locator("#job-all-jobs .graph-wide .node").evaluate_all(
        "all => all.map(node => [...node.querySelectorAll('text')].map(text => text.textContent).join('.'))"
    )
    assert "pipeline_of_region_03.train_a_gradient_boosting_model_5" in texts
    assert len(set(texts)) == 97
    is_within = """() => {
        const graph = document.querySelector("#job-all-jobs .graph-wide"), frame = graph.getBoundingClientRect();
        return [...graph.querySelectorAll(".node")].map(node => node.getBoundingClientRect())
            .every(box => box.right <= frame.right && box.bottom <= frame.bottom);
    }"""
    assert not page.evaluate(is_within)
    page.locator("#job-all-jobs .graph-wide .zoom button").click()
    assert page.evaluate(is_within)
    page.locator("#job-all-jobs .graph-wide .zoom input").fill("1")
    assert not page.evaluate(is_within)


def test_a_graph_of_200_jobs_is_readable_and_quick(open_page: Callable[..., Any], empty_run: Any) -> None:
    for layer in range(10):
        for number in range(20):
            sources = [f"layer_{layer - 1}_job_{(number + step) % 20}" for step in range(3)] if layer else []
            empty_run.add_job(f"layer_{layer}_job_{number}", depends_on=sources, duration_s=1.0)
    file = write_report(empty_run.finish())
    page = open_page(file)

    assert file.stat().st_size < 2_000_000
    assert page.locator(".graph-wide .node").count() == 200
    sizes = page.evaluate(
        """() => [...document.querySelectorAll(".graph-wide .node-name")].map(name => name.getBoundingClientRect())
            .map(box => [Math.round(box.height), box.left, box.right, box.top, box.bottom])"""
    )
    assert min(height for height, *_ in sizes) >= 12, "letters are not scaled down"
    assert page.evaluate("document.querySelector('.graph-wide').getBoundingClientRect().height") <= 900
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
