"""A rule in full: for the terminal (`trainyard explain AML101`) and as a page of docs/rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.errors import UsageError
from trainyard.lint.rule_names import hint_for
from trainyard.spec.rule import EXAMPLE_FILE, Rule

_SILENCE = "`# trainyard: ignore[{id}] reason` at the end of the line, or on the line above, silences it there."


def find_rule(text: str, rules: Mapping[str, Rule]) -> Rule:
    """Return a rule by its id or name, ignoring case. Raise UsageError, with the closest match, if there is none."""
    wanted = text.strip().lower()
    for rule in rules.values():
        if wanted in (rule.id.lower(), rule.name):
            return rule
    raise UsageError(f"unknown rule {text!r}. {hint_for(text.strip(), rules)}")


def as_list(rules: Iterable[Rule]) -> str:
    """Return all rules, a line each: id, severity, name and summary."""
    listed = sorted(rules, key=lambda rule: rule.id)
    widest = max(len(rule.name) for rule in listed)
    lines = [f"{rule.id:<6}  {_severity(rule):<7}  {rule.name:<{widest}}  {rule.summary}" for rule in listed]
    return "\n".join(lines).replace("`", "'")


def as_text(rule: Rule) -> str:
    """A rule as a person reads it on a terminal."""
    parts = [f"{rule.id} {rule.name} ({_severity(rule)})", rule.summary, rule.why]
    for title, files in _examples(rule):
        parts.append(f"{title}:\n" + "\n".join(_indented(name, text) for name, text in files.items()))
    if _can_be_ignored(rule):
        parts.append(_SILENCE.format(id=rule.id).replace("`", ""))
    return "\n\n".join(parts).replace("`", "'")


def as_page(rule: Rule) -> str:
    """A rule as a page in Markdown."""
    parts = [f"# {rule.id}: {rule.name}", f"*{_severity(rule).capitalize()}.* {rule.summary}", rule.why]
    for title, files in _examples(rule):
        parts.append(f"## {title}")
        parts += [f"{_file_line(name)}```{_language(name)}\n{text.rstrip()}\n```" for name, text in files.items()]
    if _can_be_ignored(rule):
        parts.append(_SILENCE.format(id=rule.id))
    return "\n\n".join(parts) + "\n"


def index_page(rules: Iterable[Rule]) -> str:
    """The list of all rules in Markdown."""
    lines = [
        "# The rules of `trainyard lint`",
        "",
        "Written by `python docs/generate_rules.py` from `src/trainyard/lint/rules/`, which the tests run as well:",
        "each wrong example is found by its rule alone, on its line, and each right one is silent.",
        "`trainyard explain AML101` shows the same.",
        "",
        "An *error* fails, or does something else than was written. A *warning* is taken by Azure ML, and most likely",
        "not what was meant. What is *local* only a run on this machine minds.",
        "",
        "| rule | | |",
        "|---|---|---|",
    ]
    lines += [f"| [{rule.id}]({rule.id}.md) | {_severity(rule)} | {rule.summary} |" for rule in rules]
    return "\n".join(lines) + "\n"


def _can_be_ignored(rule: Rule) -> bool:
    return rule.id.startswith("AML") and not rule.local_run_only


def _severity(rule: Rule) -> str:
    return "local" if rule.local_run_only else rule.severity


def _examples(rule: Rule) -> list[tuple[str, dict[str, str]]]:
    if rule.example is None:
        return []
    wrong, right = rule.example.wrong, rule.example.right
    changed = {name: text for name, text in right.items() if wrong.get(name) != text}
    return [("Wrong", wrong), ("Right", changed or right)]


def _indented(name: str, text: str) -> str:
    head = "" if name == EXAMPLE_FILE else f"  {name}\n"
    return head + "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def _file_line(name: str) -> str:
    return "" if name == EXAMPLE_FILE else f"`{name}`:\n\n"


def _language(name: str) -> str:
    return {"py": "python", "yaml": "yaml", "json": "json"}.get(name.rpartition(".")[2], "text")
