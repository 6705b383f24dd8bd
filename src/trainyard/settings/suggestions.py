"""Did you mean …? The one way in which a mistyped name is answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

_MOST_LISTED = 12
# A word of one or two letters is a language, a size or a variant, and none of these is another one misspelt.
_SHORT_WORD = 2
_WORDS = frozenset(("cpu", "gpu", "prep", "pred", "test", "text", "train", "trial", "dev", "prd", "raw", "row"))


# Comparing is slow, and a file may misspell thousands of names where there are thousands. It then gets no more hints.
_MOST_COMPARISONS_OF_A_FILE = 50_000
_LONGEST_COMPARED = 200
# Of `difflib`; `condition` is to `description` 0.6.
_LEAST_LIKENESS = 0.61
_comparisons_left = _MOST_COMPARISONS_OF_A_FILE


def begin_file() -> None:
    """Allow as many comparisons as one file may cost."""
    global _comparisons_left
    _comparisons_left = _MOST_COMPARISONS_OF_A_FILE


def _may_compare(name: str, candidates: Collection[str]) -> bool:
    global _comparisons_left
    if len(name) > _LONGEST_COMPARED or _comparisons_left < len(candidates):
        return False
    _comparisons_left -= len(candidates)
    return True


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a mistyped one, or None when none is near. Case counts little."""
    candidates = tuple(known)
    return _closest(name, candidates) if _may_compare(name, candidates) else None


def _has_another_word(name: str, candidate: str) -> bool:
    """Whether two names share a word, and differ in one that is quite another: `input_folder`, `output_dir_folder`."""
    from difflib import SequenceMatcher

    words, others = _words(name), _words(candidate)
    rest, other_rest = "_".join(w for w in words if w not in others), "_".join(w for w in others if w not in words)
    is_partly_same = len(rest) < len("_".join(words))
    return bool(is_partly_same and rest and other_rest) and SequenceMatcher(None, rest, other_rest).ratio() < 0.5


def _words(name: str) -> list[str]:
    return name.replace("-", "_").strip("_").split("_")


# One mistake may occur in a file thousands of times.
@lru_cache
def _closest(name: str, known: tuple[str, ...]) -> str | None:
    from difflib import get_close_matches

    by_lowered = {candidate.lower(): candidate for candidate in known}
    lowered = name.lower()
    if lowered in by_lowered:
        return by_lowered[lowered]
    matches = get_close_matches(lowered, by_lowered, n=1, cutoff=_LEAST_LIKENESS)
    if matches and not _has_another_word(lowered, matches[0]):
        return by_lowered[matches[0]]
    # The same words in another order or with other joints: `shm-size`, `size_shm`.
    words = sorted(_words(lowered))
    return next((known for low, known in by_lowered.items() if sorted(_words(low)) == words), None)


def only_close(name: str, known: Iterable[str]) -> str | None:
    """The one known name that can be meant so surely that it may be written unasked; None when in doubt.

    One slip in a short name, two in a long one; digits must agree: `train_1` is not a typo of `train_2`.
    """
    candidates = tuple(known)
    if not _may_compare(name, candidates):
        return None
    found = [candidate for candidate in candidates if candidate != name and _is_slip(name, candidate)]
    return found[0] if len(found) == 1 else None


def misspelt_name(name: str, known: Iterable[str]) -> str | None:
    """The same for names that people give, where a word may differ on purpose: `torch-cpu`, `sales_de`, `model_a`."""
    meant = only_close(name, known)
    return None if meant is not None and _differs_on_purpose(name, meant) else meant


def _differs_on_purpose(first: str, second: str) -> bool:
    words = [text.lower().replace("_", "-").replace(".", "-").split("-") for text in (first, second)]
    if len(words[0]) != len(words[1]):
        return False
    pairs = [pair for pair in zip(*words, strict=True) if pair[0] != pair[1]]
    is_short = any(max(map(len, pair)) <= _SHORT_WORD for pair in pairs)
    return is_short or any(_WORDS.issuperset(pair) for pair in pairs)


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
    """A hint that names the closest known name; empty when none is near. For messages that list them already.

    Of two that are as near, it names both.
    """
    candidates = tuple(known)
    match = closest(name, candidates)
    if match is None:
        return ""
    others = (each for each in candidates if each != match and _is_slip(name, each)) if _is_slip(name, match) else ()
    other = next((each for each in others if each.lower() != name.lower() != match.lower()), None)
    return f"Did you mean '{match}'?" if other is None else f"Did you mean '{match}' or '{other}'?"


def is_surely(name: str, meant: str) -> bool:
    """Whether the only near name may be written unasked: as for `only_close`, and for three letters if none is another.

    `typ` is `type` and `scr` is `src`, but `cpu` may not be `gpu`.
    """
    if only_close(name, [meant]) is not None:
        return True
    has_other_letter = len(name) == len(meant) and sorted(name) != sorted(meant)
    is_word = name.isalpha() and min(len(name), len(meant)) > _SHORT_WORD
    return is_word and not has_other_letter and slips(name, meant) == 1


@lru_cache(maxsize=4096)
def _is_slip(name: str, candidate: str) -> bool:
    if _figures(name) != _figures(candidate):
        return False
    first, second = name.lower().replace("-", "_"), candidate.lower().replace("-", "_")
    shortest = min(len(first), len(second))
    most = 0 if shortest < 4 else 1 if shortest < 8 else 2
    return abs(len(first) - len(second)) <= most and slips(first, second) <= most


def _figures(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def slips(first: str, second: str) -> int:
    """How many letters are left out, put in, changed or swapped with their neighbour (optimal string alignment)."""
    rows = [list(range(len(second) + 1))]
    for i, letter in enumerate(first, start=1):
        row = [i]
        for j, other in enumerate(second, start=1):
            cost = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


@lru_cache(maxsize=4096)
def one_slip_from(name: str, known: frozenset[str]) -> str | None:
    """The known name that differs from this one by exactly one slip (see `slips`); None if there is none."""
    return min((candidate for candidate in known if _is_one_slip(name, candidate)), default=None)


def _is_one_slip(first: str, second: str) -> bool:
    """Whether `slips` of the two is 1, without its table."""
    if first == second or abs(len(first) - len(second)) > 1:
        return False
    same = next((at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), None)
    if same is None:
        return True  # the longer one has a letter more at its end
    rest, other_rest = first[same:], second[same:]
    is_swap = rest[:2] == other_rest[1::-1] and rest[2:] == other_rest[2:]
    return is_swap or other_rest[1:] in (rest, rest[1:]) or rest[1:] == other_rest
