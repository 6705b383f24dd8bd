"""MinHash signatures: a few hundred bytes per document, from which the similarity of any two is estimated.

A document's shingles are its runs of so many words, in lower case. Two documents' similarity is that of their sets of
shingles: how many both have, divided by how many either has (Jaccard). Each value of a signature is the minimum of one
hash function over the shingles, and two documents agree in it with a probability equal to their similarity
(A. Broder, "On the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

import functools
import hashlib
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.sample_order import finalized

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Each character of Japanese, Chinese and Korean counts as a word: such text may have no spaces."""

_SHINGLES_AT_ONCE = 2048
_LARGEST = np.uint64(0xFFFFFFFF)
_SEED = 0x7472_6169_6E79_6172
_FOUND_AT_THRESHOLD = 0.99

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Signature:
    """What is kept of a document for finding its duplicates."""

    digest: bytes
    """Of the text: equal for equal texts alone."""

    values: bytes
    """MinHash values, 4 bytes each; empty for a text without words."""


class SignatureBuilder:
    """Takes a document piece by piece, so that its length costs no memory."""

    def __init__(self, shingle_words: int, minhash_values: int) -> None:
        self._length = shingle_words
        self._factors, self._terms = _hash_functions(minhash_values)
        self._powers = _powers(shingle_words)
        self._digest = hashlib.blake2b(digest_size=16)
        self._least = np.full(minhash_values, _LARGEST, dtype=np.uint64)
        self._waiting = np.empty(0, dtype=np.uint64)
        self._any_shingle = False

    def add(self, text: str) -> None:
        """Take the next piece of the text. Pieces are cut between words wherever that is possible."""
        self._digest.update(text.encode("utf-8"))
        words = np.fromiter((_word_hash(word) for word in _WORD.findall(text.lower())), dtype=np.uint64)
        words = np.concatenate([self._waiting, words])
        if len(words) >= self._length:
            self._take(_shingles(words, self._powers))
        self._waiting = words[max(0, len(words) - self._length + 1) :]

    def finish(self) -> Signature:
        """Return the signature. A text shorter than a shingle is one shingle."""
        if not self._any_shingle and len(self._waiting):
            self._take(_shingles(self._waiting, self._powers[: len(self._waiting)]))
        values = self._least.astype("<u4").tobytes() if self._any_shingle else b""
        return Signature(self._digest.digest(), values)

    def _take(self, shingles: Hashes) -> None:
        self._any_shingle = True
        for start in range(0, len(shingles), _SHINGLES_AT_ONCE):
            some = shingles[start : start + _SHINGLES_AT_ONCE, None]
            hashed = (some * self._factors + self._terms) >> np.uint64(32)
            np.minimum(self._least, hashed.min(axis=0), out=self._least)


def similarity(left: bytes, right: bytes) -> float:
    """Return the share of equal values of two signatures, the estimate of their documents' similarity."""
    return float(np.mean(np.frombuffer(left, "<u4") == np.frombuffer(right, "<u4")))


@dataclass(frozen=True)
class Bands:
    """How signatures are cut into bands: documents are compared that have some band in common.

    Two documents of similarity s have one in common with probability 1 - (1 - s^rows)^count.
    """

    count: int
    rows: int

    def probability(self, similarity: float) -> float:
        """Return the probability that two documents of this similarity are compared."""
        return float(1 - (1 - similarity**self.rows) ** self.count)

    def of(self, values: bytes) -> list[int]:
        """Return a 63-bit hash of each band of a signature; none for a text without words."""
        width = 4 * self.rows
        starts = range(0, self.count * width if values else 0, width)
        return [hash_64(values[start : start + width]) >> 1 for start in starts]


def bands_for(threshold: float, minhash_values: int) -> Bands:
    """Return the longest bands, which compare fewest documents, that find 99 % of the pairs at the threshold itself."""
    candidates = [Bands(minhash_values // rows, rows) for rows in range(1, minhash_values + 1)]
    return [bands for bands in candidates if bands.probability(threshold) >= _FOUND_AT_THRESHOLD or bands.rows == 1][-1]


@functools.lru_cache(maxsize=1 << 18)
def _word_hash(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", errors="surrogatepass"))


def _shingles(words: Hashes, powers: Hashes) -> Hashes:
    """Return a 64-bit hash of each run of as many words as there are powers."""
    count = len(words) - len(powers) + 1
    total = np.zeros(count, dtype=np.uint64)
    for place, power in enumerate(powers):
        total += words[place : place + count] * power
    return finalized(total)  # neighbouring sums become hashes that share no pattern


@functools.cache
def _powers(count: int) -> Hashes:
    return np.array([pow(0x9E3779B97F4A7C15, place + 1, 1 << 64) for place in range(count)], dtype=np.uint64)


@functools.cache
def _hash_functions(count: int) -> tuple[Hashes, Hashes]:
    """Return odd factors and terms of `count` multiply-shift hash functions, the same at every call and everywhere."""
    generator: Any = np.random.Generator(np.random.PCG64(_SEED))
    factors, terms = generator.integers(0, 1 << 64, size=(2, count), dtype=np.uint64)
    return factors | np.uint64(1), terms


def hash_64(data: bytes) -> int:
    """Return 64 bits that depend on all of the data."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
