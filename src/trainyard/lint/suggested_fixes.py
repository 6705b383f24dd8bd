"""What the "Did you mean …?" of a finding writes in place of what the finding covers."""

from __future__ import annotations

import os
from typing import NamedTuple

from trainyard.settings.regex import regex
from trainyard.settings.suggestions import closest, is_surely, misspelt_name, slips
from trainyard.spec.diagnostic import Diagnostic

QUESTION = "Did you mean '"
_MEANT = regex(r"Did you mean '([^']+)'(, in the same folder)?\?")
_QUOTED = regex(r"'([^']+)'")


class Suggested(NamedTuple):
    """What to write, and whether that is sure enough to be written unasked."""

    text: str
    is_sure: bool


def suggested(finding: Diagnostic, covered: str) -> Suggested | None:
    """Return what a finding's hint suggests in place of the text that it covers; None if that cannot be told."""
    match = _MEANT.match(finding.hint)
    if match is None:
        return None
    bare = covered[1:-1] if covered[:1] in ("'", '"') and covered[-1:] == covered[:1] else covered
    is_inner = match[1].startswith("${{") and "${{" not in bare
    meant = match[1][len("${{") : -len("}}")] if is_inner else match[1]
    last = bare if "/" in meant else bare.rpartition("/")[2]
    for wrong in (last, bare, *_QUOTED.findall(finding.message)):
        if wrong != meant and bare.count(wrong) == 1 and closest(wrong, [meant]) is not None:
            is_sure = is_surely(wrong, meant) and (match[2] is None or _is_same_file(wrong, meant))
            return Suggested(bare.replace(wrong, meant), is_sure)
    return None


def _is_same_file(wrong: str, meant: str) -> bool:
    """Whether two names of files differ by swapped letters, case, `.yml` or a letter left out within a word alone.

    `predct.yml` is `predict.yml`, and `trains.yml` may be another file than `train.yml`.
    """
    first, second = (name.lower().replace(".yml", ".yaml") for name in (wrong, meant))
    has_same_ends = all(os.path.splitext(first)[0][end] == os.path.splitext(second)[0][end] for end in (0, -1))
    is_letter_left_out = has_same_ends and slips(first, second) == 1 and len(first) < len(second)
    return sorted(first) == sorted(second) or (is_letter_left_out and misspelt_name(first, [second]) is not None)
