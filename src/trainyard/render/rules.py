"""Rules about profiles and templates. While one of these findings stands, nothing is rendered."""

from __future__ import annotations

from trainyard.spec.rule import Rule

_NOT_RENDERED = "Nothing is rendered until this is fixed, so it cannot be ignored."


def _error(id: str, name: str, summary: str) -> Rule:
    return Rule(id, name, "error", summary, _NOT_RENDERED)


UNKNOWN_PROFILE = _error(
    "TY101", "unknown-profile", "A profile extends, or files were rendered for, one that is not in profiles/."
)
PROFILE_CYCLE = _error("TY102", "profile-cycle", "Profiles extend each other in a cycle.")
PROFILE_KEY = _error("TY103", "profile-key", "A profile has an unknown key, lacks a required one, or sets one twice.")
PROFILE_VALUE = _error(
    "TY104", "profile-value", "A value in a profile has the wrong type, is out of bounds, or is not an allowed choice."
)
UNUSABLE_SKU = _error(
    "TY105", "unusable-sku", "The VM size is unknown, or Azure has retired it; `trainyard skus` lists the known ones."
)
UNKNOWN_ENVIRONMENT = _error(
    "TY106", "unknown-environment", "An environment is neither a reference (azureml:…) nor in templates/environments/."
)
STEP_SETTINGS = _error("TY107", "step-settings", "The settings of a step in src/ cannot be read from its source.")
TEMPLATE_SYNTAX = _error("TY201", "template-syntax", "A template is not valid Jinja.")
UNDEFINED_NAME = _error("TY202", "undefined-name", "A template uses an undefined name; Jinja would render it as empty.")
UNSAFE_TEMPLATE = _error(
    "TY203",
    "unsafe-template",
    "A template does something the sandbox forbids: templates read values, they run no code.",
)
TEMPLATE_FAILED = _error(
    "TY204", "template-failed", "The template's own arithmetic or filters failed on this profile's values."
)
UNREADABLE_TEMPLATE = _error(
    "TY205", "unreadable-template", "A template, or one that it includes, does not exist or cannot be read."
)
RENDERED_MALFORMED = _error(
    "TY206", "rendered-malformed", "The result of a template is not valid YAML or JSON, so nothing was written."
)
OUTSIDE_BLOCKS = _error(
    "TY207",
    "outside-blocks",
    "A template that extends another has text outside its blocks, or a block that the other lacks: Jinja drops both.",
)
NOT_OURS = _error(
    "TY301", "not-ours", "This file was not rendered by this version of Trainyard, so it is not overwritten."
)
CANNOT_WRITE = _error("TY302", "cannot-write", "A rendered file could not be written.")

RULES = {rule.id: rule for rule in tuple(globals().values()) if isinstance(rule, Rule)}
