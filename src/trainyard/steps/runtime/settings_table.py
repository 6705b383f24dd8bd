"""The documentation of a step's settings as a Markdown table, made of the same description as its flags."""

from __future__ import annotations

from trainyard.foundation.step_fields import StepField, step_fields


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
