"""The page in a real browser, cut off from every network: what a person would see, hover over and print."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainyard.report.run_report import write_report

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def states_shown(page: Any) -> dict[str, str]:
    nodes = page.locator(".graph .node:visible")
    return {node.get_attribute("data-job"): node.locator(".node-state").inner_html() for node in nodes.all()}


def points_drawn(path: str) -> int:
    return len(re.findall("[ML]", path))


def overflow(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_the_graph_shows_each_job_with_its_state_in_words(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()))

    assert states_shown(page) == {
        "prepare": "reused, not run again",
        "train": "completed · 36.1 s",
        "evaluate": "completed · 4.6 s",
    }
    assert page.locator(".graph-wide .arrow").count() == 3
    boxes = {name: page.locator(f".graph-wide [data-job={name}]").bounding_box() for name in ("prepare", "train")}
    assert boxes["prepare"]["x"] + boxes["prepare"]["width"] < boxes["train"]["x"]


def test_every_state_has_its_own_colour_and_icon(open_page, make_wide_run) -> None:
    page = open_page(write_report(make_wide_run().finish()))

    shown = states_shown(page)
    assert len(shown) == 11
    assert {text.split(" ·")[0] for text in shown.values()} == {
        "completed", "reused, not run again", "failed", "canceled", "running", "waiting", "skipped",
    }  # fmt: skip
    nodes = page.locator(".graph-wide .node")
    signs = {node.get_attribute("data-state"): node.locator("use").get_attribute("href") for node in nodes.all()}
    assert signs == {state: f"#icon-{state}" for state in signs}
    assert all(page.locator(f"symbol{sign}").count() == 1 for sign in signs.values())


def test_the_curves_have_a_point_for_every_logged_step(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()))

    titles = page.locator("figure.chart figcaption strong").all_inner_texts()
    assert titles == ["Loss", "Accuracy", "Learning rate", "Gradient norm", "Samples per second"]
    loss = page.locator("figure.chart").first
    assert points_drawn(loss.locator("path[data-series=training]").get_attribute("d")) == 24
    assert points_drawn(loss.locator("path[data-series=validation]").get_attribute("d")) == 6
    assert loss.locator(":scope > svg circle.point.second").count() == 6


def test_the_curves_of_a_language_model_and_what_it_writes_are_shown(open_page, make_language_run) -> None:
    page = open_page(write_report(make_language_run().finish()))

    titles = page.locator("figure.chart figcaption strong").all_inner_texts()
    assert titles == [
        "Loss", "Perplexity", "Learning rate", "Gradient norm", "Tokens per second", "Seconds per step",
        "Seconds of own work", "Seconds waited for data",
    ]  # fmt: skip
    generated = page.locator(".generated")
    assert generated.inner_text().startswith("The <function> returns a new iterator.\nIt raises")
    assert generated.locator(".prompt").inner_text() == "The <function> returns"
    assert contrast(page, ".prompt") >= 4.5


def test_hovering_reads_out_the_values_of_that_step(open_page, make_digits_run, training_lines) -> None:
    page = open_page(write_report(make_digits_run().finish()))
    chart = page.locator("figure.chart").first
    readout = chart.locator(".readout")
    assert readout.is_hidden()

    svg = chart.locator(":scope > svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + box["height"] / 2)

    last = training_lines(range(10, 241, 10))[-1]
    assert readout.is_visible()
    text = " ".join(readout.inner_text().split())
    assert text.startswith("step 240")
    read = dict(re.findall(r"(training|validation) ([\d.]+)", text))
    assert float(read["training"]) == pytest.approx(last["loss"], rel=1e-4)
    assert float(read["validation"]) == pytest.approx(last["validation_loss"], rel=1e-4)
    assert chart.locator(".focus:visible").count() == 2

    page.mouse.move(5, 5)
    assert readout.is_hidden()


def test_a_step_without_validation_names_the_step_of_its_value(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()))
    chart = page.locator("figure.chart").first

    chart.locator(":scope > svg").focus()
    page.keyboard.press("ArrowRight")
    assert "step 10" in chart.locator(".readout").inner_text()
    assert "(step 40)" in chart.locator(".readout").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "step 30" in chart.locator(".readout").inner_text()
    page.keyboard.press("Escape")
    assert chart.locator(".readout").is_hidden()


def test_thinned_curves_have_a_readout_and_mark_what_is_not_finite(open_page, make_digits_run, training_lines) -> None:
    folder = make_digits_run()
    lines = training_lines(range(1, 10_001))
    lines[-1]["loss"] = float("nan")
    lines[4999]["grad_norm"] = 77.5
    folder.write("jobs/train/outputs/metrics/metrics.jsonl", lines)
    page = open_page(write_report(folder.finish()))

    chart = page.locator("figure.chart").first
    assert 300 < points_drawn(chart.locator("path[data-series=training]").get_attribute("d")) <= 600
    assert chart.locator(".not-finite").count() == 1
    chart.locator(":scope > svg").focus()
    page.keyboard.press("ArrowLeft")
    assert "training not finite" in chart.locator(".readout").inner_text()
    summary = page.locator("figure.chart svg[aria-label^='Gradient norm']").get_attribute("aria-label")
    assert "maximum 77.5" in summary


def test_the_confusion_matrix_and_its_classes_are_drawn(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()))

    assert page.locator(".heat .cell").count() == 100
    counts = [int(text) for text in page.locator(".heat .cell text").all_text_contents()]
    assert sum(counts) == 360
    rows = page.locator("#classes-evaluate tbody tr")
    assert rows.count() == 10
    assert rows.nth(8).inner_text().split("\t") == ["8", "100.0 %", "94.4 %", "97.1 %", "36"]


def test_a_click_on_a_job_opens_its_details(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()))
    details = page.locator("#job-train")
    assert not details.evaluate("element => element.open")

    page.locator(".graph-wide [data-job=train]").click()

    assert details.evaluate("element => element.open")
    assert details.locator("pre").first.inner_text().startswith("python -m trainyard.steps.train_ddp")


def test_a_long_path_in_a_failure_stays_in_its_box_on_a_phone(open_page, empty_run) -> None:
    path = f"/data/{'long_name' * 9}.safetensors"
    empty_run.add_job("train", status="failed", reason=f"FileNotFoundError: {path}", error_lines=[path])
    page = open_page(write_report(empty_run.finish()), PHONE)
    assert path in page.locator(".failure").first.inner_text()
    assert overflow(page) <= 0


def test_a_failed_job_is_open_and_its_last_lines_are_at_the_top(open_page, make_failed_run) -> None:
    page = open_page(write_report(make_failed_run().finish()))

    assert page.locator("#job-train").evaluate("element => element.open")
    failure = page.locator(".failure")
    assert "DataError: shard train-images-00000.bin" in failure.locator("pre").first.inner_text()
    assert failure.bounding_box()["y"] < WIDE["height"]


def test_on_a_phone_the_graph_is_tall(open_page, make_wide_run) -> None:
    page = open_page(write_report(make_wide_run().finish()), PHONE)
    assert page.locator(".graph-tall").is_visible()
    assert page.locator(".graph-wide").is_hidden()


def test_a_readout_stays_on_a_phones_screen(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()), PHONE)
    chart = page.locator("figure.chart").first
    svg = chart.locator(":scope > svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()

    for share in (0.15, 0.4, 0.6, 0.95):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + 40)
        readout = chart.locator(".readout").bounding_box()
        assert readout["x"] >= 0
        assert readout["x"] + readout["width"] <= PHONE["width"]
    assert overflow(page) == 0


def contrast(page: Any, selector: str) -> float:
    """WCAG's contrast of an element's text with the page or card behind it."""
    return page.evaluate(
        """selector => {
            const element = document.querySelector(selector);
            const channels = colour => colour.match(/[\\d.]+/g).map(Number);
            const luminance = colour => channels(colour).slice(0, 3)
                .map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
                .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
            let behind = element;
            const see = node => { const c = channels(getComputedStyle(node).backgroundColor); return c[3] === 0; };
            while (see(behind)) behind = behind.parentElement;
            const style = getComputedStyle(element);
            const text = luminance(element instanceof SVGElement ? style.fill : style.color);
            const ground = luminance(getComputedStyle(behind).backgroundColor);
            return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
        }""",
        selector,
    )


def test_text_can_be_read_in_light_and_dark(open_page, make_wide_run) -> None:
    page = open_page(write_report(make_wide_run().finish()))
    for color_scheme in ("light", "dark"):
        page.emulate_media(color_scheme=color_scheme)
        is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 23)"
        assert is_dark == (color_scheme == "dark")
        for selector in ("h1", ".soft", "h1 + p", ".failure a", ".notice"):
            assert contrast(page, selector) >= 4.5, selector
        for state in ("completed", "reused", "failed", "canceled", "running", "waiting", "skipped"):
            assert contrast(page, f".graph-wide .state-{state} .node-state") >= 4.5, state


def test_print_unfolds_every_job(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details:not([open])").count() == 0
    assert page.locator("#job-evaluate pre").first.is_visible()
    assert page.pdf()[:5] == b"%PDF-"

    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


def test_paper_is_white_in_dark_mode_too(open_page, make_digits_run) -> None:
    page = open_page(write_report(make_digits_run().finish()), color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert contrast(page, "h1") >= 4.5
    assert contrast(page, ".graph-wide .state-completed .node-state") >= 4.5


def test_script_in_a_name_is_text(open_page, empty_run) -> None:
    nasty = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
    empty_run.run["pipeline"] = nasty
    empty_run.add_job("train", status="failed", reason=nasty, error_lines=[nasty], command=nasty)

    page = open_page(write_report(empty_run.finish()))

    assert page.locator("h1").inner_text() == nasty
    assert "owned" not in page.title().replace(nasty, "")
    assert page.locator("img").count() == 0
