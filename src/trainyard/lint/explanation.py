"""A rule in full: for the terminal (`trainyard explain AML101`) and as a page of the documentation site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.errors import UsageError
from trainyard.settings.suggestions import close_match, slips
from trainyard.spec.rule import EXAMPLE_FILE, Rule

_IGNORE = (
    "To ignore it in one place, write `# trainyard: ignore[{id}] reason` at the end of the line or on the line above."
)
_MOST_LISTED = 3


def find_rule(text: str, rules: Mapping[str, Rule]) -> Rule:
    """Return a rule by its id or name, ignoring case. Raise UsageError, with the closest match, if there is none."""
    wanted = text.strip().lower()
    for rule in rules.values():
        if wanted in (rule.id.lower(), rule.name):
            return rule
    raise UsageError(f"unknown rule {text!r}. {suggest_rule(text.strip(), rules)}")


def suggest_rule(written: str, rules: Mapping[str, Rule]) -> str:
    """Return a hint for an unknown rule: the ids within one typo, or the id that belongs to a name."""
    if written.startswith("TY") and written not in rules:
        return "Findings in profiles and templates stop rendering, so they cannot be ignored."
    upper = written.upper()
    near = sorted(rule for rule in rules if slips(upper, rule) <= 1 or rule == f"AML{written}")[:_MOST_LISTED]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    by_name = {rule.name: rule.id for rule in rules.values()}
    if written in by_name:
        return f"Its id is {by_name[written]}."
    # Any number resembles another one: only words are compared with names.
    near_name = close_match(written, by_name) if not any(map(str.isdigit, written)) else ""
    return near_name or "`trainyard explain` lists all rules."


def as_list(rules: Iterable[Rule]) -> str:
    """Return all rules, a line each: id, severity, name and summary."""
    listed = sorted(rules, key=lambda rule: rule.id)
    widest = max(len(rule.name) for rule in listed)
    lines = [f"{rule.id:<6}  {severity_word(rule):<8}  {rule.name:<{widest}}  {rule.summary}" for rule in listed]
    return "\n".join(lines).replace("`", "'")


def as_text(rule: Rule) -> str:
    """Return a rule in full, for a terminal."""
    parts = [f"{rule.id} {rule.name} ({severity_word(rule)})", rule.summary, rule.why]
    for title, files in _examples(rule):
        parts.append(f"{title}:\n" + "\n".join(_indented(name, text) for name, text in files.items()))
    if _can_be_ignored(rule):
        parts.append(_IGNORE.format(id=rule.id).replace("`", ""))
    return "\n\n".join(parts).replace("`", "'")


def as_page(rule: Rule) -> str:
    """Return a rule as a page in Markdown."""
    parts = [f"# {rule.id}: {rule.name}", f"*{severity_word(rule).capitalize()}.* {rule.summary}", rule.why]
    for title, files in _examples(rule):
        parts.append(f"## {title}")
        for name, text in files.items():
            head = "" if name == EXAMPLE_FILE else f"`{name}`:\n\n"
            language = {"py": "python", "yaml": "yaml", "json": "json"}.get(name.rpartition(".")[2], "text")
            parts.append(f"{head}```{language}\n{text.rstrip()}\n```")
    if _can_be_ignored(rule):
        parts.append(_IGNORE.format(id=rule.id))
    return "\n\n".join(parts) + "\n"


def _can_be_ignored(rule: Rule) -> bool:
    return rule.id.startswith("AML") and not rule.local_run_only


def severity_word(rule: Rule) -> str:
    """Return a rule's severity in the word that lists of rules have for it."""
    if rule.pedantic:
        return "pedantic"
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
