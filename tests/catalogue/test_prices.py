"""Prices by region, and the script that refreshes them, against a server that answers as Azure's does."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from trainyard.catalogue import prices
from trainyard.catalogue.csv_rows import rows_of
from trainyard.catalogue.prices import CSV_FILE, KINDS, Price, price_of
from trainyard.catalogue.skus import all_skus, find_sku

ROOT = Path(__file__).parents[2]
T4, H200 = "Standard_NC64as_T4_v3", "Standard_ND96isr_H200_v5"


def test_every_price_has_its_size_kind_and_source() -> None:
    sizes = {sku.name for sku in all_skus()}
    for price in rows_of(Price, CSV_FILE):
        assert price.sku in sizes
        assert price.kind in KINDS
        assert price.region
        assert price.usd_per_hour > 0
        assert price.source


def test_the_newest_price_counts_and_an_undated_one_is_a_rough_guide() -> None:
    newest, usual = price_of(find_sku("NC96ads_A100_v4"), "on demand"), price_of(find_sku(T4), "on demand", 2)
    assert newest is not None
    assert usual is not None
    assert (newest.usd_per_hour, newest.seen) == (19.108, "eastus, 2026-11-09")
    assert (usual.usd_per_hour, usual.seen) == (2 * 4.352, "eastus, 2026-06-18")
    assert price_of(find_sku("NC24"), "on demand") is None
    spot = price_of(find_sku("HC44rs"), "spot")
    assert spot is not None
    assert spot.seen == "eastus, undated, so a rough guide"


@pytest.mark.parametrize(
    ("region", "on_demand", "spot"), [("westus2", 14.692, 2.463848), ("southcentralus", 17.63, 2.2919)]
)
def test_other_regions_have_prices_on_demand_and_spot(
    monkeypatch: pytest.MonkeyPatch, region: str, on_demand: float, spot: float
) -> None:
    monkeypatch.setenv("AZURE_DEFAULTS_LOCATION", region)
    found = [price_of(find_sku("NC96ads_A100_v4"), kind) for kind in KINDS]
    assert [(each.usd_per_hour, each.seen) for each in found if each] == [
        (on_demand, f"{region}, 2024-08-27"),
        (spot, f"{region}, 2024-08-27"),
    ]


def test_without_a_region_prices_are_of_east_us_where_it_has_one_that_is_as_new() -> None:
    """So that those of a pipeline's machines, and on demand and spot, can be compared."""
    rows = rows_of(Price, CSV_FILE)
    for sku in all_skus():
        for kind in KINDS:
            newest = max((each.date for each in rows if (each.sku, each.kind) == (sku.name, kind)), default=None)
            regions = {each.region for each in rows if (each.sku, each.kind, each.date) == (sku.name, kind, newest)}
            found = price_of(sku, kind)
            assert found is None or found.region == "eastus" or "eastus" not in regions


def test_no_spot_price_is_one_on_demand() -> None:
    """A source that knows no spot price may state the one on demand in its place."""
    on_demand = {(each.sku, each.region, each.usd_per_hour) for each in rows_of(Price, CSV_FILE) if each.kind != "spot"}
    spot = {(each.sku, each.region, each.usd_per_hour) for each in rows_of(Price, CSV_FILE) if each.kind == "spot"}
    assert not spot & on_demand


def test_a_price_is_of_the_region_of_az_configure_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """H200's is of eastus2 only, and says so."""
    monkeypatch.setenv("AZURE_DEFAULTS_LOCATION", "eastus")
    of_t4, of_h200 = price_of(find_sku(T4), "on demand"), price_of(find_sku(H200), "on demand")
    assert of_t4 is not None
    assert of_h200 is not None
    assert (of_t4.region, of_h200.region) == ("eastus", "eastus2")
    file = tmp_path / "prices.csv"
    dear = Price(T4, "on demand", "westeurope", 99.0, "2020-01-01", "for this test")
    file.write_text(f"{CSV_FILE.read_text(encoding='utf-8')}{','.join(map(str, dear))}\n", encoding="utf-8")
    monkeypatch.setattr(prices, "CSV_FILE", file)
    monkeypatch.setenv("AZURE_DEFAULTS_LOCATION", "westeurope")
    prices.all_prices.cache_clear()
    try:
        assert price_of(find_sku(T4), "on demand") == dear
    finally:
        prices.all_prices.cache_clear()


def _item(sku: str, region: str, usd: float, sku_name: str, **changes: object) -> dict[str, object]:
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": usd,
        "unitPrice": usd,
        "armRegionName": region,
        "location": region,
        "effectiveStartDate": "2026-10-01T00:00:00Z",
        "meterName": sku_name,
        "productName": "Virtual Machines NCasT4 v3 Series",
        "skuName": sku_name,
        "serviceName": "Virtual Machines",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": sku,
        **changes,
    }


class _Azure(BaseHTTPRequestHandler):
    """The Retail Prices API for one size in one region: two pages, with what must not be taken for its price."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        (asked,) = query["$filter"]
        items, link = [], None
        if "armRegionName eq 'westeurope'" in asked and f"armSkuName eq '{T4}'" in asked:
            if "page" in query:
                items = [
                    _item(T4, "westeurope", 0.75, "NC64as T4 v3 Spot"),
                    _item(T4, "westeurope", 5.25, "NC64as T4 v3"),
                ]
            else:
                windows = {"productName": "Virtual Machines NCasT4 v3 Series Windows"}
                items = [
                    _item(T4, "westeurope", 9.0, "NC64as T4 v3", **windows),
                    _item(T4, "westeurope", 1.5, "NC64as T4 v3 Low Priority"),
                    _item(T4, "westeurope", 22000.0, "NC64as T4 v3", type="Reservation", reservationTerm="1 Year"),
                ]
                link = f"http://{self.headers['Host']}{self.path}&page=2"
        document = {"BillingCurrency": "USD", "Items": items, "NextPageLink": link, "Count": len(items)}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def azure() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Azure)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api/retail/prices"
    server.shutdown()
    server.server_close()


def test_the_script_takes_the_prices_of_linux_from_all_pages_and_keeps_what_it_does_not_find(
    azure: str, tmp_path: Path
) -> None:
    file = tmp_path / "prices.csv"
    shutil.copy(CSV_FILE, file)
    before = rows_of(Price, file)
    command = [sys.executable, ROOT / "docs" / "generate_prices.py", "westeurope", "--address", azure, "--file", file]
    for _ in range(2):  # the second time, its own rows are replaced
        subprocess.run(command, check=True, timeout=300, env={**os.environ, "NO_PROXY": "127.0.0.1"})
    after, today = rows_of(Price, file), datetime.now(UTC).date().isoformat()
    new = [price for price in after if price not in before]
    assert [(price.sku, price.kind, price.region, price.usd_per_hour, price.date) for price in new] == [
        (T4, "on demand", "westeurope", 5.25, today),
        (T4, "spot", "westeurope", 0.75, today),
    ]
    assert [price for price in after if price not in new] == list(before)
    with file.open(encoding="utf-8", newline="") as stream:
        assert next(csv.reader(stream)) == ["sku", "kind", "region", "usd_per_hour", "date", "source"]
