"""Which of the mistakes planted by the linter's tests three programs find: ours, Microsoft's client, a schema checker.

    python benchmarks/lint_comparison.py

Each mistake is planted alone into a copy of its project. A program *flags* it when it prints a message that it does not
print for the clean project; *on the line* when that names the line of the mistake. azure-ai-ml loads and validates the
changed file and every pipeline of the project; check-jsonschema gets this repository's schemas, and since it names
paths (`$.jobs.train`) and no lines, the line that its path leads to counts. Writes docs/lint_comparison.md, the table
in README.md and benchmarks/results/lint_comparison.json.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import multiprocessing
import re
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import check_jsonschema
from click.testing import CliRunner

from results import save_results
from trainyard.lint.config import LintSettings
from trainyard.lint.linter import lint
from trainyard.lint.rules import RULES
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import read_document
from trainyard.spec.file_kinds import Kind, kind_of
from trainyard.spec.schema_checks import bundled_schema, schema_of

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "lint_comparison.md"
README = ROOT / "README.md"
PROGRAMS = ("trainyard lint", "azure-ai-ml", "check-jsonschema")
FAMILIES = {
    "0": "the file and its YAML",
    "1": "keys",
    "2": "bindings",
    "3": "types of what is passed",
    "4": "references",
    "5": "the script, safety",
    "6": "machines and arithmetic",
    "7": "DeepSpeed",
}


@dataclass(frozen=True)
class Said:
    """One message of a program, and the places that it names."""

    text: str
    places: frozenset[tuple[str, int]] = field(default_factory=frozenset)


Programme = Callable[[Path, Path], list[Said]]
"""Returns a program's messages about a project, of which one file (the second argument) was changed."""


def planted() -> list[Any]:
    """Every mistake of the linter's tests."""
    spec = importlib.util.spec_from_file_location("planted_mistakes", ROOT / "tests" / "lint" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return list(module.mistakes())


def ours(project: Path, _: Path) -> list[Said]:
    """Return message and hint of each finding of `trainyard lint --pedantic`."""
    return [
        Said(
            f"{each.message} {each.hint}".strip(),
            frozenset(
                {(str(each.span.file), each.span.line), *((str(r.span.file), r.span.line) for r in each.related)}
            ),
        )
        for each in lint([project], LintSettings(pedantic=True)).diagnostics
    ]


def kind_in(file: Path) -> Kind | None:
    try:
        return kind_of(read_document(file))
    except SpecError:
        return None


def clients(project: Path, spoilt: Path) -> list[Said]:
    """Return what azure-ai-ml raises on loading, and what its validation finds."""
    pipelines = [file for file in sorted(project.rglob("*.y*ml")) if kind_in(file) == "pipeline"]
    own = [spoilt] if spoilt.suffix in (".yaml", ".yml") else []
    return [said for file in dict.fromkeys([*own, *pipelines]) for said in _loaded(file)]


def _loaded(file: Path) -> Iterator[Said]:
    import azure.ai.ml as azure_ml

    kind = kind_in(file) or ("component" if file.parent.name == "components" else "pipeline")
    load = getattr(azure_ml, f"load_{kind.removeprefix('pipeline_')}", azure_ml.load_job)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            loaded: Any = load(file)
            found = loaded._validate(raise_error=False)._to_dict() if hasattr(loaded, "_validate") else {}
        except Exception as error:
            yield Said(str(error), _lines_named(str(error), file))
            return
    for each in [*found.get("errors", []), *found.get("warnings", [])]:
        text = f"{each.get('path', '')}: {each.get('message', '')} {each.get('location', '')}"
        yield Said(text, _lines_named(text, file))


def _lines_named(text: str, file: Path) -> frozenset[tuple[str, int]]:
    files = re.findall(r"(/[^\s#\"']+\.ya?ml)", text) or [str(file)]
    return frozenset((str(Path(name)), int(line)) for name in files for line in re.findall(r"line (\d+)", text))


def schema_checkers(project: Path, spoilt: Path) -> list[Said]:
    """Return what check-jsonschema prints for every file that has a schema."""
    by_schema: dict[str, list[Path]] = {}
    for file in sorted(project.rglob("*.y*ml")):
        kind = kind_in(file) if file != spoilt else kind_in(file) or "component"
        name = schema_of(kind) if kind is not None else None
        if name is not None:
            by_schema.setdefault(name, []).append(file)
    wanted = {name: files for name, files in by_schema.items() if spoilt in files}
    return [said for name, files in wanted.items() for said in _checked(name, [spoilt], project)]


def _checked(name: str, files: Iterable[Path], project: Path) -> Iterator[Said]:
    schema = project.parent / f"{name}.schema.json"
    schema.write_text(json.dumps(bundled_schema(name)), encoding="utf-8")
    arguments = ["--schemafile", str(schema), "--output-format", "json", *map(str, files)]
    report = json.loads(CliRunner().invoke(check_jsonschema.main, arguments).stdout)
    for error in report.get("errors", []):
        yield Said(f"{error['path']}: {error['message']}", _line_of_path(Path(error["filename"]), error["path"]))
    for error in report.get("parse_errors", []):
        yield Said(error["message"], _lines_named(error["message"], Path(error["filename"])))


def _line_of_path(file: Path, path: str) -> frozenset[tuple[str, int]]:
    """Return the lines of the key and of the value that a path like `$.jobs.train.inputs[2]` leads to."""
    steps = [int(index) if index else name for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path)]
    with contextlib.suppress(SpecError, KeyError, IndexError):
        document = read_document(file)
        spans = (document.node_at(steps).span, document.key_span(steps))
        return frozenset((str(file), span.line) for span in spans)
    return frozenset()


