"""What Azure's machines cost, by region: `prices.csv`, each row with its source and the day on which it was read."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trainyard.catalogue.csv_rows import rows_of
from trainyard.catalogue.skus import Sku

CSV_FILE = Path(__file__).with_suffix(".csv")
KINDS = ("on demand", "spot")


class Price(NamedTuple):
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
def all_prices() -> tuple[Price, ...]:
    """Return all prices of the table, in its order."""
    return rows_of(Price, CSV_FILE)


def price_of(sku: Sku | None, kind: str, machines: int = 1) -> Price | None:
    """Return the newest price of so many machines; None without a size, or without a price of it.

    It is of the region that `az configure` knows as AZURE_DEFAULTS_LOCATION, where there is one of it; else of any, and
    of the table's first region where several are as new.
    """
    known = [each for each in all_prices() if sku and (each.sku, each.kind) == (sku.name, kind)]
    here = [each for each in known if each.region == os.environ.get("AZURE_DEFAULTS_LOCATION")]
    newest = max(here or known, key=lambda each: each.date, default=None)
    return newest._replace(usd_per_hour=machines * newest.usd_per_hour) if newest else None
