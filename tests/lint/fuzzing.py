"""Spoils real files at random, and sees that the linter ends in diagnostics: no other exception, none that hangs.

Everything comes from one seed and a number, so that `replay(number)` makes the same file again.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trainyard.lint.fingerprints import Fingerprints
from trainyard.lint.fixes import apply
from trainyard.lint.linter import lint
from trainyard.lint.machine_output import as_github, as_json, as_sarif
from trainyard.lint.rules.linting import CHECK_FAILED
from trainyard.lint.text_output import as_text
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.loading import load_component, load_job
from trainyard.spec.resolution import Resolution
from trainyard.spec.yaml_parsing import source_lines

ROOT = Path(__file__).parents[2]
SEED = 20261121
LIMIT_SECONDS = 2.0
# Where a file may wait for something outside of this process, its own time says nothing.
LIMIT_OF_WAITING_SECONDS = 60.0
PROJECTS = (*sorted((ROOT / "tests" / "lint" / "projects").iterdir()), ROOT / "tests" / "spec" / "data" / "project")
RENDERED = ("components", "pipelines", "environments", "compute", "profiles")

TOKENS = [
    *("null", "[]", "{}", "[1, {a: b}]", "3.5", "-1", "true", "no", "''", "&a", "*a", "!!x ", "!!int ", "- ", "? "),
    *(": ", ":", "---\n", "...\n", "<<: *a", "%YAML 1.1\n", "@", "`", "|\n", ">-\n", "|9\n", "{", "}", "[", "]", ","),
    *("${{", "}}", "${{}}", "$[[", "]]", "${{inputs}}", "${{inputs.a}}", "${{outputs.a.b}}", "${{parent.jobs.a.b}}"),
    *("${{parent.jobs.train.outputs.model}}", "${{parent.inputs.x}}", "${{search_space.a}}", "${{name}}"),
    *("azureml:", "azureml:a:1", "azureml:a@latest", "azureml://registries/a/b", "file:", "file:..", ".", "..", "/"),
    *("/dev/null", "git+https://x", "https://x", "~", "a" * 300, "999" * 40, "2020-01-01", ".nan", "-.inf", "0o9"),
    *("1", "01", "+2", "2.5"),
    *("0x1F", "1_000", "1:30", "1e999", "'", '"', "\\", "#", " # trainyard: ignore[AML101]", "# trainyard: ignore["),
    *("\t", "\0", "\x07", "\x1b[31m", "\x7f", "\x85", "\xa0", "é", "名", "\u2028", "\u202e", "\ufeff", "\r", "\n"),
    *("python -m a.b", "torchrun", "mpirun -np 8", "deepspeed --num_gpus 8 x.py", "&& curl x | sh", "`x`", "$(x)"),
    *("type: pipeline", "type: command", "type: sweep", "jobs:", "component:", "trial:", "inputs:", "distribution:"),
    *("Standard_ND96asr_v4", "Standard_NC6", "low_priority", "process_count_per_instance: 0", "instance_count: 1e9"),
]  # fmt: skip


@dataclass(frozen=True)
class Seeds:
    """Copies of real projects, one file of which is spoilt at a time, and what all of them hold."""

    files: tuple[Path, ...]
    contents: dict[Path, bytes]
    values: tuple[str, ...]


def plant(folder: Path) -> Seeds:
    """Copy the seeds into a folder."""
    for project in PROJECTS:
        shutil.copytree(project, folder / project.name)
    for name in RENDERED:
        shutil.copytree(ROOT / name, folder / "rendered" / name)
    (folder / "rendered" / "src").mkdir()
    files = tuple(sorted(path for path in folder.rglob("*.y*ml") if path.is_file()))
    contents = {file: file.read_bytes() for file in files}
    lines = {line for content in contents.values() for line in content.decode().splitlines()}
    return Seeds(files, contents, tuple(sorted(line.partition(": ")[2] for line in lines if ": " in line)))


def spoilt(seeds: Seeds, number: int) -> tuple[Path, bytes]:
    """The `number`-th spoilt file: which it is, and what it holds."""
    chance = random.Random(f"{SEED}/{number}")
    file = chance.choice(seeds.files)
    content = seeds.contents[file]
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        mutate = chance.choice((_by_line, _by_line, _by_token, _by_token, _by_value, _by_block, _by_byte))
        content = mutate(content, chance, seeds)
    return file, content


def check(seeds: Seeds, number: int) -> None:
    """Lint the `number`-th spoilt file and write its findings in every form. Raises what must not be raised."""
    file, content = spoilt(seeds, number)
    file.write_bytes(content)
    try:
        with _limited():
            _check(file, content, thoroughly=number % 5 == 0)
    except BaseException as error:
        error.args = (*error.args, f"replay with: python {Path(__file__).name} {number}")
        raise
    finally:
        file.write_bytes(seeds.contents[file])


def _check(file: Path, content: bytes, *, thoroughly: bool) -> None:
    found = lint([file]).diagnostics
    last_line = len(source_lines(content.decode("utf-8", errors="replace"))) + 1
    for diagnostic in found:
        span = diagnostic.span
        assert diagnostic.rule != CHECK_FAILED.id, diagnostic
        assert span.line >= 1, diagnostic
        assert span.column >= 1, diagnostic
        assert (span.line, span.column) <= (span.end_line, span.end_column), diagnostic
        assert span.file != file or span.line <= last_line, diagnostic
        assert diagnostic.message, diagnostic
        assert not set("\n\r") & set(diagnostic.message + diagnostic.hint), diagnostic
        assert len(diagnostic.message) < 500, diagnostic
        assert len(diagnostic.hint) < 1000, diagnostic
    text = as_text(found, colour=False, relative_to=file.parent)
    assert not set(text) & set("\x1b\x07\r\u202e")
    if not thoroughly:
        return
    for write in (as_json, as_sarif, as_github):
        write(found, relative_to=file.parent)
    list(Fingerprints(file.parent).of_all(found))
    with contextlib.suppress(UnicodeDecodeError):
        apply(content.decode("utf-8"), [diagnostic for diagnostic in found if diagnostic.span.file == file])
    with contextlib.suppress(SpecError):
        Resolution(load_job(file, strict=True)).order()
    with contextlib.suppress(SpecError):
        load_component(file)


class TookTooLong(BaseException):
    """A file that the linter did not finish; the traceback says where it was."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise TookTooLong in what takes more of the processor's time than a file may, or waits forever."""

    def stop(number: int, _: FrameType | None) -> None:
        raise TookTooLong(signal.Signals(number).name)

    before = {which: signal.signal(which, stop) for which in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_OF_WAITING_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for which, handler in before.items():
            signal.signal(which, handler)


# Ways to spoil a file


def _on_lines(content: bytes, change: Callable[[list[str]], None]) -> bytes:
    lines = content.decode("utf-8", errors="surrogateescape").split("\n")
    change(lines)
    return "\n".join(lines).encode("utf-8", errors="surrogateescape")


def _by_line(content: bytes, chance: random.Random, seeds: Seeds) -> bytes:
    def change(lines: list[str]) -> None:
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        what = chance.choice(("drop", "double", "indent", "swap", "join", "comment"))
        if what == "drop":
            del lines[at]
        elif what == "double":
            lines.insert(other, lines[at])
        elif what == "indent":
            lines[at] = " " * chance.randrange(12) + lines[at].lstrip()
        elif what == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif what == "join":
            lines[at : at + 2] = [" ".join(lines[at : at + 2])]
        else:
            lines[at] += "  # trainyard: ignore[AML101]"
        lines or lines.append("")

    return _on_lines(content, change)


def _by_token(content: bytes, chance: random.Random, seeds: Seeds) -> bytes:
    def change(lines: list[str]) -> None:
        at = chance.randrange(len(lines))
        line, token = lines[at], chance.choice(TOKENS)
        what = chance.choice(("value", "key", "insert", "replace"))
        if what == "value":
            lines[at] = line.split(":")[0] + ": " + token
        elif what == "key":
            lines[at] = token + ":" + line.partition(":")[2]
        else:
            start = chance.randrange(len(line) + 1)
            end = start if what == "insert" else min(len(line), start + chance.randrange(1, 12))
            lines[at] = line[:start] + token + line[end:]

    return _on_lines(content, change)


def _by_value(content: bytes, chance: random.Random, seeds: Seeds) -> bytes:
    """A value of one file in another's place."""

    def change(lines: list[str]) -> None:
        having = [at for at, line in enumerate(lines) if ": " in line] or [0]
        at = chance.choice(having)
        lines[at] = lines[at].partition(": ")[0] + ": " + chance.choice(seeds.values)

    return _on_lines(content, change)


def _by_block(content: bytes, chance: random.Random, seeds: Seeds) -> bytes:
    """Several lines of this or another file, moved, taken out, or put in deeper."""

    def change(lines: list[str]) -> None:
        source = lines
        if chance.random() < 0.3:
            other = seeds.contents[chance.choice(seeds.files)]
            source = other.decode("utf-8", errors="surrogateescape").split("\n")
        start = chance.randrange(len(source))
        block = source[start : start + chance.randrange(1, 12)]
        if source is lines and chance.random() < 0.5:
            del lines[start : start + len(block)]
        if chance.random() < 0.7:
            indent = " " * chance.choice((0, 0, 2, 4))
            at = chance.randrange(len(lines) + 1)
            lines[at:at] = [indent + line for line in block]

    return _on_lines(content, change)


def _by_byte(content: bytes, chance: random.Random, seeds: Seeds) -> bytes:
    spoiled = bytearray(content or b"\n")
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(spoiled) or 1)
        what = chance.choice(("flip", "random", "insert", "drop", "cut", "repeat"))
        if what == "flip" and spoiled:
            spoiled[at] ^= 1 << chance.randrange(8)
        elif what == "random" and spoiled:
            spoiled[at] = chance.randrange(256)
        elif what == "insert":
            spoiled[at:at] = chance.randbytes(chance.randrange(1, 5))
        elif what == "drop":
            del spoiled[at : at + chance.randrange(1, 40)]
        elif what == "cut" and chance.random() < 0.2:
            del spoiled[at:]
        elif what == "repeat":
            spoiled[at:at] = spoiled[at : at + chance.randrange(1, 30)] * chance.randrange(1, 60)
    return bytes(spoiled)


def main() -> None:
    """Make one spoilt file again, show it, and lint it."""
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        seeds = plant(Path(folder))
        number = int(sys.argv[1])
        file, content = spoilt(seeds, number)
        print(f"# {file.relative_to(folder)}\n{content.decode('utf-8', errors='backslashreplace')}")
        check(seeds, number)


if __name__ == "__main__":
    main()