PROGRAMMES: dict[str, Programme] = dict(zip(PROGRAMS, (ours, clients, schema_checkers), strict=True))


@dataclass(frozen=True)
class Judgement:
    """What a program made of one mistake: whether it said something, on the line, and in how many characters."""

    flagged: bool
    on_line: bool
    characters: int


@dataclass
class Tally:
    """The results of one program on a group of mistakes."""

    mistakes: int = 0
    flagged: int = 0
    on_line: int = 0
    lengths: list[int] = field(default_factory=list)

    def count(self, judgement: Judgement) -> None:
        self.mistakes += 1
        self.flagged += judgement.flagged
        self.on_line += judgement.on_line
        if judgement.flagged:
            self.lengths.append(judgement.characters)


# Messages of each program about a clean project, which do not count.
_SAID_OF_CLEAN: dict[tuple[str, str, str], set[str]] = {}


def judge(mistake: Any, program: Programme) -> Judgement:
    """Plant one mistake, and run one program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = mistake.copy_project(folder)
        spoilt = project / mistake.file
        key = (program.__name__, mistake.project, mistake.file)
        if key not in _SAID_OF_CLEAN:
            _SAID_OF_CLEAN[key] = {_without_places(said.text, project) for said in program(project, spoilt)}
        before = _SAID_OF_CLEAN[key]
        file, line, _ = mistake.plant(project)
        said = [each for each in program(project, spoilt) if _without_places(each.text, project) not in before]
        on_line = [each for each in said if (str(file), line) in each.places]
        return Judgement(bool(said), bool(on_line), len((on_line or said)[0].text) if said else 0)


# Set before processes are forked: mistakes are of a module that no process could import by name.
_MISTAKES: list[Any] = []


def judged(number: int) -> dict[str, Judgement]:
    """Return what each program makes of one of the mistakes."""
    return {name: judge(_MISTAKES[number], program) for name, program in PROGRAMMES.items()}


def _without_places(text: str, project: Path) -> str:
    return re.sub(r"line \d+|column \d+", "", text.replace(str(project), ""))


def row(name: str, tallies: dict[str, Tally]) -> str:
    cells = [name, str(tallies[PROGRAMS[0]].mistakes)]
    for program in PROGRAMS:
        tally = tallies[program]
        cells += [str(tally.flagged), str(tally.on_line)]
    return f"| {' | '.join(cells)} |"


def document(by_family: dict[str, dict[str, Tally]], total: dict[str, Tally], versions: dict[str, str]) -> str:
    """Return the text of docs/lint_comparison.md."""
    names = [f"{program} {versions.get(program, '')}".strip() for program in PROGRAMS]
    lines = [
        "# What a linter, a client and a schema say of the same mistakes",
        "",
        "Made by `python benchmarks/lint_comparison.py`: do not edit.",
        "",
        f"{total[PROGRAMS[0]].mistakes} mistakes (tests/lint/mistakes/), each planted alone into a clean project. The",
        "client loads and validates the spoilt file and every pipeline of the project; the schema checker has this",
        "repository's schemas, and what its path leads to counts as its line. Lint runs with `--pedantic`: only then",
        "are local data that is missing (AML404) and assets that move with a label (AML410) reported.",
        "",
        "Only mistakes that lint finds are planted, so that its own columns say that none is lost, not how much it",
        "finds. That was measured on 2026-11-24: of 233 mistakes written down without the rules in view, lint flagged",
        "217 on their line (93 %), which are planted since; on 2026-11-27, of 114 others, it flagged 99 (87 %), and 9",
        "of the other 15 since; of 138 more on that day, half of them in scripts, 93 (67 %), and 25 of the others",
        "since; of 40 more, most in Dockerfiles, scripts and commands, 16 (40 %), and 3 of the others since; and of 78",
        "more, most in scripts of several processes, containers, deployments and commands, 51 (65 %), and 12 of the",
        "others since: together 476 of 603 (79 %) at first.",
        "",
        "| mistakes in | planted | " + " | ".join(f"{name}: flagged | on the line" for name in names) + " |",
        "|---|--:|" + "--:|--:|" * len(PROGRAMS),
        *(row(FAMILIES.get(family, family), tallies) for family, tallies in sorted(by_family.items())),
        row("**all**", total),
        "",
        "| | " + " | ".join(names) + " |",
        "|---|" + "--:|" * len(PROGRAMS),
        "| characters of a message, median | " + " | ".join(_median(total[name].lengths) for name in PROGRAMS) + " |",
        "",
    ]
    return "\n".join(lines)


def readme(text: str, total: dict[str, Tally]) -> str:
    """Return the text of README.md with these figures in its table."""
    text = re.sub(r"We planted \d+ mistakes", f"We planted {total[PROGRAMS[0]].mistakes} mistakes", text)
    for program, tally in total.items():
        row = rf"(\| \**{program}[^|]*\| \**)\d+(\** \| \**)\d+(\** \|\n)"
        text, found = re.subn(row, rf"\g<1>{tally.flagged}\g<2>{tally.on_line}\g<3>", text)
        assert found == 1, program
    return text


def _median(lengths: list[int]) -> str:
    return f"{statistics.median(lengths):.0f}" if lengths else "–"


def main() -> int:
    logging.disable(logging.CRITICAL)
    mistakes = planted()
    _MISTAKES[:] = mistakes
    by_family: dict[str, dict[str, Tally]] = {}
    total = {program: Tally() for program in PROGRAMS}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as processes:
        judgements = processes.map(judged, range(len(mistakes)), chunksize=10)
        for number, (mistake, by_program) in enumerate(zip(mistakes, judgements, strict=True), start=1):
            family = by_family.setdefault(mistake.rule[3], {program: Tally() for program in PROGRAMS})
            for name, judgement in by_program.items():
                family[name].count(judgement)
                total[name].count(judgement)
            print(f"\r{number} of {len(mistakes)}", end="", file=sys.stderr)
    versions = {name: importlib.metadata.version(name) for name in PROGRAMS[1:]}
    text = document(by_family, total, versions)
    DOCUMENT.write_text(text, encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), total), encoding="utf-8")
    figures = {
        name: {
            "mistakes": tally.mistakes,
            "flagged": tally.flagged,
            "on_line": tally.on_line,
            "median_characters": statistics.median(tally.lengths),
        }
        for name, tally in total.items()
    }
    save_results("lint_comparison", {"peers": versions, "programs": figures, "rules": len(RULES)})
    print(f"\n{text}")
    return int(total[PROGRAMS[0]].flagged < len(mistakes) or total[PROGRAMS[0]].on_line < 0.98 * len(mistakes))


if __name__ == "__main__":
    sys.exit(main())
