"""The page as it is written: what is on it, what is escaped, what happens to broken files."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import jinja2
import pytest

from trainyard.errors import UsageError
from trainyard.report import page_templates
from trainyard.report.run_report import write_report

MakeRun = Callable[[], Any]
VOID = {"meta", "link", "br", "img", "input"}


class PageReader(HTMLParser):
    """Collects text and links, and holds every tag to its closing one."""

    def __init__(self) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a":
            self.links.append(values["href"] or "")
        self.addresses += [values[name] or "" for name in ("href", "src", "action", "data") if name in values]
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags and self.open_tags[-1] not in ("script", "style"):
            self.text.append(data)


def read_page(file: Path) -> PageReader:
    reader = PageReader()
    reader.feed(file.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open_tags == []
    return reader


def text_of(file: Path) -> str:
    return " ".join(" ".join(read_page(file).text).split())


def test_a_completed_run_shows_its_results(make_digits_run: MakeRun) -> None:
    text = text_of(write_report(make_digits_run().finish()))

    assert "brave-otter-7 · started 20 Nov 2026, 22:17:05 UTC" in text
    assert "Test accuracy 98.6 % 360 samples" in text
    assert "Duration 41.3 s" in text
    assert "Jobs 3 of 3 completed, 1 reused" in text
    assert "reused, not run again" in text
    assert "32 (micro-batch) × 1 (accumulation) × 2 processes = 64 samples" in text
    assert "Most often confused: 8 predicted as 1 (2, 5.6 % of its class)" in text
    assert "train 1,294, validation 143, test 360 samples in 10 classes" in text
    assert "83,466 parameters" in text
    assert "torch 2.13.0" in text
    assert "max_steps null" in text


def test_a_language_model_is_described_by_perplexity_and_generated_text(make_language_run: MakeRun) -> None:
    page = write_report(make_language_run().finish())
    text = text_of(page)

    assert "Test perplexity 109.9 7,808 tokens" in text
    assert "Perplexity 109.9 , loss 4.7 , bits per byte 2.105 on the 61 samples, 7,808 tokens," in text
    assert "Generated text The <function> returns a new iterator. It raises TypeError" in text
    assert '<span class="prompt">The &lt;function&gt; returns</span> a new iterator.' in page.read_text("utf-8")
    assert "train 1,100, validation 58, test 61 samples of 128 tokens, with a vocabulary of 8,192" in text
    assert "Accuracy" not in text
    assert "Confusion matrix" not in text


def test_the_number_of_pairs_is_no_figure_of_how_well_they_were_judged(make_language_run: MakeRun) -> None:
    folder = make_language_run()
    figures = {"split": "test", "samples": 32, "pairs": 30, "loss": 0.61, "reward_accuracy": 0.75}
    document = {"format": "trainyard.evaluation/1", "task": "preferences", **figures}
    folder.write("jobs/evaluate/outputs/evaluation/evaluation.json", document)
    text = text_of(write_report(folder.finish()))

    assert "reward accuracy 75.0 %" in text
    assert "pairs" not in text


def test_the_speed_of_a_training_in_figures(make_language_run: MakeRun) -> None:
    text = text_of(write_report(make_language_run().finish()))

    for told in (
        "MFU 41.0 %",
        "median step 79 ms",
        "99th percentile 123 ms",
        "waited for data 0.5 %",
        "waited for checkpoints 100 ms",
        "slowest rank 1, takes 4.0 % longer than the others",
        "peak memory of a rank 3.0 GiB",
        "steps skipped 2",
        "checkpoints not saved 1",
    ):
        assert told in text
    assert re.search(r"tokens per second 5[01],\d{3}", text)
    assert "samples per second" not in text, "the same in a coarser unit"
    assert "loss spikes" not in text, "there were none"


def test_a_language_model_without_generated_text_has_figures(make_language_run: MakeRun) -> None:
    folder = make_language_run()
    evaluation = {"format": "trainyard.evaluation/1", "split": "test", "samples": 3, "perplexity": 20.0}
    folder.write("jobs/evaluate/outputs/evaluation/evaluation.json", evaluation)

    text = text_of(write_report(folder.finish()))

    assert "Perplexity 20 on the 3 samples of the split test" in text
    assert "Generated text" not in text


def test_an_input_names_the_job_that_wrote_it(make_digits_run: MakeRun) -> None:
    page = write_report(make_digits_run().finish()).read_text(encoding="utf-8")

    assert '<span class="origin">train.model</span> jobs/train/outputs/model' in page
    assert "<title>train → evaluate\nmodel → model</title>" in page


def test_an_absolute_input_path_is_traced_too(make_digits_run: MakeRun) -> None:
    folder = make_digits_run()
    folder.run["jobs"]["evaluate"]["inputs"]["model"] = str(folder.path / "jobs/train/outputs/model")

    page = write_report(folder.finish()).read_text(encoding="utf-8")

    assert '<span class="origin">train.model</span>' in page


def test_links_lead_to_files_beside_the_page(make_digits_run: MakeRun) -> None:
    folder = make_digits_run().finish()
    links = read_page(write_report(folder)).links

    files = [link for link in links if not link.startswith("#")]
    assert "jobs/train/user_logs/std_log_process_1.txt" in files
    assert all((folder / file).exists() for file in files if "user_logs" in file or file == "run.json")
    assert not any(file.startswith("/") or ":" in file for file in files)


def test_a_path_never_becomes_a_scheme(empty_run: Any) -> None:
    empty_run.add_job("train", outputs={"model": "javascript:alert(1)"}, logs=["data:text/html,x"])

    links = read_page(write_report(empty_run.finish())).links

    assert "javascript%3Aalert%281%29" in links
    assert not any(re.match(r"[a-z]+:", link) for link in links)
    assert not any(link.startswith("/") for link in links)


def test_nothing_is_loaded_from_elsewhere(make_failed_run: MakeRun) -> None:
    page = write_report(make_failed_run().finish())
    text = page.read_text(encoding="utf-8")

    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in text
    assert not any("//" in address for address in read_page(page).addresses)
    assert "@import" not in text
    assert "url(#arrow-wide)" in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#arrow-wide", "#arrow-tall"}


def test_a_failed_run_shows_the_reason_and_the_last_lines(make_failed_run: MakeRun) -> None:
    folder = make_failed_run()
    reason = folder.run["jobs"]["train"]["reason"]
    folder.run["jobs"]["train"]["attempts"][-1]["reason"] = reason
    folder.run["reason"] = f"train failed: {reason}"
    page = write_report(folder.finish())
    text = text_of(page)

    assert "train failed rank 1 ended with exit code 1 after 8.2 s; the other rank was ended" in text
    outside_graphs = re.sub(r"(?s)<title>.*?</title>", "", page.read_text())
    assert outside_graphs.count(reason) == 1
    assert "Last lines of rank 1: step 90 loss 0.4127 1,231 samples/s DataError: shard" in text
    assert "preempted: a checkpoint was committed" in text
    assert "0: -15, 1: 1" in text
    assert "Validation accuracy 98.3 % at step 80" in text
    assert "Evaluation" not in text


def test_a_running_run_has_a_page(make_wide_run: MakeRun) -> None:
    text = text_of(write_report(make_wide_run().finish()))

    assert "This run had not ended when this page was written" in text
    assert "Duration –" in text
    for state in ("completed", "reused", "failed", "canceled", "running", "waiting", "skipped"):
        assert f" {state} " in text
    assert "2 nodes × 8 = 16 processes" in text
    assert "Training" not in text
    assert "Sweep" not in text


def test_titles_are_display_names(empty_run: Any) -> None:
    """What is named twice keeps its name: `new_record` leaves ambiguous titles out."""
    empty_run.run["display_name"] = "Taxi fares"
    empty_run.add_job("train", display_name="Train the model", status="failed", reason="why")
    empty_run.add_job("score")
    text = text_of(write_report(empty_run.finish()))

    assert text.startswith("Taxi fares · ")
    assert "Run of the pipeline Taxi fares" in text
    assert "Train the model failed why" in text
    assert "Train the model train failed" in text, "details have the name for commands as well"
    assert "score completed" in text


def with_pipelines(empty_run: Any, each: int) -> Path:
    """A job, two pipelines of so many jobs one after the other, and a job of the first; one of the last fails."""
    empty_run.add_job("fetch")
    for pipeline, source in (("prepare", "fetch"), ("train", f"prepare.step_{each - 1}")):
        for step in range(each):
            empty_run.add_job(
                f"{pipeline}.step_{step}", depends_on=[source if step == 0 else f"{pipeline}.step_{step - 1}"]
            )
    empty_run.add_job("count", depends_on=["prepare.step_0"])
    empty_run.run["jobs"]["train.step_1"].update(status="failed", reason="why")
    folder: Path = empty_run.finish()
    return folder


def boxes_of(html: str) -> list[str]:
    return re.findall(r'class="node state-\w+" href="#job-([^"]+)"', html)


def test_pipelines_within_a_large_run_are_boxes_that_unfold(empty_run: Any) -> None:
    html = write_report(with_pipelines(empty_run, each=10)).read_text()

    folded, prepare, train, everything = re.split(r'<details id="job-(?:prepare|train|all-jobs)">', html)
    wide_and_tall = 2 * ["fetch", "prepare", "train", "count"]
    assert boxes_of(folded) == wide_and_tall
    assert folded.count('class="node state-failed" href="#job-train"') == 2
    assert folded.count(">10 jobs</text>") == 4
    assert boxes_of(prepare) == 2 * [f"prepare.step_{step}" for step in range(10)]
    assert "<summary>prepare: 10 jobs</summary>" in prepare
    assert boxes_of(train) == 2 * [f"train.step_{step}" for step in range(10)]
    assert len(boxes_of(everything)) == 2 * 22
    tooltips = re.findall(r"<title>([^<]+ → [^<]+)</title>", folded)
    assert sorted(set(tooltips)) == ["fetch → prepare", "prepare → count", "prepare → train"]


def test_a_small_run_is_not_folded(empty_run: Any) -> None:
    html = write_report(with_pipelines(empty_run, each=3)).read_text()

    assert "all-jobs" not in html
    assert len(boxes_of(html)) == 2 * 8


def test_pipelines_that_wait_for_each_other_are_drawn_unfolded(empty_run: Any) -> None:
    folder = with_pipelines(empty_run, each=10)
    empty_run.run["jobs"]["prepare.step_9"]["depends_on"].append("between")
    empty_run.add_job("between", depends_on=["prepare.step_0"])
    empty_run.finish()

    html = write_report(folder).read_text()

    assert len(boxes_of(html.partition('<details id="job-all-jobs">')[2])) == 2 * 23


def test_a_page_compiles_no_template_that_was_compiled_before(
    make_wide_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_source = jinja2.Environment._compile
    monkeypatch.setattr(
        jinja2.Environment,
        "_compile",
        lambda templates, source, file: compiled.append(file) or compile_source(templates, source, file),
    )
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    run = make_wide_run().finish()
    Path(cache_from_source(page_templates.__file__)).parent.mkdir(parents=True)
    page_templates.page_templates.cache_clear()
    first = write_report(run).read_text()
    assert compiled

    compiled.clear()
    page_templates.page_templates.cache_clear()  # as in another process
    assert write_report(run).read_text() == first
    assert not compiled


def test_a_canceled_run_without_jobs_has_a_page_too(empty_run: Any) -> None:
    empty_run.run.update(
        status="canceled", duration_s=None, reason="the runner was ended", notes=["no cache: --no-cache"]
    )

    text = text_of(write_report(empty_run.finish()))

    assert "This run was canceled." in text
    assert "the runner was ended" in text
    assert "no cache: --no-cache" in text
    assert "This run has no jobs" in text


def test_without_an_evaluation_the_last_loss_is_the_headline(empty_run: Any) -> None:
    empty_run.add_job("train", outputs={"metrics": "jobs/train/outputs/metrics"})
    empty_run.write(
        "jobs/train/outputs/metrics/metrics.jsonl", [{"step": 10, "loss": 2.0}, {"step": 1200, "loss": 0.25}]
    )

    assert "Training loss 0.25 at step 1,200" in text_of(write_report(empty_run.finish()))


def test_users_text_is_escaped(empty_run: Any) -> None:
    nasty = "</script></pre><script>alert('x')</script>\"'&{{ 7 * 7 }}"
    empty_run.run.update(pipeline=nasty, inputs={nasty: nasty}, notes=[nasty])
    empty_run.add_job(
        "train",
        status="failed",
        component=nasty,
        command=nasty,
        environment=nasty,
        inputs={nasty: nasty},
        outputs={nasty: "jobs/train/outputs/metrics"},
        logs=[nasty],
        reason=nasty,
        reuse=nasty,
        error_lines=[nasty],
        attempts=[{"started": "2026-11-20T22:17:05Z", "duration_s": 1.0, "exit_codes": {nasty: 1}, "reason": nasty}],
    )
    empty_run.write("jobs/train/outputs/metrics/metrics.jsonl", [{"step": 1, "loss": 1.0, nasty: 1.0}])
    empty_run.write(
        "jobs/train/outputs/metrics/confusion_matrix.json",
        {"format": "trainyard.confusion_matrix/1", "classes": [nasty, "b"], "matrix": [[1, 1], [0, 2]]},
    )

    page = write_report(empty_run.finish())

    assert "<script>alert" not in page.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8").count("<script") == 2  # the page's own, and the points of one chart
    assert nasty in "".join(read_page(page).text)


def test_values_that_are_not_numbers_break_nothing(make_digits_run: MakeRun, training_lines: Callable) -> None:
    folder = make_digits_run()
    lines = training_lines(range(10, 241, 10))
    lines[3]["loss"], lines[7]["loss"], lines[9]["loss"], lines[11]["loss"] = math.nan, math.inf, 1e308, 10**400
    lines[5]["grad_norm"] = "oops"
    lines[6]["samples_per_second"] = True
    folder.write("jobs/train/outputs/metrics/metrics.jsonl", lines)

    page = write_report(folder.finish()).read_text(encoding="utf-8")

    assert "4 values not finite, marked ×" in page
    charts = [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    assert charts[0]["series"][0]["values"].count(None) == 4
    assert "NaN" not in "".join(re.findall(r' d="[^"]*"', page))
    assert not any(number in page for number in ("Infinity", ">nan<", ">inf<"))


def test_a_training_of_nothing_but_nan_still_has_axes(empty_run: Any) -> None:
    empty_run.add_job("train", outputs={"metrics": "metrics"})
    empty_run.write("metrics/metrics.jsonl", [{"step": step, "loss": math.nan} for step in range(3)])

    text = text_of(write_report(empty_run.finish()))

    assert "3 values not finite" in text
    assert "Training loss not finite at step 2" in text


def test_a_half_written_last_line_is_ignored(make_digits_run: MakeRun) -> None:
    folder = make_digits_run()
    file = folder.path / "jobs/train/outputs/metrics/metrics.jsonl"
    file.write_bytes(file.read_bytes() + b'{"step": 250, "loss": 0.0\xc3')

    text = text_of(write_report(folder.finish()))

    assert "could not be read" not in text


def test_broken_lines_in_the_middle_are_counted(make_digits_run: MakeRun) -> None:
    folder = make_digits_run()
    folder.write(
        "jobs/train/outputs/metrics/metrics.jsonl",
        '{"step": 1, "loss": 2}\n{"step": 2, "l\n[]\n{"loss": 2}\n{"step": NaN, "loss": 1}\n\n{"step": 3, "loss": 1}\n',
    )

    assert "4 lines of metrics.jsonl could not be read" in text_of(write_report(folder.finish()))


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("settings.json", '{"format": "trainyard.set', "settings.json could not be read: it is not valid JSON."),
        ("settings.json", '{"format": "trainyard.settings/2"}', "its format is trainyard.settings/2"),
        ("settings.json", '{"format": "trainyard.settings/1"}', "is not a valid trainyard.settings/1"),
        ("evaluation.json", '{"format": "trainyard.evaluation/1", "split": 1}', "evaluation.json is ignored"),
        (
            "evaluation.json",
            '{"format": "trainyard.evaluation/1", "split": "test", "samples": 1, "sample": "text"}',
            "evaluation.json is ignored",
        ),
        (
            "manifest.json",
            '{"format": "trainyard.dataset/1", "splits": {}, "text": {"vocabulary_size": 9}}',
            "manifest.json is ignored",
        ),
        (
            "confusion_matrix.json",
            '{"format": "trainyard.confusion_matrix/1", "classes": ["a", "b"], "matrix": [[1]]}',
            "confusion_matrix.json is ignored",
        ),
    ],
)
def test_a_damaged_result_becomes_a_note(empty_run: Any, name: str, content: str, note: str) -> None:
    empty_run.add_job("train", outputs={"metrics": "metrics"})
    empty_run.write(f"metrics/{name}", content)

    assert note in text_of(write_report(empty_run.finish()))


@pytest.mark.parametrize("content", ['{"settings": {}}', "[1, 2]", '{"format": 7}', '{"format": "tensorboard/1"}'])
def test_files_of_other_tools_are_ignored(empty_run: Any, content: str) -> None:
    empty_run.add_job("train", outputs={"metrics": "metrics"})
    empty_run.write("metrics/settings.json", content)
    empty_run.write("metrics/metrics.jsonl", "")

    text = text_of(write_report(empty_run.finish()))

    assert "ignored" not in text
    assert "could not be read" not in text


def test_a_matrix_of_many_classes_is_described_in_words(empty_run: Any) -> None:
    classes = [f"class {number}" for number in range(130)]
    matrix = [[9 if row == column else 0 for column in range(130)] for row in range(130)]
    matrix[4][7] = 3
    empty_run.add_job("evaluate", outputs={"evaluation": "evaluation"})
    empty_run.write(
        "evaluation/confusion_matrix.json",
        {"format": "trainyard.confusion_matrix/1", "classes": classes, "matrix": matrix},
    )

    text = text_of(write_report(empty_run.finish()))

    assert "The confusion matrix of 130 classes is too large to draw" in text
    assert "class 4 predicted as class 7 (3, 25.0 % of its class)" in text


def test_the_same_files_give_the_same_page(make_failed_run: MakeRun) -> None:
    folder = make_failed_run().finish()
    first = write_report(folder).read_bytes()

    assert write_report(folder).read_bytes() == first
    assert sorted(file.name for file in folder.iterdir()) == ["jobs", "report.html", "run.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"run\.json: cannot be read \(No such file or directory\); is .* the folder of a run\?"),
        ("{", r"run\.json: invalid JSON: "),
        ("[]", r"run\.json: unknown format None; this version of Trainyard reads 'trainyard\.run/1'"),
        ('{"format": "trainyard.run/2"}', r"unknown format 'trainyard\.run/2'"),
        ('{"format": "trainyard.run/1", "name": "x", "jobs": {}}', r"invalid trainyard\.run/1: run lacks 'pipeline'"),
        (
            '{"format": "trainyard.run/1", "name": "x", "pipeline": "p", "status": "failed", "jobs": []}',
            r"invalid trainyard\.run/1: expected an object 'jobs'",
        ),
    ],
)
def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content, encoding="utf-8")

    with pytest.raises(UsageError, match=message) as raised:
        write_report(tmp_path)

    assert isinstance(raised.value, UsageError)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report.html").exists()


def test_jobs_in_a_cycle_are_refused(empty_run: Any) -> None:
    empty_run.add_job("one", depends_on=["two"])
    empty_run.add_job("two", depends_on=["one"])

    with pytest.raises(UsageError, match="jobs wait for each other: one -> two -> one"):
        write_report(empty_run.finish())


def test_a_page_that_cannot_be_written_leaves_nothing_behind(make_digits_run: MakeRun) -> None:
    folder = make_digits_run().finish()
    (folder / "report.html").mkdir()

    with pytest.raises(OSError, match=r"report\.html"):
        write_report(folder)

    assert sorted(file.name for file in folder.iterdir()) == ["jobs", "report.html", "run.json"]


def test_ten_thousand_steps_take_little_more_than_parsing(make_digits_run: MakeRun, training_lines: Callable) -> None:
    """A few times as long as parsing their JSON alone, however slow the machine."""
    folder = make_digits_run()
    folder.write("jobs/train/outputs/metrics/metrics.jsonl", training_lines(range(1, 10_001)))
    folder.finish()
    lines = (folder.path / "jobs/train/outputs/metrics/metrics.jsonl").read_text().splitlines()

    def processor_seconds(work: Callable[[], object]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    def parse() -> None:
        for line in lines:
            json.loads(line)

    pairs = [(processor_seconds(lambda: write_report(folder.path)), processor_seconds(parse)) for _ in range(5)]
    ratio = min(report for report, _ in pairs) / min(parsing for _, parsing in pairs)
    assert ratio < 12
    assert (folder.path / "report.html").stat().st_size < 400_000


def test_trials_of_a_sweep_are_listed_with_the_best(empty_run: Any) -> None:
    ends = [
        ("completed", 0.1, 0.75, None),
        ("completed", 0.01, 0.5, None),
        ("failed", 1.0, None, "loss is not finite"),
    ]
    trials = [
        {
            "number": number,
            "status": status,
            "inputs": {"learning_rate": rate},
            "metric": metric,
            "metric_name": "validation_loss",
            "is_best": number == 1,
            "reason": reason,
            "folder": f"trials/{number}",
            "duration_s": 1.5,
        }
        for number, (status, rate, metric, reason) in enumerate(ends)
    ]
    empty_run.add_job("search", trials=trials)
    text = text_of(write_report(empty_run.finish()))
    assert "Sweep search 3 of 3, 1 failed, best 0.5 by trial 1" in text
    expected = (
        "Trial learning_rate validation_loss Time Status 1 0.01 0.5 1.5 s completed best 0 0.1 0.75 1.5 s completed"
    )
    assert expected in text
    assert "2 1 – 1.5 s failed loss is not finite" in text


def test_a_sweep_is_drawn_by_its_parameters(empty_run: Any, open_page: Callable[..., Any]) -> None:
    """A line for each trial that has ended, on a logarithmic, a linear and a named axis; a point for each measured."""
    drawn = [(10.0**-number, number % 3 + 1, ("relu", "gelu")[number % 2]) for number in range(6)]
    trials = [
        {
            "number": number,
            "inputs": {"rate": rate, "layers": layers, "activation": name},
            "metric": None if number == 5 else abs(number - 3) / 10,
            "metric_name": "loss",
            "status": "failed" if number == 5 else "completed",
            "is_best": number == 3,
        }
        for number, (rate, layers, name) in enumerate(drawn)
    ]
    trials.append({"number": 6, "inputs": {"rate": 1.0, "layers": 1, "activation": "tanh"}, "status": "running"})
    empty_run.add_job("search", trials=trials)
    page = open_page(write_report(empty_run.finish()))

    assert page.locator(".coordinates .axis-name").all_text_contents() == ["rate", "layers", "activation", "loss"]
    assert page.locator(".coordinates g.trial").count() == 6
    assert "trial 3, the best" in page.locator(".coordinates g.trial.best title").text_content()
    places = (
        page.locator(".plot")
        .first.locator("circle")
        .evaluate_all("all => all.map(at => Number(at.getAttribute('cx')))")
    )
    steps = {round(high - low) for low, high in itertools.pairwise(sorted(places))}
    assert len(places) == 5
    assert max(steps) - min(steps) <= 1, "powers of ten are equally far apart"
    assert page.locator(".trials tbody tr").count() == 7


def test_the_last_lines_of_logs_are_on_the_page_as_plain_text(empty_run: Any) -> None:
    empty_run.add_job("train", processes_per_node=2, logs=["a.txt", "b.txt"])
    empty_run.write("a.txt", "".join(f"line {number}\n" for number in range(100)))
    empty_run.write("b.txt", "\x1b[31m<b>red</b>\x1b[0m\n" + "x" * 5000)
    page = write_report(empty_run.finish()).read_text()

    assert "line 99" in page
    assert "line 70" in page
    assert "line 69" not in page
    assert "&lt;b&gt;red&lt;/b&gt;" in page
    assert "x" * 301 not in page
    assert "Log of rank 1" in page


def test_a_job_that_logs_no_metrics_shows_the_end_of_what_it_printed(empty_run: Any) -> None:
    empty_run.add_job("train", logs=["std_log.txt"])
    empty_run.write("std_log.txt", "epoch 3: loss 0.2\n")
    page = write_report(empty_run.finish()).read_text()

    assert 'id="job-train" open>' in page
    assert '<details class="more log" open>' in page
    assert "mlflow.log_metric" in page

    empty_run.add_job("evaluate", outputs={"evaluation": "evaluation"})
    empty_run.write("evaluation/evaluation.json", {"format": "trainyard.evaluation/1", "split": "test", "samples": 1})
    assert "mlflow.log_metric" not in write_report(empty_run.finish()).read_text(), "a pipeline has more to show"


def test_wrongly_classified_samples_are_counted_and_shown(make_full_run: MakeRun) -> None:
    folder = make_full_run()
    page = write_report(folder.finish())
    text = text_of(page)
    assert "The 24 of 31 that the model was most sure of, among the first 360 samples." in text
    assert "99.0 % sure" in text
    assert page.read_text().count('src="data:image/png;base64,') == 24

    mistakes = folder.path / "jobs/evaluate/outputs/evaluation/mistakes.json"
    document = json.loads(mistakes.read_text())
    document.update(found=2, samples=document["samples"][:2])
    document["samples"][1]["file"] = "../../../../run.json"  # not a file of the evaluation
    mistakes.write_text(json.dumps(document))
    page = write_report(folder.finish())
    assert page.read_text().count('src="data:image/png;base64,') == 1


def test_the_size_of_the_page_is_bounded(make_full_run: MakeRun, training_lines: Callable[..., Any]) -> None:
    folder = make_full_run()
    folder.write("jobs/train/outputs/metrics/metrics.jsonl", training_lines(range(1, 50_001)))
    log = folder.path / "jobs/train/user_logs/std_log_process_0.txt"
    log.write_text("".join(f"{number} {'x' * 1000}\n" for number in range(10_000)))
    assert write_report(folder.finish()).stat().st_size < 1_000_000
