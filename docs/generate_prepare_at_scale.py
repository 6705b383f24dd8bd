"""Write the computed tables of docs/prepare_at_scale.md: `python docs/generate_prepare_at_scale.py [--check]`."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from trainyard.catalogue.prices import price_of
from trainyard.catalogue.skus import find_sku
from trainyard.settings.steps.preparation import PrepareTextSpark
from trainyard.settings.task_fields import step_fields
from trainyard.steps.data.at_scale.signatures import Bands, bands_for

PAGE = Path(__file__).parent / "prepare_at_scale.md"
TERABYTE = 10**12

MACHINE = "Standard_E8s_v3"
MACHINE_DISK_BYTES = 128 << 30
"""The temporary disk of the machine, where Spark shuffles and keeps what it is told to (learn.microsoft.com, Esv3)."""

USABLE_DISK = 0.8
SIGNED_BYTES_PER_CORE_SECOND = 3.0e6
TOKENIZED_BYTES_PER_CORE_SECOND = 1.5e6
"""Both measured on one core, in processor time, on Python's documentation: 128 MinHash values of 5-word shingles, and a
vocabulary of 8,192 tokens."""

SHUFFLED_BYTES_PER_MACHINE_SECOND = 100e6
"""What a machine of this size writes to its temporary disk and reads again, with what crosses the network."""

DOCUMENT_BYTES = 4000
TEXT_BYTES_PER_TOKEN = 4.4
TOKEN_BYTES = 2
NAME_BYTES = 40
"""A file's path and the line's number."""

DROPPED_SHARE = 0.3
ROW_BYTES = 16
"""Of Spark's binary rows, besides their values: which are null, and the row's length."""

LONG_BYTES, DIGEST_BYTES, VARIABLE_BYTES = 8, 16, 8
"""A number; a digest; and the place and length of a value whose length varies."""


@dataclass(frozen=True)
class Volume:
    """What one kind of data takes per document, before compression, and why."""

    what: str
    document_bytes: float
    is_shuffled: bool


def defaults() -> tuple[Bands, int]:
    """Return the bands and the bytes of a signature with the step's default settings."""
    field = {field.name: field.default for field in step_fields(PrepareTextSpark)}
    values, threshold = field["minhash_values"], field["near_duplicate_threshold"]
    assert isinstance(values, int)
    assert isinstance(threshold, float)
    return bands_for(threshold, values), 4 * values


def volumes() -> list[Volume]:
    """Return what is kept and what is shuffled, per document of the whole corpus."""
    bands, signature = defaults()
    bands_bytes = bands.count * LONG_BYTES
    number, digest = LONG_BYTES, DIGEST_BYTES + VARIABLE_BYTES
    signed = (
        ROW_BYTES + 2 * number + NAME_BYTES + VARIABLE_BYTES + digest + bands_bytes + signature + 2 * VARIABLE_BYTES
    )
    exact = 2 * (ROW_BYTES + number + digest)
    to_digests = ROW_BYTES + number + digest + bands_bytes + signature + 2 * VARIABLE_BYTES
    banded = 2 * bands.count * (ROW_BYTES + 3 * LONG_BYTES)
    compared = 2 * (ROW_BYTES + number + signature + VARIABLE_BYTES)
    tokens = DOCUMENT_BYTES * (1 - DROPPED_SHARE) / TEXT_BYTES_PER_TOKEN * TOKEN_BYTES
    return [
        Volume("signatures, on the executors' disks", signed, is_shuffled=False),
        Volume("digests, to their first document, twice", exact, is_shuffled=True),
        Volume("signatures, to their digests", to_digests, is_shuffled=True),
        Volume(f"{bands.count} bands of a document, to their first document, twice", banded, is_shuffled=True),
        Volume("signatures, to the pairs to compare, twice", compared, is_shuffled=True),
        Volume("tokens, on the executors' disks", tokens, is_shuffled=False),
        Volume("tokens, to their shards", tokens, is_shuffled=True),
    ]


