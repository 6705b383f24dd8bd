"""Report and comparison on a laptop and a phone, light and dark: nothing overlaps, all text can be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.catalogue.skus import find_sku
from trainyard.plan.difference import PlanDifference
from trainyard.plan.estimate.config_file import find_model
from trainyard.plan.estimate.estimator import estimate
from trainyard.plan.estimate.training import machines_of_sku
from trainyard.plan.pipeline_settings import Change
from trainyard.plan.planner import plan
from trainyard.plan.reporters import OnProfile
from trainyard.plan.training_jobs import Stated
from trainyard.report.comparison import compare, write_comparison
from trainyard.report.plan_page import as_html, difference_as_html
from trainyard.report.run_report import write_report
from trainyard.settings.run_record import read_run_record
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Span
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job

ROOT = Path(__file__).parents[2]

LAPTOP, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 860}

TEXTS = """() => {
    // Every piece of visible text: its words, its box, its colour and the colour behind it.
    const channels = colour => { const c = colour.match(/[\\d.]+/g).map(Number); return c.length < 4 ? [...c, 1] : c; };
    const over = (top, share, below) => top.slice(0, 3).map((c, i) => c * share + below[i] * (1 - share));
    const ground = node => {
        const layers = [];
        for (let at = node; at; at = at.parentElement) {
            const colour = channels(getComputedStyle(at).backgroundColor);
            if (colour[3] > 0) layers.push(colour);
            if (colour[3] === 1) break;
        }
        return layers.reverse().reduce((below, layer) => over(layer, layer[3], below), [255, 255, 255]);
    };
    const behind = element => {
        const rect = element.closest("g.cell, a.node")?.querySelector("rect");
        if (!rect) return ground(element);
        const style = getComputedStyle(rect);
        const below = element.closest("g.cell")
            ? channels(getComputedStyle(document.querySelector(".heat-ground")).fill) : ground(element);
        return over(channels(style.fill), Number(style.fillOpacity), below);
    };
    const luminance = rgb => rgb.slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const found = [];
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.data.trim() || element.closest("script, title, template, style")) continue;
        if (!element.checkVisibility({ visibilityProperty: true })) continue;
        const style = getComputedStyle(element);
        const text = channels(element instanceof SVGElement ? style.fill : style.color);
        const [a, b] = [luminance(text), luminance(behind(element))];
        const range = document.createRange();
        range.selectNodeContents(node);
        const rotated = Boolean(element.getAttribute("transform")?.includes("rotate"));
        for (const box of range.getClientRects()) {
            // A part that is scrolled out of its frame is not on the screen.
            const frame = element.closest("pre, .scroll, .graph, .heat")?.getBoundingClientRect();
            const left = Math.max(box.left, frame?.left ?? -1e9), right = Math.min(box.right, frame?.right ?? 1e9);
            const top = Math.max(box.top, frame?.top ?? -1e9), bottom = Math.min(box.bottom, frame?.bottom ?? 1e9);
            if (right - left < 1 || bottom - top < 1 || rotated) continue;
            found.push({ text: node.data.trim().slice(0, 40), left, right, top, bottom,
                contrast: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) });
        }
    }
    return found;
}"""

BOXES = """() => [...document.querySelectorAll("section, .tile, .card, figure, details.job, footer, .failure")]
    .filter(element => element.checkVisibility())
    .map((element, index, all) => {
        const { left, right, top, bottom } = element.getBoundingClientRect();
        return { name: `${element.tagName}.${element.className} ${element.id}`, left, right, top, bottom,
            within: all.map((other, at) => at).filter(at => at !== index && all[at].contains(element)) };
    })"""


def overlap(first: dict[str, Any], second: dict[str, Any], tolerance: float) -> bool:
    width = min(first["right"], second["right"]) - max(first["left"], second["left"])
    height = min(first["bottom"], second["bottom"]) - max(first["top"], second["top"])
    return bool(width > tolerance and height > tolerance)


def overlapping_texts(texts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Texts that cover each other by more than the leading of a line."""
    texts = sorted(texts, key=lambda text: float(text["top"]))
    found = []
    for index, text in enumerate(texts):
        for other in texts[index + 1 :]:
            if other["top"] > text["bottom"]:
                break
            if overlap(text, other, tolerance=6):
                found.append((text["text"], other["text"]))
    return found


@pytest.fixture
def comparison_page(make_run_to_compare: Callable[..., Any], tmp_path: Path) -> Path:
    folders = [make_run_to_compare(letter) for letter in "ABC"]
    file = tmp_path / "comparison.html"
    write_comparison(compare([read_run_record(folder) for folder in folders]), file)
    return file


