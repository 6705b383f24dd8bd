"""The settings that a training uses: their values and origins, and what a changed one means when it is resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
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

    name: str
    value: Any
    default: Any
    origin: str
    """Where the value was given, such as `settings/ddp.yaml:7` or `--epochs`; `default` where it was not."""
    on_resume: OnResume
    is_mapping: bool

    @property
    def compared(self) -> Any:
        """The value, of a mapping its members however they were written."""
        if self.is_mapping and isinstance(self.value, str):
            try:
                return json.loads(self.value)
            except ValueError:
                return self.value  # an error is reported where the mapping is used
        return self.value


class UsedSettings:
    """All settings of a training, by name: first those of its step, then those of its task."""

    def __init__(self, step: Any, task: TaskSettings | None, origins: Mapping[str, str]) -> None:
        parts = [step] if task is None else [step, task]
        self._settings = {
            field.name: UsedSetting(
                name=field.name,
                value=getattr(part, field.name),
                default=None if field.default is dataclasses.MISSING else field.default,
                origin=origins.get(field.name, "default"),
                on_resume=field.metadata.get("on_resume") or "identity",
                is_mapping=field.metadata.get("is_mapping", False),
            )
            for part in parts
            for field in dataclasses.fields(part)
        }

    def values(self, *meanings: OnResume) -> dict[str, Any]:
        """Return the values of all settings, or of those whose change has one of the meanings."""
        return {setting.name: setting.value for setting in self._chosen(meanings)}

    def compared(self, meaning: OnResume) -> dict[str, Any]:
        """Return what a resumed training compares of the settings whose change has the meaning."""
        return {setting.name: setting.compared for setting in self._chosen((meaning,))}

    def defaults(self) -> dict[str, Any]:
        """Return the default of each setting."""
        return {setting.name: setting.default for setting in self._settings.values()}

    def origins(self) -> dict[str, str]:
        """Return where each setting's value comes from."""
        return {setting.name: setting.origin for setting in self._settings.values()}

    def for_mlflow(self) -> dict[str, Any]:
        """Return what to compare runs by: nothing that differs from attempt to attempt, such as folders."""
        values = self.values("identity", "numbers", "nothing")
        if "model_type" in values:
            values["model_type"] = Path(values["model_type"]).name
        return values

    def __str__(self) -> str:
        """The settings that differ from their defaults, a line each with its value and origin; no folders and files."""
        changed = [
            (setting.name, cut(str(setting.value), _LONGEST_PRINTED), setting.origin)
            for setting in self._settings.values()
            if setting.value != setting.default and not isinstance(setting.value, Path) and setting.name != "overrides"
        ]
        if not changed:
            return "all settings have their defaults"
        name_width = max(len(name) for name, _, _ in changed)
        value_width = max(len(value) for _, value, _ in changed)
        lines = [f"  {name:{name_width}}  {value:{value_width}}  {origin}" for name, value, origin in changed]
        return "\n".join(["settings that differ from their defaults:", *lines])

    def _chosen(self, meanings: tuple[OnResume, ...]) -> Iterator[UsedSetting]:
        for setting in self._settings.values():
            if not meanings or setting.on_resume in meanings:
                yield setting
