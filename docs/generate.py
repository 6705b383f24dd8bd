"""Write docs/steps.md from the dataclasses of the steps: `python docs/generate.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.foundation.configs import STEP_CONFIGS
from trainyard.foundation.step_fields import StepField, step_fields

PAGE = Path(__file__).parent / "steps.md"


def steps_page() -> str:
    """The page as it should be."""
    parts = [
        "# The steps and their settings\n",
        "Written by `python docs/generate.py` from the dataclasses in `src/trainyard/foundation/configs/`, which are\n"
        "also the source of each step's flags and of its component's inputs and outputs.\n",
    ]
    for name, config_class in STEP_CONFIGS.items():
        parts += [f"## {name}\n", f"{config_class.__doc__}\n", settings_table(config_class)]
    return "\n".join(parts).rstrip() + "\n"


def settings_table(config_class: type) -> str:
    """One row per setting: flag, kind, default and limits, and what it does. Ends with a newline."""
    rows = ["| flag | takes | default | what it does |", "|---|---|---|---|"]
    rows += [
        f"| `{field.flag}` | {_takes(field)} | {_default(field)} | {_escape(field.description)} |"
        for field in step_fields(config_class)
    ]
    return "\n".join(rows) + "\n"


def _takes(field: StepField) -> str:
    if field.kind != "parameter":
        return f"{field.kind} {field.type.removeprefix('uri_')}"
    if field.choices:
        return ", ".join(f"`{choice}`" for choice in field.choices)
    if field.minimum is not None and field.maximum is not None:
        return f"{field.type}, {field.minimum:.10g} to {field.maximum:.10g}"
    if field.minimum is not None:
        return f"{field.type}, at least {field.minimum:.10g}"
    return field.type


def _default(field: StepField) -> str:
    if field.required:
        return "required"
    if field.default is None:
        return "not given"
    return f"`{str(field.default).lower()}`" if field.type == "boolean" else f"`{field.default}`"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(
            PAGE.read_text(encoding="utf-8") != steps_page() and "docs/steps.md has drifted: python docs/generate.py"
        )
    PAGE.write_text(steps_page(), encoding="utf-8")
