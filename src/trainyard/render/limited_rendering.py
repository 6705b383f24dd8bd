"""Rendering in a process of its own, with limits on time, memory and output: for whoever checks a stranger's templates.

Only the author's own `trainyard render` renders without it. The process is asked and answers in JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError
from trainyard.project_files import limit_reading, root_of
from trainyard.render import rules
from trainyard.render.profiles import load_profile
from trainyard.render.project import Project
from trainyard.render.rendered_files import rendered_for
from trainyard.render.rendering import RenderedFile, Rendering, render
from trainyard.render.source_maps import LineSource, SourceMap
from trainyard.resources import PACKAGE
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError

CPU_SECONDS = 5
MEMORY_BYTES = 2 * 2**30
OUTPUT_BYTES = 64 * 2**20
WALL_SECONDS = 120
"""Only for a process that waits, since a busy machine may give it little of its time."""

_INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "SYSTEMROOT")
_NO_MEMORY = "memory"


def render_limited(
    project: Project,
    profile_name: str | None = None,
    settings: Mapping[str, object] | None = None,
    out: Path | None = None,
    *,
    only: Collection[str] | None = None,
    with_sources: bool = False,
) -> Rendering:
    """Do as `render`, in a process of its own; SpecError names the template at which a limit was reached.

    `only` are the templates that are rendered, if not all. The files have source maps only `with_sources`.
    """
    root = (out or project.root).resolve()
    name, all_settings = rendered_for(project, root, profile_name, settings)
    profile = load_profile(project, name, all_settings)
    request = {
        "project": str(project.root),
        "profile": name,
        "settings": all_settings,
        "out": str(root),
        "only": None if only is None else list(only),
        "with_sources": with_sources,
    }
    answer = _answer(project, request)
    if "usage" in answer:
        raise UsageError(answer["usage"])
    if "diagnostics" in answer:
        raise SpecError([_read_diagnostic(*each) for each in answer["diagnostics"]])
    files = [_read_file(**each) for each in answer["files"]]
    return Rendering(project, profile, root, {file.path: file for file in files})


def _answer(project: Project, request: Mapping[str, object]) -> dict[str, Any]:
    """Return the last line that the process prints; each one before names the template that it begins."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-B", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=PACKAGE.parent,  # `-m` looks for modules here first, and never in the project
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    guard = threading.Timer(WALL_SECONDS, process.kill)
    guard.daemon = True  # Ctrl-C while it starts leaves it running; the end does not wait for it
    guard.start()
    try:
        with process.stdin:
            process.stdin.write(json.dumps(request, default=str).encode())
        printed = process.stdout.read(OUTPUT_BYTES + 1)
        if len(printed) > OUTPUT_BYTES:
            process.kill()
        errors = process.stderr.read(OUTPUT_BYTES)
        exit_code = process.wait()
    finally:
        guard.cancel()
        process.kill()
        process.stdout.close()
        process.stderr.close()
        process.wait()
    lines = [line for line in printed.split(b"\n") if line]
    begun = [json.loads(line)["begins"] for line in lines[-2:] if line.startswith(b'{"begins"')]
    template = project.templates / begun[-1] if begun else project.templates
    if len(printed) > OUTPUT_BYTES:
        raise SpecError(_too_much(template, f"more than {OUTPUT_BYTES // 2**20} MiB of text"))
    if exit_code == 0:
        answer: dict[str, Any] = json.loads(lines[-1])
        if _NO_MEMORY in answer:
            raise SpecError(_too_much(template, f"more than {MEMORY_BYTES // 2**30} GiB of memory"))
        return answer
    if exit_code < 0:
        raise SpecError(_too_much(template, f"more than {CPU_SECONDS} seconds of processor time"))
    raise AssertionError(f"rendering ended with exit code {exit_code}: {errors.decode(errors='replace')}")


def _too_much(template: Path, what: str) -> Diagnostic:
    hint = "Only `trainyard render PROFILE` renders without limits: look for a loop or a repetition."
    return rules.TEMPLATE_FAILED.at(Span(template), f"rendering it takes {what}", hint=hint)


def _told_file(file: RenderedFile, with_sources: bool) -> dict[str, object]:
    source_map = file.source_map if with_sources else SourceMap((), 1)
    return {"path": file.path, "text": file.text, "template": file.template, **vars(source_map)}


def _read_file(path: str, text: str, template: str, lines: list[Any], first_line: int) -> RenderedFile:
    sources = (
        LineSource(_read_span(template) if template else None, tuple(map(_read_span, profile)))
        for template, profile in lines
    )
    source_map = SourceMap(tuple(sources), first_line)
    return RenderedFile(Path(path), text, template, lambda: source_map)


def _read_diagnostic(span: list[Any], *facts: Any) -> Diagnostic:
    found = Diagnostic(_read_span(span), *facts)
    return found._replace(related=tuple(Related(_read_span(place), message) for place, message in found.related))


def _read_span(told: Sequence[Any]) -> Span:
    file, *numbers = told
    return Span(Path(file), *numbers)


def _limit_this_process() -> None:
    if sys.platform == "win32":
        return
    import resource

    for which, most in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (most, most))


def _say(line: Mapping[str, object]) -> None:
    print(json.dumps(line, default=str), flush=True)


def _render_as_asked(request: Mapping[str, Any]) -> dict[str, object]:
    try:
        rendering = render(
            Project(Path(request["project"])),
            request["profile"],
            request["settings"],
            Path(request["out"]),
            only=request["only"],
            begins=lambda template: _say({"begins": template}),
        )
        return {"files": [_told_file(file, request["with_sources"]) for file in rendering.files.values()]}
    except UsageError as error:
        return {"usage": str(error)}
    except SpecError as error:
        return {"diagnostics": error.diagnostics}
    except MemoryError:
        return {_NO_MEMORY: True}


if __name__ == "__main__":
    _limit_this_process()
    asked = json.load(sys.stdin)
    limit_reading(root_of([Path(asked["project"])]), Path(asked["out"]))
    _say(_render_as_asked(asked))
