"""Environment variables, misspelt and with unknown values; and secrets in plain text, wherever they are in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from trainyard.lint.checks import LintContext, LintedFile, check, known_words
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import one_slip_from
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Document, Entry, Node, shorten
from trainyard.spec.rule import Rule
from trainyard.spec.secrets import PLACEHOLDER, SECRET_NAME, SECRET_RULE, SECRET_VALUES

_NAMES: frozenset[str] = frozenset(known_words("environment_variables"))
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS")
_COUNT = regex(r"\s*[0-9]+(?:\s*,\s*[0-9]+)*\s*")
_ALLOCATOR: list[str] = known_words("allocator")
_LONG_NAME = 9
_LEVELS: dict[str, list[str]] = known_words("levels")


MISSPELT_VARIABLE = Rule("AML560", "misspelt-variable", "warning").explained(
    summary="A variable differs by a typo from one of NCCL's, CUDA's or Python's, or has an unknown level.",
    why="Nothing reads a variable of that name, and nothing says so.",
)


@check("file")
def _misspelt_variable(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for holder in file.jobs:
        for name, entry in holder.entries_of("environment_variables").items():
            yield from _variable(name, entry)


def _allocator(value: Node) -> Iterator[Diagnostic]:
    """`expandable_segment:True`, at which PyTorch stops."""
    for part in value.text.split(","):
        name = part.partition(":")[0].strip()
        message = f"PyTorch's allocator has no setting '{shorten(name)}'"
        yield from MISSPELT_VARIABLE.misspelt(value.span, name, _ALLOCATOR, message)


def _variable(name: str, entry: Entry) -> Iterator[Diagnostic]:
    levels, value = _LEVELS.get(name, []), entry.value
    if name in _COUNTS and value.is_text and "$" not in value.text and not _COUNT.fullmatch(value.text):
        yield MISSPELT_VARIABLE.at(value.span, f"{name} is a whole number, not '{shorten(value.text)}', and is ignored")
    if name == "PYTORCH_CUDA_ALLOC_CONF" and value.is_text:
        yield from _allocator(value)
    if levels and value.is_text and "$" not in value.text and value.text.upper() not in levels:
        message = f"{name} is {', '.join(levels[:-1])} or {levels[-1]}, not '{value.text}'"
        yield MISSPELT_VARIABLE.at(value.span, message)
    elif len(name) >= _LONG_NAME and name not in _NAMES:
        meant = one_slip_from(name, _NAMES)
        if meant is not None:
            message = f"nothing reads a variable '{name}'"
            yield MISSPELT_VARIABLE.at(entry.key.span, message, f"Did you mean '{meant}'?", replacement=meant)


_FLAG_WITH_SECRET = regex(
    r"--?(?:password|passwd|secret|api[-_]?key|access[-_]?key|account[-_]?key|client[-_]secret|token|auth[-_]?token)"
    r"[= ]+(?![-$\"']?\$|--)[\"']?([A-Za-z0-9+/_=!.-]{6,})[\"']?",
    re.IGNORECASE,
)
# Substituted by another program before submission: `InstrumentationKey=${KEY}`.
_FILLED_IN = regex(r"\$\{\w+\}|\$\(\w+\)|<[\w -]+>|\{\{")
_TOKEN_VARIABLE = regex(r"[A-Z][A-Z0-9_]*_(?:TOKEN|SECRET|PASSWORD|APIKEY|KEY)")
_RANDOM_TEXT = regex(r"(?=.*\d)(?=.*[A-Za-z])[\w~+/=.-]{12,}")
_VARIABLE_WITH_SECRET = regex(
    r"\b[A-Z][A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|(?:ACCESS|ACCOUNT|STORAGE)_KEY)=[\"']?([^\s\"'$;&|<>{}]{8,})"
)


SECRET = Rule(SECRET_RULE, "secret", "warning").explained(
    summary="The file contains a secret.",
    why="Everyone who can see the repository, or the job in the studio, can read it. Keep it in the workspace's key "
    "vault, or use the job's identity.",
)


@check("file")
def _secret(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    if file.kind != "profile":
        # A value with aliases is visited once per use, and reported once.
        found: dict[Span, Diagnostic] = {}
        possible = [each for each in SECRET_VALUES if each[0] in file.document.text]
        for path, node in file.document.scalars:
            name = path[-1] if path else ""
            if node.is_text and (possible or name == "command" or any(_suggests_secret(name))):
                for each in _secret_text(node, name, file.document, possible):
                    found.setdefault(each.span, each)
        yield from found.values()


def _secret_text(
    node: Node, name: str, document: Document, possible: Sequence[tuple[str, str, str]]
) -> Iterator[Diagnostic]:
    text = node.text
    hint = "Remove and rotate it: everyone who could read this file has it."
    if len(text) < 6 or name in ("description", "$schema"):
        return
    matches = [
        (match.span(), what) for part, pattern, what in possible if part in text for match in re.finditer(pattern, text)
    ]
    if name == "command":
        for pattern in (_FLAG_WITH_SECRET, _VARIABLE_WITH_SECRET):
            matches += [(match.span(1), "a secret") for match in pattern.finditer(text)]
    reported: list[tuple[int, int, str]] = []
    for (start, stop), what in matches:
        if not PLACEHOLDER.fullmatch(text[start:stop]):
            # What overlaps becomes one secret, of the first kind.
            overlapping = [each for each in reported if start < each[1] and each[0] < stop]
            starts, stops, kinds = zip(*overlapping, (start, stop, what), strict=True)
            reported = [each for each in reported if each not in overlapping]
            reported.append((min(starts), max(stops), kinds[0]))
    for start, stop, what in reported:
        yield SECRET.at(document.span_within(node, start, stop), f"{what} in plain text", hint)
    if name != "command" and not reported and _is_named_secret(name, text):
        yield SECRET.at(node.span, f"'{shorten(name)}' is set to a secret in plain text", hint)


def _is_named_secret(name: str, text: str) -> bool:
    """Whether the name of a value suggests a secret, and the value looks like one."""
    is_secret_name, is_token_variable = _suggests_secret(name)
    if not is_secret_name and not (is_token_variable and _RANDOM_TEXT.fullmatch(text)):
        return False
    return not (PLACEHOLDER.fullmatch(text) or " " in text or "${{" in text or _FILLED_IN.search(text))


@lru_cache(maxsize=4096)
def _suggests_secret(name: str) -> tuple[bool, bool]:
    """Whether a name is that of a secret, and whether it is a variable of tokens or keys, which may be harmless."""
    return SECRET_NAME.fullmatch(name) is not None, _TOKEN_VARIABLE.fullmatch(name) is not None