@dataclass(frozen=True)
class Plan:
    """A preparation of so much text by so many executors."""

    text_bytes: float
    executors: int

    @property
    def documents(self) -> float:
        """The documents of the corpus."""
        return self.text_bytes / DOCUMENT_BYTES

    @property
    def kept_bytes(self) -> float:
        """What lies on all executors' disks at once."""
        return sum(volume.document_bytes for volume in volumes() if not volume.is_shuffled) * self.documents

    @property
    def shuffled_bytes(self) -> float:
        """What is written for other tasks to read, over the whole job."""
        return sum(volume.document_bytes for volume in volumes() if volume.is_shuffled) * self.documents

    @property
    def core_hours(self) -> float:
        """Processor time of signing all of the text and tokenizing what is kept."""
        kept = self.text_bytes * (1 - DROPPED_SHARE)
        return (self.text_bytes / SIGNED_BYTES_PER_CORE_SECOND + kept / TOKENIZED_BYTES_PER_CORE_SECOND) / 3600

    @property
    def hours(self) -> float:
        """How long it takes: computing, then exchanging."""
        shuffling = self.shuffled_bytes / (self.executors * SHUFFLED_BYTES_PER_MACHINE_SECOND) / 3600
        return self.core_hours / (self.executors * find_sku(MACHINE).vcpus) + shuffling

    @property
    def dollars(self) -> float:
        """The price on demand, of the executors and the driver."""
        price = price_of(find_sku(MACHINE), "on demand")
        assert price is not None
        return (self.executors + 1) * self.hours * price.usd_per_hour

    @property
    def driver_gigabytes(self) -> float:
        """What the driver holds: the keys of dropped documents, 8 bytes each."""
        return self.documents * DROPPED_SHARE * LONG_BYTES / 1e9


def least_executors(text_bytes: float) -> int:
    """Return how many executors' disks hold what is kept and all that is shuffled, which Spark removes late."""
    plan = Plan(text_bytes, 1)
    return math.ceil((plan.kept_bytes + plan.shuffled_bytes) / (USABLE_DISK * MACHINE_DISK_BYTES))


def plans() -> list[Plan]:
    """Return the plans of the page: the fewest executors for their disks, and twice as many."""
    sizes = (0.1 * TERABYTE, TERABYTE, 10 * TERABYTE)
    return [Plan(size, times * least_executors(size)) for size in sizes for times in (1, 2)]


def volume_table() -> str:
    """Return the table of what is kept and shuffled."""
    lines = ["| what | bytes a document | for 1 TB | for 10 TB |", "|---|--:|--:|--:|"]
    for volume in volumes():
        sizes = [volume.document_bytes * size * TERABYTE / DOCUMENT_BYTES / 1e9 for size in (1, 10)]
        lines.append(f"| {volume.what} | {volume.document_bytes:,.0f} | {sizes[0]:,.0f} GB | {sizes[1]:,.0f} GB |")
    shuffled = [Plan(size * TERABYTE, 1).shuffled_bytes / 1e9 for size in (1, 10)]
    total = sum(volume.document_bytes for volume in volumes() if volume.is_shuffled)
    lines.append(f"| **all that is shuffled** | {total:,.0f} | {shuffled[0]:,.0f} GB | {shuffled[1]:,.0f} GB |")
    return "\n".join(lines)


def plan_table() -> str:
    """Return the table of executors, hours and dollars."""
    lines = [
        "| text | executors | core hours | shuffled | driver holds | hours | dollars |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for plan in plans():
        lines.append(
            f"| {plan.text_bytes / TERABYTE:g} TB | {plan.executors} | {plan.core_hours:,.0f} "
            f"| {plan.shuffled_bytes / TERABYTE:.1f} TB | {plan.driver_gigabytes:.1f} GB "
            f"| {plan.hours:.1f} | ${plan.dollars:,.0f} |"
        )
    return "\n".join(lines)


def page() -> str:
    """Return the page with its tables as computed now."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("volumes", volume_table()), ("plans", plan_table())):
        begin, end = (
            f"<!-- {name}: generated by `python docs/generate_prepare_at_scale.py` -->\n",
            f"<!-- {name}: end -->",
        )
        text = re.sub(
            rf"(?s)({re.escape(begin)}).*?({re.escape(end)})", lambda found, t=table: f"{found[1]}{t}\n{found[2]}", text
        )
    return text


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else f"{PAGE} is out of date: run {sys.argv[0]}")
    PAGE.write_text(page(), encoding="utf-8")
