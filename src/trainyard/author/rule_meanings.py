"""What each rule about profiles and templates means, in a sentence; `trainyard explain TY103` prints it."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.author import rule_ids

MEANINGS: Mapping[str, str] = {
    rule_ids.UNKNOWN_PROFILE: "A profile extends one that is not in profiles/.",
    rule_ids.PROFILE_CYCLE: "Profiles extend each other in a circle, so none of them has a beginning.",
    rule_ids.PROFILE_KEY: "A profile has a key that no template reads, lacks one, or says a thing twice.",
    rule_ids.PROFILE_VALUE: "A value in a profile is of the wrong type, out of its bounds, or none of its choices.",
    rule_ids.UNUSABLE_SKU: "No such VM size is known, or Azure has retired it; `trainyard skus` lists them.",
    rule_ids.UNKNOWN_ENVIRONMENT: "An environment is neither a reference (azureml:…) nor in templates/environments/.",
    rule_ids.TEMPLATE_SYNTAX: "A template is not Jinja.",
    rule_ids.UNDEFINED_NAME: "A template uses a name that nothing defines; Jinja would write nothing in its place.",
    rule_ids.UNSAFE_TEMPLATE: "A template does what the sandbox forbids: templates read values, they run no code.",
    rule_ids.TEMPLATE_FAILED: "A template's own arithmetic or filters failed on this profile's values.",
    rule_ids.UNREADABLE_TEMPLATE: "A template, or what it includes, is not there or cannot be read.",
    rule_ids.RENDERED_MALFORMED: "What a template gave is not YAML (or JSON), so nothing was written.",
    rule_ids.NOT_OURS: "Trainyard did not render this file, or another version of it did, so it is not written over.",
    rule_ids.CANNOT_WRITE: "A rendered file could not be written.",
}
