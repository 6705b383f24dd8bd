"""A project's lint settings: `[tool.trainyard.lint]` in pyproject.toml, or `[lint]` in .trainyard.toml.

[tool.trainyard.lint]
exclude = ["examples/**"]           # patterns as in .gitignore, relative to this file's folder
baseline = "lint-baseline.json"     # known findings, not reported until they are fixed

pedantic = true                     # also report what careful teams disagree on
fail_on = "warning"                 # exit 1 for warnings too; "error" by default
select = ["AML2", "AML304"]         # report only these rules, or those whose ids begin so
ignore = ["AML214"]                 # do not report these

[tool.trainyard.lint.severity]
AML407 = "off"                      # error, warning, info, off

[tool.trainyard.lint.computes]
gpu-cluster = "Standard_ND96asr_v4" # the VM size behind a cluster's name
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainyard.errors import UsageError
from trainyard.lint.explanation import suggest_rule
from trainyard.project_files import LARGEST_BYTES, read_bytes
from trainyard.settings.files import read_regular
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic, Severity
from trainyard.spec.rule import Rule

if TYPE_CHECKING:
    from pathspec import PathSpec

# In one folder, the first of these with lint settings is used.
FILE_NAMES = (".trainyard.toml", "pyproject.toml")
SEVERITIES = ("error", "warning", "info", "off")
FAIL_ON = ("error", "warning")
# What a TOML file begins a line with that has a table for Trainyard; most need not be parsed.
_TABLE = regex(r"""(?m)^[ \t]*(?:\[[ \t]*)?["']?tool["']?[ \t]*(?:\]|\.[ \t]*["']?trainyard|=.*trainyard)""")
# A file that cannot be read was not checked, whatever was selected.
_NOT_CHECKED = ("AML001", "AML002", "AML003", "AML004", "AML005", "AML006", "AML013")
_KEYS = ("severity", "exclude", "computes", "baseline", "pedantic", "fail_on", "select", "ignore")


class WrongSettings(UsageError):
    """Settings that cannot be read or are invalid; the message names the file, the key and the fix."""


@dataclass(frozen=True)
class LintSettings:
    """A project's lint settings; `file` is where they are from, None for the defaults."""

    file: Path | None = None
    severity: Mapping[str, Severity | Literal["off"]] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    computes: Mapping[str, str] = field(default_factory=dict)
    baseline: Path | None = None
    pedantic: bool = False
    fail_on: str = "error"
    select: tuple[str, ...] = ()
    """Rules, or beginnings of their ids; empty for all."""
    ignore: tuple[str, ...] = ()

    def reports(self, rule: str) -> bool:
        """Return whether a rule is selected, and not ignored. What could not be read at all counts as selected."""
        is_selected = not self.select or rule.startswith((*self.select, *_NOT_CHECKED))
        return is_selected and not (self.ignore and rule.startswith(self.ignore))

    def fails(self, diagnostic: Diagnostic) -> bool:
        """Return whether a finding is severe enough for exit code 1."""
        return diagnostic.severity in FAIL_ON[: FAIL_ON.index(self.fail_on) + 1]

    def excludes(self, path: Path) -> bool:
        """Return whether a file is excluded."""
        if not self.exclude:
            return False
        assert self.file is not None
        try:
            relative = path.relative_to(self.file.parent)
        except ValueError:
            return False
        return self._patterns.match_file(relative.as_posix())

    @cached_property
    def _patterns(self) -> PathSpec[Any]:
        from pathspec import GitIgnoreSpec

        return GitIgnoreSpec.from_lines(self.exclude)

    def with_severity(self, diagnostics: Iterable[Diagnostic], rules: Mapping[str, Rule]) -> Iterator[Diagnostic]:
        """Yield findings with the project's severities, without those of rules that are off."""
        for diagnostic in diagnostics:
            if not self.reports(diagnostic.rule):
                continue
            is_off = rules[diagnostic.rule].pedantic and not self.pedantic
            severity = self.severity.get(diagnostic.rule, "off" if is_off else diagnostic.severity)
            if severity != "off":
                yield diagnostic._replace(severity=severity) if severity != diagnostic.severity else diagnostic


def settings_for(paths: Sequence[Path], rules: Mapping[str, Rule]) -> LintSettings:
    """Return the nearest settings above what contains all paths (or, without any, the working directory).

    Raise WrongSettings if they are invalid.
    """
    found = _nearest(paths)
    return _settings(*found, rules) if found is not None else LintSettings()


def computes_for(paths: Sequence[Path]) -> Mapping[str, str]:
    """The VM sizes of clusters, by name, in the settings that `settings_for` finds."""
    found = _nearest(paths)
    return _pairs(*found, "computes") if found is not None else {}


def _nearest(paths: Sequence[Path]) -> tuple[Path, dict[str, Any]] | None:
    """The file with the settings, and the linter's table in it."""
    absolute = [os.path.abspath(path) for path in paths] or [os.getcwd()]
    start = Path(os.path.commonpath(absolute))
    for folder in (start, *start.parents):
        for name in FILE_NAMES:
            file = folder / name
            table = _table_in(file) if file.is_file() else None
            if table is not None:
                return file, table
    return None


