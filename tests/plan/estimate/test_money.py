"""Prices and preemptions."""

from __future__ import annotations

import pytest

from trainyard.catalogue.prices import price_of
from trainyard.catalogue.skus import find_sku
from trainyard.plan.estimate.money import money_of, preemptions_of, usd_per_billion, young_daly_interval
from trainyard.plan.estimate.training import machines_of_sku


def test_youngs_interval_loses_least() -> None:
    writes, between = 60.0, 36_000.0
    best = young_daly_interval(writes, between)

    def lost(interval: float) -> float:
        return writes / interval + interval / (2 * between)

    assert best == pytest.approx(2078.46, abs=0.01)
    assert lost(best) < min(lost(0.8 * best), lost(1.25 * best))


def test_more_nodes_are_preempted_more_often() -> None:
    sku = find_sku("Standard_ND96asr_v4")
    one, eight = (preemptions_of(7_000_000_000, machines_of_sku(sku, nodes)) for nodes in (1, 8))
    assert one.seconds_between == pytest.approx(8 * eight.seconds_between)
    assert eight.checkpoint_interval_seconds < one.checkpoint_interval_seconds
    assert eight.lost_share > one.lost_share


def test_a_model_that_is_written_in_no_time_is_not_written_all_the_time() -> None:
    small = preemptions_of(200_000, machines_of_sku(find_sku("Standard_NC64as_T4_v3"), 1))
    assert small.checkpoint_interval_seconds == 300


def test_prices_are_of_all_nodes_with_region_and_date() -> None:
    sku = find_sku("Standard_ND96asr_v4")
    price = money_of(1, machines_of_sku(sku, 3)).on_demand
    assert price is not None
    alone = price_of(sku, "on demand")
    assert alone is not None
    assert price.usd_per_hour == pytest.approx(3 * alone.usd_per_hour)
    assert price.region
    assert price.date


def test_a_billion_tokens() -> None:
    assert usd_per_billion(36.0, 1e6) == pytest.approx(10.0)
