"""Docker images: names that no image can have, and what a Dockerfile says that Docker cannot do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintContext, LintedFile, check, known_words
from trainyard.lint.rules.shell_text import redirected_versions
from trainyard.project_files import names_in, read_text
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, one_slip_from, only_close
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import shorten
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import simple_commands

_REGISTRIES = frozenset(("mcr.microsoft.com", "docker.io", "nvcr.io", "ghcr.io", "gcr.io", "quay.io", "public.ecr.aws"))
_INSTRUCTIONS: list[str] = known_words("dockerfile")
_VERBS: dict[str, list[str]] = known_words("package_managers")
_MAKES_FILES = regex(
    r"\b(?:git\b[^&|;]{0,80}\b(?:clone|pull|checkout|fetch|init|lfs|submodule|archive|restore|reset)|curl|wget|tee|cp|mv|"
    r"cat|tar|unzip|pip-compile|poetry|uv)\b|>"
)
_STARTS_BASH = regex(r"\b(?:bash|bashrc|zsh|conda\.sh|hook)\b")
_PLAIN_NAME = regex(r"(?:\./)?[\w-][\w./-]*")
# Neither the PATH that the image has, perhaps on a line below, nor the folders of its programs.
_NEW_PATH = regex(r"\s*PATH[ =][\"']?(?!.*\$)(?!.*(?<![\w/])(?:/usr)?/bin\b)(/[^\s\"']*)")
_INSTRUCTION = regex(r"([A-Za-z]+)(?=\s|$)")


IMAGE_NAME = Rule("AML419", "image-name", "error", is_let_pass=True).explained(
    summary="No image can have this name: capitals in its path, or a registry that is misspelt.",
    why="The client sends the name as it is, and the first job fails when the machine pulls the image. Docker takes "
    "capitals in tags and hosts only.",
)


@check("file")
def _image_name(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for environment in file.environments:
        image = environment.find_text("image")
        if image is None or set(image.text) & set("${< "):
            continue
        name, slash, rest = image.text.partition("@")[0].partition("/")
        is_host = bool(slash) and ("." in name or ":" in name or name == "localhost")
        path = (rest if is_host else f"{name}{slash}{rest}").rpartition("/")
        lowered = f"{path[0]}{path[1]}{path[2].split(':')[0]}"
        meant = one_slip_from(name.lower(), _REGISTRIES) if is_host and name.lower() not in _REGISTRIES else None
        if path[2].count(":") > 1:
            message = f"an image has one tag, and '{shorten(path[2])}' has {path[2].count(':')}"
            yield IMAGE_NAME.at(image.span, message, "Remove one of them.")
        elif lowered != lowered.lower():
            right = image.text.replace(lowered, lowered.lower())
            message = f"an image's name has no capitals: '{shorten(lowered)}'"
            yield IMAGE_NAME.at(image.span, message, f"Write {shorten(right)}.")
        elif meant is not None:
            yield IMAGE_NAME.at(
                image.span, f"unknown registry '{name}'", f"Did you mean '{meant}'?", severity="warning"
            )


class _Line(NamedTuple):
    """One instruction of a Dockerfile: its word, what follows on all of its lines, and where the word is written."""

    word: str
    rest: str
    span: Span


DOCKERFILE = Rule("AML420", "dockerfile", "error", is_let_pass=True).explained(
    summary="A Dockerfile has an instruction that Docker does not know, or copies a file that is not in its context.",
    why="The image is built before the first job, which fails after minutes. Docker sees the folder of `build: "
    "{path: …}` and nothing else of the repository. Files are only looked for if that folder has any besides the "
    "Dockerfile.",
)


@check("file")
def _dockerfile(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for environment in file.environments:
        folder, name = environment.find_text("build", "path"), environment.find("build", "dockerfile_path")
        if folder is None or "://" in folder.text or "{{" in folder.text:
            continue
        root = Path(os.path.normpath(file.document.file.parent / folder.text))
        lines = list(_lines(root / (name.text if name is not None else "Dockerfile")))
        yield from _without_an_image(lines)
        for at, line in enumerate(lines):
            yield from _instruction(line)
            yield from _copied(line, root)
            yield from _run(line, lines[:at])


def _lines(path: Path) -> Iterator[_Line]:
    """The instructions of a Dockerfile; none if it cannot be read, or has strings over several lines in it."""
    try:
        text = read_text(path) if os.path.isfile(path) else ""
    except (OSError, ValueError):
        return
    if "<<" in text or "escape=" in text or "{{" in text or "{%" in text:
        return
    open_line: _Line | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        is_continued = stripped.endswith("\\")
        part = stripped.removesuffix("\\")
        word = _INSTRUCTION.match(part)
        if open_line is not None:
            open_line = open_line._replace(rest=f"{open_line.rest} {part}")
        elif word is not None:
            start = len(line) - len(line.lstrip()) + 1
            open_line = _Line(word[1], part[word.end() :], Span(path, number, start, number, start + word.end()))
        if open_line is not None and not is_continued:
            yield open_line
            open_line = None
    if open_line is not None:
        yield open_line


def _instruction(line: _Line) -> Iterator[Diagnostic]:
    if line.word.upper() not in _INSTRUCTIONS:
        meant = only_close(line.word.upper(), _INSTRUCTIONS)
        hint = f"Did you mean '{meant}'?" if meant is not None else "Is a backslash missing at the end of a line above?"
        yield DOCKERFILE.at(line.span, f"Docker has no instruction '{shorten(line.word)}'", hint)
    words = line.rest.split()
    if line.word.upper() == "ENV" and words[1:2] == ["="]:
        yield DOCKERFILE.at(line.span, f"ENV sets {words[0]} to a string that begins with '= '", "Remove the spaces.")
    path = _NEW_PATH.match(line.rest) if line.word.upper() == "ENV" else None
    if path is not None:
        message = f"PATH is {shorten(path[1])} alone from here: no command of the image is found"
        yield DOCKERFILE.at(line.span, message, f"Write PATH={shorten(path[1])}:$PATH.", severity="warning")


def _without_an_image(lines: Sequence[_Line]) -> Iterator[Diagnostic]:
    """A Dockerfile that names no image to start from before it does something."""
    first = next((line for line in lines if line.word.upper() != "ARG"), None)
    if first is not None and first.word.upper() in _INSTRUCTIONS and first.word.upper() != "FROM":
        yield DOCKERFILE.at(first.span, "there is no FROM above this, so there is no image to build on")


def _run(line: _Line, above: Sequence[_Line]) -> Iterator[Diagnostic]:
    """What cannot work in a RUN: questions that nobody answers, misspelt sub-commands, files that are not there."""
    if line.word.upper() != "RUN" or "--mount" in line.rest:
        return
    for _, message, hint in redirected_versions(line.rest):
        yield DOCKERFILE.at(line.span, message, hint, severity="warning")
    has_own_base = _starts_from_own_image(above)
    has_lists = has_own_base or ".deb" in line.rest or any("update" in other.rest for other in (line, *above))
    has_bash = has_own_base or _STARTS_BASH.search(line.rest) or any(other.word.upper() == "SHELL" for other in above)
    commands = simple_commands(line.rest)
    if all(words[0].text in ("cd", "export") for words in commands):
        message = "this changes nothing in the lines below: each RUN has a shell of its own"
        yield DOCKERFILE.at(line.span, message, "Write WORKDIR or ENV.", severity="warning")
    has_moved = False
    for words in commands:
        texts = [word.text for word in words]
        has_moved = has_moved or texts[0] == "cd"
        program = texts[0] if texts[0] != "sudo" else next(iter(texts[1:]), "")
        verbs = _VERBS.get(program.removesuffix("3"), ())
        verb = next((text for text in texts[texts.index(program) + 1 :] if not text.startswith("-")), "")
        yield from DOCKERFILE.misspelt(line.span, verb, verbs, f"{program} has no command '{shorten(verb)}'")
        installs = program in ("apt", "apt-get") and verb == "install"
        asks = installs and "-y" not in line.rest and "yes" not in line.rest
        if asks and not any(option in line.rest for option in ("--assume-yes", "-qq", "-qy")):
            message = f"{program} asks before it installs what a package needs, and nobody answers"
            yield DOCKERFILE.at(line.span, message, "Add -y.", severity="warning")
        if (texts[:2] == ["conda", "activate"] or program == "source") and not has_bash:
            message = f"{' '.join(texts[:2])} fails: RUN starts sh, which has no 'source' and does not read .bashrc"
            hint = 'Use `conda run -n NAME`, or write `SHELL ["/bin/bash", "-lc"]` above.'
            yield DOCKERFILE.at(line.span, message, hint, severity="warning")
        if installs and not has_lists:
            message = f"{program} has no lists of packages here: base images come without them"
            yield DOCKERFILE.at(line.span, message, f"Write `{program} update &&` before it.", severity="warning")
        copies = any(other.word.upper() in ("COPY", "ADD", "ONBUILD") for other in above)
        if program in ("pip", "pip3") and not copies and not has_moved and not has_own_base:
            yield from _not_copied(line, texts, above)


def _starts_from_own_image(above: Sequence[_Line]) -> bool:
    """Whether an image comes from a private registry, or builds on another stage: it may have any file."""
    images = [line.rest.split() for line in above if line.word.upper() == "FROM"]
    hosts = [words[0].partition("/")[0] for words in images if words and "/" in words[0]]
    return len(images) != 1 or any(host not in _REGISTRIES and ("." in host or "$" in host) for host in hosts)


def _not_copied(line: _Line, texts: Sequence[str], above: Sequence[_Line]) -> Iterator[Diagnostic]:
    """`pip install -r requirements.txt` in an image that nothing was copied into."""
    makes_files = any(
        other.word.upper() not in _INSTRUCTIONS or (other.word.upper() == "RUN" and _MAKES_FILES.search(other.rest))
        for other in (*above, line)
    )
    for option, value in pairwise(texts):
        if option in ("-r", "--requirement") and _PLAIN_NAME.fullmatch(value) and not makes_files:
            message = f"nothing above copies '{shorten(value)}' into the image"
            # The image that this starts from may have it.
            yield DOCKERFILE.at(line.span, message, f"Write `COPY {value} .` above it.", severity="warning")


def _copied(line: _Line, root: Path) -> Iterator[Diagnostic]:
    if line.word.upper() not in ("COPY", "ADD") or set(line.rest) & set("$*?[\\<'") or "--from" in line.rest:
        return
    others = [name for name in names_in(root) if "dockerfile" not in name.lower()]
    *sources, target = [word for word in line.rest.replace('"', "").split() if not word.startswith("--")] or [""]
    if len(sources) > 1 and not target.endswith(("/", ".")):
        message = f"several files can only be copied to a folder, and '{shorten(target)}' does not end with '/'"
        yield DOCKERFILE.at(line.span, message, f"Write {shorten(target)}/.")
    for source in sources:
        path = root / source.lstrip("/")
        if "://" not in source and "git@" not in source and others and not os.path.lexists(path):
            message = f"the build context '{root.name}' contains no '{shorten(source)}'"
            yield DOCKERFILE.at(line.span, message, close_match(os.path.basename(os.path.normpath(source)), others))