@pytest.fixture
def plan_page(tmp_path: Path) -> Path:
    """The plan of a pipeline that trains, with a base model that is large enough to see the parts of its memory."""
    file = tmp_path / "plan.html"
    pipeline = load_job(ROOT / "pipelines" / "finetune.yaml", strict=True)
    planned = plan(pipeline, Computes(DocumentStore()), Stated(find_model("llama-3.2-1b")))
    found = next(job.estimate for job in planned.jobs if job.estimate is not None)
    machines = {
        size: machines_of_sku(find_sku(f"Standard_{size}"), 2) for size in ("ND96isr_MI300X_v5", "NC64as_T4_v3")
    }
    profiles = [
        OnProfile(size, "train", estimate(replace(found.training, machines=each))) for size, each in machines.items()
    ]
    file.write_text(as_html(planned, pipeline, profiles), encoding="utf-8")
    return file


@pytest.fixture
def difference_page(tmp_path: Path) -> Path:
    """What changes in a pipeline whose model is replaced by a larger one, which no longer fits."""
    file = tmp_path / "difference.html"
    pipeline = load_job(ROOT / "pipelines" / "finetune.yaml", strict=True)
    before, after = (
        plan(pipeline, Computes(DocumentStore()), Stated(find_model(f"llama-3.{name}"))) for name in ("2-1b", "1-70b")
    )
    place = Span(ROOT / "profiles" / "nd96-h100.yaml", 12, 5, 12, 15)
    changes = (
        Change("inputs.base_model", ("train_fsdp",), "azureml:llama-3.2-1b:1", "azureml:llama-3.1-70b:1", place),
    )
    difference = PlanDifference(before, after, "main (0123abc)", changes)
    file.write_text(difference_as_html(difference), encoding="utf-8")
    return file


@pytest.fixture(params=["digits", "full", "language", "failed", "wide", "comparison", "plan", "difference"])
def page_file(request: pytest.FixtureRequest) -> Path:
    if request.param in ("comparison", "plan", "difference"):
        file: Path = request.getfixturevalue(f"{request.param}_page")
        return file
    return write_report(request.getfixturevalue(f"make_{request.param}_run")().finish())


def test_nothing_overlaps_and_all_text_can_be_read(open_page: Callable[..., Any], page_file: Path) -> None:
    """On both screens in both modes: one page loaded again for each, as a new one takes a process to start."""
    page = open_page(page_file)
    for screen, color_scheme in itertools.product((LAPTOP, PHONE), ("light", "dark")):
        page.set_viewport_size(screen)
        page.emulate_media(color_scheme=color_scheme)
        page.reload()
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
        check_layout(page, screen)


def check_layout(page: Any, screen: dict[str, int]) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == screen["width"], screen
    texts = page.evaluate(TEXTS)
    assert len(texts) > 40
    assert overlapping_texts(texts) == []
    assert [text for text in texts if text["contrast"] < 4.5] == []
    attempts = (
        "[...document.querySelectorAll('.attempts')].map(table => table.offsetWidth - table.parentElement.offsetWidth)"
    )
    assert max(page.evaluate(attempts), default=0) <= 0, "attempts are read without scrolling sideways"
    if screen is LAPTOP:
        hidden = "[...document.querySelectorAll('#profiles .scroll')].map(each => each.scrollWidth - each.clientWidth)"
        assert max(page.evaluate(hidden), default=0) <= 0, "profiles are compared without scrolling sideways"
    boxes = page.evaluate(BOXES)
    assert all(box["left"] >= 0 and box["right"] <= screen["width"] for box in boxes)
    assert [
        (first["name"], second["name"])
        for index, first in enumerate(boxes)
        for at, second in enumerate(boxes[:index])
        if at not in first["within"] and index not in second["within"] and overlap(first, second, tolerance=0.5)
    ] == []


def test_the_report_can_be_read_by_keyboard(open_page: Callable[..., Any], make_digits_run: Callable[..., Any]) -> None:
    page = open_page(write_report(make_digits_run().finish()), PHONE)
    reached = tab_through(page)

    assert {"a.node", "svg", "summary"} <= set(reached)
    page.locator(".graph-tall [data-job=train]").focus()
    page.keyboard.press("Enter")
    assert page.locator("#job-train").evaluate("element => element.open")
    page.locator("#job-evaluate > summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#job-evaluate").evaluate("element => element.open")


def test_the_comparison_can_be_read_by_keyboard(open_page: Callable[..., Any], comparison_page: Path) -> None:
    page = open_page(comparison_page, LAPTOP)
    reached = tab_through(page)

    assert reached[:3] == ["a.mono", "a.mono", "a.mono"]
    assert reached.count("svg") == page.locator("figure.chart").count() == 3
    page.locator("figure.chart > svg").first.focus()
    page.keyboard.press("ArrowLeft")
    shown = " ".join(page.locator("figure.chart .readout").first.inner_text().split())
    assert all(f" {letter} " in shown for letter in "ABC")


def tab_through(page: Any) -> list[str]:
    """What Tab reaches in order, each with a visible outline."""
    reached = []
    for _ in range(200):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
                const at = document.activeElement, style = getComputedStyle(at);
                const name = at.tagName.toLowerCase() + (at.classList.length ? "." + at.classList[0] : "");
                return [name, at === document.body ? "" : style.outlineStyle];
            }"""
        )
        if name == "body":
            return reached
        assert outline != "none", name
        reached.append(name)
    raise AssertionError("Tab never left the page")