def _table_in(file: Path) -> dict[str, Any] | None:
    """Return the lint settings in a file; None if it has none."""
    content = _toml(file)
    tables = [_at(file, content, "tool", "trainyard", "lint")]
    if file.name == ".trainyard.toml":
        tables.append(_at(file, content, "lint"))
        unknown = next((key for key in content if key not in ("lint", "tool")), None)
        if unknown is not None:
            raise WrongSettings(f"{_named(file)}: unknown key '{unknown}'. Lint settings belong under [lint].")
    found = [table for table in tables if table is not None]
    if len(found) > 1:
        raise WrongSettings(f"{_named(file)}: both [lint] and [tool.trainyard.lint] are present. Remove one of them.")
    return found[0] if found else None


def _toml(file: Path) -> dict[str, Any]:
    try:
        # Settings may be above the root; a link in a repository leads nowhere else.
        content = read_bytes(file) if file.is_symlink() else read_regular(file, LARGEST_BYTES)
        text = content.decode("utf-8")
    except OSError as error:
        raise WrongSettings(f"{_named(file)}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise WrongSettings(f"{_named(file)}: not UTF-8.") from None
    # Most pyproject.toml have no table for Trainyard, and are skipped even if they are not valid TOML.
    if file.name != ".trainyard.toml" and not _TABLE.search(text):
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise WrongSettings(f"{_named(file)}: not valid TOML: {error}") from None


def _at(file: Path, content: Mapping[str, Any], *keys: str) -> dict[str, Any] | None:
    found: Any = content
    for depth, key in enumerate(keys, start=1):
        if key not in found:
            return None
        found = found[key]
        if not isinstance(found, dict):
            raise WrongSettings(f"{_named(file)}: '{'.'.join(keys[:depth])}' must be a table, not {found!r}.")
    return dict(found)


def _named(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def _settings(file: Path, table: Mapping[str, Any], rules: Mapping[str, Rule]) -> LintSettings:
    for key in table:
        if key not in _KEYS:
            raise _wrong(file, f"unknown key '{key}'", close_match(key, _KEYS) or f"Known keys: {', '.join(_KEYS)}.")
    severity = _pairs(file, table, "severity")
    for rule, word in severity.items():
        if rule not in rules:
            raise _wrong(file, f"severity: unknown rule '{rule}'", suggest_rule(rule, rules))
        if word not in SEVERITIES:
            expected = f"{', '.join(SEVERITIES[:-1])} or {SEVERITIES[-1]}"
            raise _wrong(file, f"severity: '{rule}' must be {expected}, not '{word}'", close_match(word, SEVERITIES))
    exclude = _texts(file, table, "exclude", "patterns", 'Write `exclude = ["examples/**"]`.')
    baseline, pedantic = table.get("baseline"), table.get("pedantic", False)
    if baseline is not None and (not isinstance(baseline, str) or not baseline):
        raise _wrong(file, f"'baseline' must be the name of a file, not {baseline!r}")
    if not isinstance(pedantic, bool):
        raise _wrong(file, f"'pedantic' must be true or false, not {pedantic!r}")
    fail_on = table.get("fail_on", FAIL_ON[0])
    if fail_on not in FAIL_ON:
        raise _wrong(file, f"'fail_on' must be {' or '.join(FAIL_ON)}, not {fail_on!r}")
    known = file.parent / baseline if baseline is not None else None
    select, ignore = (_rules(file, table, key, rules) for key in ("select", "ignore"))
    computes = _pairs(file, table, "computes")
    return LintSettings(file, severity, exclude, computes, known, pedantic, fail_on, select, ignore)


def _rules(file: Path, table: Mapping[str, Any], key: str, rules: Mapping[str, Rule]) -> tuple[str, ...]:
    named = _texts(file, table, key, "rules", f'Write `{key} = ["AML2", "AML304"]`.')
    try:
        return beginnings_of_ids(named, rules)
    except UsageError as error:
        raise _wrong(file, f"{key}: {error}") from None


def _texts(file: Path, table: Mapping[str, Any], key: str, what: str, hint: str) -> tuple[str, ...]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _wrong(file, f"'{key}' must be a list of {what}, not {texts!r}", hint)
    return tuple(texts)


def beginnings_of_ids(named: Iterable[str], rules: Mapping[str, Rule]) -> tuple[str, ...]:
    """Return rules as they are selected: ids, or what ids begin with. Raise UsageError for one that no id has."""
    found = tuple(part.strip().upper() for text in named for part in text.split(",") if part.strip())
    for part in found:
        if not any(rule.startswith(part) for rule in rules):
            raise UsageError(f"unknown rule '{part}'. {suggest_rule(part, rules)}")
    return found


def _pairs(file: Path, table: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The names and values of a table, each a string."""
    pairs = table.get(key, {})
    if not isinstance(pairs, dict):
        raise _wrong(file, f"'{key}' must be a table of names and values, not {pairs!r}")
    for name, value in pairs.items():
        if not isinstance(value, str):
            raise _wrong(file, f"{key}: '{name}' must be a string, not {value!r}")
    return pairs


def _wrong(file: Path, message: str, hint: str = "") -> WrongSettings:
    return WrongSettings(f"{_named(file)}: {message}. {hint}".rstrip().replace("..", "."))
