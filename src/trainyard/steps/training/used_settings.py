"""The settings that a training uses: their values and origins, and what a changed one means when it is resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.settings.quantities import cut
from trainyard.settings.step_fields import OnResume
from trainyard.settings.steps.tasks import TaskSettings

_LONGEST_PRINTED = 60


@dataclass(frozen=True)
class UsedSetting:
    """One setting of a step or of its task."""

    field: dataclasses.Field[Any]
    value: Any
    origin: str
    """Where the value was given, such as `settings/ddp.yaml:7` or `--epochs`; `default` where it was not."""

    @property
    def default(self) -> Any:
        """The value where none is given."""
        return None if self.field.default is dataclasses.MISSING else self.field.default

    @property
    def compared(self) -> Any:
        """The value, of a mapping its members however they were written."""
        if self.field.metadata.get("is_mapping", False) and isinstance(self.value, str):
            with suppress(ValueError):  # an error is reported where the mapping is used
                return json.loads(self.value)
        return self.value


class UsedSettings:
    """All settings of a training, by name: first those of its step, then those of its task."""

    def __init__(self, step: Any, task: TaskSettings | None, origins: Mapping[str, str]) -> None:
        parts = [step] if task is None else [step, task]
        self._settings = {
            field.name: UsedSetting(field, getattr(part, field.name), origins.get(field.name, "default"))
            for part in parts
            for field in dataclasses.fields(part)
        }

    def values(self, *meanings: OnResume) -> dict[str, Any]:
        """Return the values of all settings, or of those whose change has one of the meanings."""
        return {name: setting.value for name, setting in self._chosen(meanings)}

    def compared(self, meaning: OnResume) -> dict[str, Any]:
        """Return what a resumed training compares of the settings whose change has the meaning."""
        return {name: setting.compared for name, setting in self._chosen((meaning,))}

    def defaults(self) -> dict[str, Any]:
        """Return the default of each setting."""
        return {name: setting.default for name, setting in self._settings.items()}

    def origins(self) -> dict[str, str]:
        """Return where each setting's value comes from."""
        return {name: setting.origin for name, setting in self._settings.items()}

    def for_mlflow(self) -> dict[str, Any]:
        """Return what to compare runs by: nothing that differs from attempt to attempt, such as folders."""
        values = self.values("identity", "numbers", "nothing")
        if "model_type" in values:
            values["model_type"] = Path(values["model_type"]).name
        return values

    def __str__(self) -> str:
        """The settings that differ from their defaults, a line each with its value and origin; no folders and files."""
        changed = [
            (name, cut(str(setting.value), _LONGEST_PRINTED), setting.origin)
            for name, setting in self._settings.items()
            if setting.value != setting.default and not isinstance(setting.value, Path) and name != "overrides"
        ]
        if not changed:
            return "all settings have their defaults"
        name_width = max(len(name) for name, _, _ in changed)
        value_width = max(len(value) for _, value, _ in changed)
        lines = [f"  {name:{name_width}}  {value:{value_width}}  {origin}" for name, value, origin in changed]
        return "\n".join(["settings that differ from their defaults:", *lines])

    def _chosen(self, meanings: tuple[OnResume, ...]) -> Iterator[tuple[str, UsedSetting]]:
        for name, setting in self._settings.items():
            if not meanings or (setting.field.metadata.get("on_resume") or "identity") in meanings:
                yield name, setting


def differing_values(by_rank: Sequence[Mapping[str, Any]], ranks_in_words: Callable[[list[int]], str]) -> str:
    """Return in words which values differ between ranks, and which ranks have which; nothing if all are the same."""
    differing = []
    for name in sorted(set().union(*by_rank)):
        ranks_with: dict[str, list[int]] = {}
        for rank, values in enumerate(by_rank):
            ranks_with.setdefault(repr(values.get(name)), []).append(rank)
        if len(ranks_with) > 1:
            values_by_rank = (f"{value} on {ranks_in_words(ranks)}" for value, ranks in ranks_with.items())
            differing.append(f"{name} is {', '.join(values_by_rank)}")
    return "; ".join(differing)
