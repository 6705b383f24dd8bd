"""What Azure's machines cost, by region: `prices.csv`, each row with its source and the day on which it was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from trainyard.catalogue.csv_rows import rows_of
from trainyard.catalogue.skus import Sku
from trainyard.errors import UsageError
from trainyard.settings.suggestions import close_match

CSV_FILE = Path(__file__).with_suffix(".csv")
KINDS = ("on demand", "spot")


@dataclass(frozen=True)
class Price:
    """What machines of one size cost in an hour, in US dollars. `date` is empty where the source has none."""

    sku: str
    kind: str
    region: str
    usd_per_hour: float
    date: str
    source: str

    @property
    def seen(self) -> str:
        """The region and the date."""
        return f"{self.region}, {self.date or 'undated, so a rough guide'}"


@cache
def _prices() -> Mapping[tuple[str, str], tuple[Price, ...]]:
    found: defaultdict[tuple[str, str], tuple[Price, ...]] = defaultdict(tuple)
    for price in rows_of(Price, CSV_FILE):
        found[price.sku, price.kind] += (price,)
    return found


def price_of(sku: Sku | None, kind: str, machines: int = 1) -> Price | None:
    """Return the newest price of so many machines in their region; None without a size, or without a price there.

    Without a region it is the newest of any, and of the table's first region where several are as new.
    """
    known = prices_of(sku, kind) if sku else ()
    here = (each for each in known if sku and sku.region in ("", each.region))
    newest = max(here, key=lambda each: each.date, default=None)
    return replace(newest, usd_per_hour=machines * newest.usd_per_hour) if newest else None


def prices_of(sku: Sku, kind: str) -> Sequence[Price]:
    """Return all prices of a size that the table has, of every region and date."""
    return _prices().get((sku.name, kind), ())


def in_region(sku: Sku, region: str) -> Sku:
    """Return a size with the prices of a region; as it is where that is empty. UsageError for a region without any."""
    known = {each.region: None for prices in _prices().values() for each in prices}
    if region and region not in known:
        hint = close_match(region, known)
        raise UsageError(f"no prices of the region {region!r}. {hint}".rstrip() + f" Known: {', '.join(known)}.")
    return replace(sku, region=region) if region else sku
