"""The rules about profiles and templates: their stable ids, and the meanings that `trainyard explain TY103` prints."""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN_PROFILE = "TY101"
PROFILE_CYCLE = "TY102"
PROFILE_KEY = "TY103"
PROFILE_VALUE = "TY104"
UNUSABLE_SKU = "TY105"
UNKNOWN_ENVIRONMENT = "TY106"

TEMPLATE_SYNTAX = "TY201"
UNDEFINED_NAME = "TY202"
UNSAFE_TEMPLATE = "TY203"
TEMPLATE_FAILED = "TY204"
UNREADABLE_TEMPLATE = "TY205"
RENDERED_MALFORMED = "TY206"

NOT_OURS = "TY301"
CANNOT_WRITE = "TY302"

MEANINGS: Mapping[str, str] = {
    UNKNOWN_PROFILE: "A profile extends one that is not in profiles/.",
    PROFILE_CYCLE: "Profiles extend each other in a circle, so none of them has a beginning.",
    PROFILE_KEY: "A profile has a key that no template reads, lacks one, or says a thing twice.",
    PROFILE_VALUE: "A value in a profile is of the wrong type, out of its bounds, or none of its choices.",
    UNUSABLE_SKU: "No such VM size is known, or Azure has retired it; `trainyard skus` lists them.",
    UNKNOWN_ENVIRONMENT: "An environment is neither a reference (azureml:…) nor in templates/environments/.",
    TEMPLATE_SYNTAX: "A template is not Jinja.",
    UNDEFINED_NAME: "A template uses a name that nothing defines; Jinja would write nothing in its place.",
    UNSAFE_TEMPLATE: "A template does what the sandbox forbids: templates read values, they run no code.",
    TEMPLATE_FAILED: "A template's own arithmetic or filters failed on this profile's values.",
    UNREADABLE_TEMPLATE: "A template, or what it includes, is not there or cannot be read.",
    RENDERED_MALFORMED: "What a template gave is not YAML (or JSON), so nothing was written.",
    NOT_OURS: "Trainyard did not render this file, or another version of it did, so it is not written over.",
    CANNOT_WRITE: "A rendered file could not be written.",
}
