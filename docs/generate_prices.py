"""Refresh the catalogue's prices from Azure: `python docs/generate_prices.py eastus westeurope`.

Asks the Azure Retail Prices API, which needs no login (https://learn.microsoft.com/rest/api/cost-management/retail-prices),
for every size of the catalogue in each region, on demand and spot, and writes them to
`src/trainyard/catalogue/prices.csv` with today's date. Rows that it has no newer price for stay as they are. Where
AZURE_DEFAULTS_LOCATION names no region of the table, the first one counts, of prices that are equally new.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from trainyard.catalogue.csv_rows import rows_of
from trainyard.catalogue.prices import CSV_FILE, KINDS, Price
from trainyard.catalogue.skus import all_skus

ADDRESS = "https://prices.azure.com/api/retail/prices"
_FILTER = (
    "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{}' and armSkuName eq '{}'"
)
_TIMEOUT_SECONDS = 60


def prices_of(sku: str, region: str, date: str, address: str = ADDRESS) -> dict[str, Price]:
    """Return the prices of a Linux machine of one size in one region, by their kind; none where it is not offered.

    OSError where the address does not answer.
    """
    found = {}
    for item in _items(f"{address}?$filter={quote(_FILTER.format(region, sku))}"):
        if (kind := _kind(item)) and (item["armSkuName"], item["armRegionName"]) == (sku, region):
            found[kind] = Price(sku, kind, region, item["retailPrice"], date, address)
    return found


def _items(page: str | None) -> Iterator[Mapping[str, Any]]:
    """Yield the items of all pages: each names the next one."""
    while page:
        with urlopen(page, timeout=_TIMEOUT_SECONDS) as answer:
            document = json.load(answer)
        yield from document["Items"]
        page = document.get("NextPageLink")


def _kind(item: Mapping[str, Any]) -> str | None:
    """Return whether an item is a price on demand or of spot; None for Windows, low priority, and other currencies."""
    names = f"{item['productName']} {item['skuName']}"
    is_hourly = item["unitOfMeasure"] == "1 Hour" and item["currencyCode"] == "USD" and item["type"] == "Consumption"
    if not is_hourly or "Windows" in names or "Low Priority" in names or not item["retailPrice"]:
        return None
    return KINDS[item["skuName"].endswith(" Spot")]


def merged(old: Iterable[Price], new: Iterable[Price]) -> list[Price]:
    """Return all prices by size in the catalogue's order, new ones in place of old ones of their kind and region."""
    newest = {(each.sku, each.kind, each.region): each for each in new}
    kept = [each for each in old if (each.sku, each.kind, each.region) not in newest]
    order = {sku.name: place for place, sku in enumerate(all_skus())}
    return sorted([*newest.values(), *kept], key=lambda each: (order[each.sku], KINDS.index(each.kind)))


def write_prices(prices: Iterable[Price], file: Path) -> None:
    """Write the table."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, Price._fields, lineterminator="\n")
        table.writeheader()
        table.writerows(price._asdict() for price in prices)


def main() -> None:
    """Ask for all sizes in all regions, and write what is known then."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("regions", nargs="+", help="such as eastus")
    parser.add_argument("--address", default=ADDRESS)
    parser.add_argument("--file", type=Path, default=CSV_FILE)
    arguments = parser.parse_args()
    today = datetime.now(UTC).date().isoformat()
    new = [
        price
        for region in arguments.regions
        for sku in all_skus()
        for price in prices_of(sku.name, region, today, arguments.address).values()
    ]
    write_prices(merged(rows_of(Price, arguments.file), new), arguments.file)
    print(f"{len(new)} prices of {len(arguments.regions)} regions, {today}: {arguments.file}")


if __name__ == "__main__":
    main()
