"""The documents are true: generated pages, links, a line for every dependency."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from trainyard.settings.steps import STEP_CONFIGS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[!s]*/*.md")]


def test_the_page_of_the_steps_has_not_drifted() -> None:
    steps_page = runpy.run_path(str(ROOT / "docs" / "generate.py"))["steps_page"]
    assert (ROOT / "docs" / "steps.md").read_text(encoding="utf-8") == steps_page()


def test_the_picture_of_the_packages_has_not_drifted() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_packages.py"))["page"]
    assert (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8") == page()


def test_the_table_of_what_engines_support_is_what_they_refuse() -> None:
    generated = runpy.run_path(str(ROOT / "docs" / "generate_support.py"))
    assert (ROOT / "docs" / "support.md").read_text(encoding="utf-8") == generated["page"]()
    steps, features, refusal = (generated[name] for name in ("STEPS", "FEATURES", "refusal"))
    assert steps.keys() == {name for name in STEP_CONFIGS if name.startswith("train_")}
    assert refusal(steps["train_ddp"], features["LoRA"]) == ""
    assert "cannot shard 4-bit weights" in refusal(steps["train_fsdp"], features["QLoRA"])
    assert refusal(steps["train_tensorflow"], features["EMA"]) is None


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory, forked_python: Path) -> Path:
    """The dataset of docs/own_task.md."""
    dataset = tmp_path_factory.mktemp("dataset") / "waves"
    subprocess.run([forked_python, ROOT / "docs/own_task/forecasting.py", dataset], check=True, timeout=600)
    return dataset


@pytest.mark.parametrize(
    ("step", "flags"),
    [
        ("train_fsdp", ("--tuning", "qlora")),
        ("train_deepspeed", ("--tuning", "lora", "--deepspeed-config", "components/deepspeed/zero2.json")),
        ("train_lightning", ("--ema-decay", "0.9")),
    ],
)
def test_a_step_refuses_what_the_table_says(
    step: str, flags: tuple[str, ...], waves: Path, tmp_path: Path, forked_python: Path
) -> None:
    places = [word for name in ("model", "checkpoints", "metrics") for word in (f"--{name}", str(tmp_path / name))]
    command = [forked_python, "-m", f"trainyard.steps.{step}", "--data", waves, *places, *flags]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert refused.returncode == 1
    reasons = re.findall(r"^\d+\. (.*)", (ROOT / "docs/support.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert any(reason.replace("0.999", "0.9") in refused.stderr for reason in reasons), refused.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def test_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    files = {file.relative_to(ROOT).as_posix() for file in ROOT.glob("*/**/*.py") if ".venv" not in file.parts}
    assert len(named) > 40
    assert {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)} == set()


def test_every_dependency_has_its_line_and_its_pin() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = pyproject.split("[project]")[1].split("[project.scripts]")[0]
    quoted = re.findall(r'^\s+"([a-zA-Z][\w-]*)(?:[<>=].*)?",', project, flags=re.MULTILINE)
    quoted += re.findall(r'"(azure-[\w-]+)>=', project)
    names = {name.lower() for name in quoted if name != "trainyard"}
    assert {"click", "torch", "pytest", "azure-ai-ml", "hypothesis"} <= names
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    assert {name for name in names if name not in page} == set()
    assert {name for name in names if f"\n{name}==" not in pins} == set()


def test_readme_shows_what_its_first_command_prints() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_readme.py"))["page"]
    assert README.read_text(encoding="utf-8") == page()
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 110


def test_the_plans_of_preparing_terabytes_follow_from_what_is_measured() -> None:
    """By hand for 1 TB: what is counted per document is what a signature really has, and the rest is arithmetic."""
    from trainyard.steps.data.at_scale.signatures import SignatureBuilder

    computed = runpy.run_path(str(ROOT / "docs" / "generate_prepare_at_scale.py"))
    assert (ROOT / "docs" / "prepare_at_scale.md").read_text(encoding="utf-8") == computed["page"]()

    builder = SignatureBuilder(shingle_words=5, minhash_values=128)
    builder.add("a document of more than five words")
    signature = builder.finish()
    bands, signature_bytes = computed["defaults"]()
    assert (signature_bytes, bands.count) == (len(signature.values), len(bands.of(signature.values)))

    plan = computed["Plan"](10**12, 16)
    assert plan.documents == 250e6
    of_documents = {volume.what: volume.document_bytes for volume in computed["volumes"]()}
    assert of_documents["tokens, to their shards"] * plan.documents == pytest.approx(0.7e12 / 4.4 * 2)
    assert of_documents["signatures, to the pairs to compare, twice"] == 2 * (16 + 8 + 512 + 8)
    assert plan.core_hours == pytest.approx((1e12 / 3e6 + 0.7e12 / 1.5e6) / 3600)
    assert plan.hours == pytest.approx(plan.core_hours / (16 * 8) + plan.shuffled_bytes / (16 * 100e6) / 3600)
    assert plan.dollars == pytest.approx(17 * plan.hours * 0.504)
    assert plan.driver_gigabytes == pytest.approx(250e6 * 0.3 * 8 / 1e9)
    assert computed["least_executors"](10**12) == 16
    assert plan.kept_bytes + plan.shuffled_bytes < 16 * 0.8 * 128 * 2**30


def test_every_pipeline_and_step_is_named_to_newcomers() -> None:
    """Pipelines in README's table; both in the changelog; each step on the page that is made of their settings."""
    readme, changelog, steps = (
        (ROOT / name).read_text("utf-8") for name in ("README.md", "CHANGELOG.md", "docs/steps.md")
    )
    table = "\n".join(re.findall(r"^\| (`.*?) \|", readme.split("| Pipelines |")[1].split("\n\n")[0], re.MULTILINE))
    pipelines = {file.stem for file in (ROOT / "pipelines").glob("*.yaml")}
    assert set(re.findall(r"`(\w+)`", table)) == pipelines
    assert {name for name in pipelines | set(STEP_CONFIGS) if f"`{name}`" not in changelog} == set()
    assert {name for name in STEP_CONFIGS if f"## {name}" not in steps} == set()


def test_the_readme_compares_linters_as_the_benchmark_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "benchmarks" / "results" / "lint_comparison.json").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| \**([a-z-]+(?: lint)?)[^|]*\| \**(\d+)\** \| \**(\d+)\** \|$", readme, re.MULTILINE)
    figures = measured["programs"]
    assert rows == [(name, str(each["flagged"]), str(each["on_line"])) for name, each in figures.items()]
    (mistakes,) = {each["mistakes"] for each in figures.values()}
    assert f"We planted {mistakes} mistakes in clean projects" in readme
