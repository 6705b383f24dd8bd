"""A project's lint settings: `[tool.trainyard.lint]` in pyproject.toml, or `[lint]` in .trainyard.toml.

[tool.trainyard.lint]
exclude = ["examples/**"]           # patterns as in .gitignore, relative to this file's folder
baseline = "lint-baseline.json"     # known findings, not reported until they are fixed

pedantic = true                     # also report what careful teams differ on

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
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic, Severity
from trainyard.spec.rule import Rule

if TYPE_CHECKING:
    from pathspec import PathSpec

# In one folder, the first of these with lint settings is used.
FILE_NAMES = (".trainyard.toml", "pyproject.toml")
SEVERITIES = ("error", "warning", "info", "off")
_KEYS = ("severity", "exclude", "computes", "baseline", "pedantic")


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
            is_off = rules[diagnostic.rule].pedantic and not self.pedantic
            severity = self.severity.get(diagnostic.rule, "off" if is_off else diagnostic.severity)
            if severity != "off":
                yield diagnostic._replace(severity=severity) if severity != diagnostic.severity else diagnostic


def settings_for(paths: Sequence[Path], rules: Mapping[str, Rule]) -> LintSettings:
    """Return the nearest settings above what contains all paths (or, without any, the working directory).

    Raise WrongSettings if they are invalid.
    """
    found = _nearest(paths)
    return _Reader(found[0], rules).read(found[1]) if found is not None else LintSettings()


def computes_for(paths: Sequence[Path]) -> Mapping[str, str]:
    """The VM sizes of clusters, by name, in the settings that `settings_for` finds."""
    found = _nearest(paths)
    return _Reader(found[0], {}).computes(found[1]) if found is not None else {}


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
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        text = _text_of(file)
        # Most pyproject.toml do not mention Trainyard, and are skipped even if they are not valid TOML.
        return tomllib.loads(text) if "trainyard" in text or file.name == ".trainyard.toml" else {}
    except OSError as error:
        raise WrongSettings(f"{_named(file)}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise WrongSettings(f"{_named(file)}: not UTF-8.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise WrongSettings(f"{_named(file)}: not valid TOML: {error}") from None


def _text_of(file: Path) -> str:
    """Return the text of settings, which may be above the root; a link in a repository leads nowhere else."""
    content = read_bytes(file) if file.is_symlink() else read_regular(file, LARGEST_BYTES)
    return content.decode("utf-8")


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


class _Reader:
    """Reads one table, key by key."""

    def __init__(self, file: Path, rules: Mapping[str, Rule]) -> None:
        self._file = file
        self._rules = rules

    def read(self, table: Mapping[str, Any]) -> LintSettings:
        """Return the settings in the table."""
        for key in table:
            if key not in _KEYS:
                self._refuse(f"unknown key '{key}'", close_match(key, _KEYS) or f"Known keys: {', '.join(_KEYS)}.")
        baseline = table.get("baseline")
        if baseline is not None and (not isinstance(baseline, str) or not baseline):
            self._refuse(f"'baseline' must be the name of a file, not {baseline!r}")
        return LintSettings(
            self._file,
            self._severities(table.get("severity", {})),
            self._patterns(table.get("exclude", [])),
            self.computes(table),
            self._file.parent / baseline if baseline is not None else None,
            self._boolean("pedantic", table.get("pedantic", False)),
        )

    def _boolean(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            self._refuse(f"'{key}' must be true or false, not {value!r}")
        return bool(value)

    def computes(self, table: Mapping[str, Any]) -> dict[str, str]:
        """The VM sizes of clusters, by name."""
        return self._pairs("computes", table.get("computes", {}))

    def _severities(self, table: Any) -> Mapping[str, Severity | Literal["off"]]:
        for rule, severity in self._pairs("severity", table).items():
            if rule not in self._rules:
                self._refuse(f"severity: unknown rule '{rule}'", suggest_rule(rule, self._rules))
            if severity not in SEVERITIES:
                hint = close_match(severity, SEVERITIES)
                self._refuse(
                    f"severity: '{rule}' must be {', '.join(SEVERITIES[:-1])} or {SEVERITIES[-1]}, not '{severity}'",
                    hint,
                )
        return dict(table)

    def _patterns(self, patterns: Any) -> tuple[str, ...]:
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            self._refuse(
                f"'exclude' must be a list of patterns, not {patterns!r}", 'Write `exclude = ["examples/**"]`.'
            )
        return tuple(patterns)

    def _pairs(self, key: str, table: Any) -> dict[str, str]:
        if not isinstance(table, dict):
            self._refuse(f"'{key}' must be a table of names and values, not {table!r}")
        for name, value in table.items():
            if not isinstance(value, str):
                self._refuse(f"{key}: '{name}' must be a string, not {value!r}")
        return dict(table)

    def _refuse(self, message: str, hint: str = "") -> Any:
        raise WrongSettings(f"{_named(self._file)}: {message}. {hint}".rstrip().replace("..", "."))
