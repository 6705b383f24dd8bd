"""Which split a document belongs to, decided by the seed and the document's name alone."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.steps.runtime.errors import StepError

_FEW_DOCUMENTS = 1000
"""Fewer documents are counted out exactly; for more, comparing hashes with a bound is accurate enough."""

_HASH_BYTES = 8
_HASHES = 1 << (8 * _HASH_BYTES)


@dataclass(frozen=True)
class SplitRule:
    """Assigns splits by the hash of a document's name: the lowest test, the next validate, all others train."""

    seed: int
    test_below: int
    validation_below: int

    def split_of(self, document: str) -> str:
        """Return the split that a document belongs to."""
        value = _hash(self.seed, document)
        if value < self.test_below:
            return "test"
        return "validation" if value < self.validation_below else "train"


def split_rule(documents: Iterable[str], validation_fraction: float, test_fraction: float, seed: int) -> SplitRule:
    """Return the rule for these documents, reading only as many of their names as needed.

    With few documents, every split with a fraction above 0 gets at least one. Raise StepError when there are too few.
    """
    if validation_fraction + test_fraction >= 1:
        raise StepError(
            f"--validation-fraction {validation_fraction:g} and --test-fraction {test_fraction:g} leave nothing to "
            "train on"
        )
    hashes = sorted(_hash(seed, document) for document in itertools.islice(documents, _FEW_DOCUMENTS))
    if len(hashes) == _FEW_DOCUMENTS:
        return SplitRule(seed, int(test_fraction * _HASHES), int((test_fraction + validation_fraction) * _HASHES))
    if not hashes:
        raise StepError("no text: every file is empty")
    if len(hashes) < 1 + (test_fraction > 0) + (validation_fraction > 0):
        found = "one document" if len(hashes) == 1 else f"{len(hashes)} documents"
        raise StepError(
            f"{found} cannot be divided into training, validation (--validation-fraction {validation_fraction:g}) and "
            f"test (--test-fraction {test_fraction:g}), which need one document each; give more documents (every .txt "
            "and .md file is one, and every line of a .jsonl file), or set a fraction to 0 to omit its split"
        )
    test = _count(test_fraction, len(hashes))
    validation = _count(validation_fraction, len(hashes))
    too_many = max(0, test + validation + 1 - len(hashes))  # both may have been rounded up, leaving none to train on
    test, validation = (test - too_many, validation) if test > validation else (test, validation - too_many)
    return SplitRule(seed, hashes[test], hashes[test + validation])


def _count(fraction: float, documents: int) -> int:
    return max(1, round(fraction * documents)) if fraction > 0 else 0


def _hash(seed: int, document: str) -> int:
    key = seed.to_bytes(8, "little")
    name = document.encode("utf-8", errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, key=key, digest_size=_HASH_BYTES).digest(), "little")
