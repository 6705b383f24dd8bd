"""The settings that a settings file may have, for completion and hover."""

from __future__ import annotations

from trainyard.settings.settings_keys import keys_of_file
from trainyard.settings.step_fields import StepField
from trainyard.spec.documents import Document
from trainyard.spec.file_kinds import step_of_settings
from trainyard.spec.findings import DocumentStore
from trainyard.spec.training_settings import use_of_file


def fields_of_document(document: Document, store: DocumentStore) -> dict[str, StepField]:
    """Return the settings of a file's step and task, by name; none for a file that is not known as a settings file."""
    step = step_of_settings(document)
    use = use_of_file(document, step, store) if step is not None else None
    settings = use.step_settings if use is not None else None
    return keys_of_file(settings.fields.values()) if settings is not None else {}


def values_of_field(field: StepField) -> tuple[str, ...]:
    """Return the values that a setting has to choose from."""
    return ("true", "false") if field.type == "boolean" else field.choices or ()


def field_text(field: StepField) -> str:
    """Return a setting in Markdown: its type, limits, default and description."""
    facts = [f"`{field.name}`: a setting of type `{field.type}`"]
    if field.default is not None:
        facts.append(f"default `{field.default}`")
    if field.minimum is not None or field.maximum is not None:
        limits = ("…" if limit is None else f"{limit:.10g}" for limit in (field.minimum, field.maximum))
        facts.append("from `{}` to `{}`".format(*limits))
    if field.choices:
        facts.append("one of " + ", ".join(f"`{choice}`" for choice in field.choices))
    return f"{', '.join(facts)}\n\n{field.description}"
