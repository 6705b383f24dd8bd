"""Did you mean …? The one way in which a mistyped name is answered."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MOST_LISTED = 12


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a mistyped one, or None when none is near. Case counts little."""
    by_lowered = {candidate.lower(): candidate for candidate in known}
    lowered = name.lower()
    if lowered in by_lowered:
        return by_lowered[lowered]
    matches = get_close_matches(lowered, by_lowered, n=1, cutoff=0.6)
    if matches:
        return by_lowered[matches[0]]
    return next((known for low, known in by_lowered.items() if _same_words(lowered, low)), None)


def did_you_mean(name: str, known: Iterable[str], nothing_known: str = "") -> str:
    """A hint: the closest known name, or the list of them when it is short; `nothing_known` when there are none."""
    candidates = list(known)
    if not candidates:
        return nothing_known
    if hint := close_match(name, candidates):
        return hint
    listed = ", ".join(f"'{candidate}'" for candidate in candidates[:_MOST_LISTED])
    return f"Known here: {listed}{', …' if len(candidates) > _MOST_LISTED else ''}."


def close_match(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest known name; empty when none is near. For messages that list them already."""
    match = closest(name, known)
    return f"Did you mean '{match}'?" if match is not None else ""


def _same_words(first: str, second: str) -> bool:
    """Whether two names hold the same words in another order or with other joints: `shm-size`, `size_shm`."""
    first_words = sorted(first.replace("-", "_").split("_"))
    second_words = sorted(second.replace("-", "_").split("_"))
    return first_words == second_words
