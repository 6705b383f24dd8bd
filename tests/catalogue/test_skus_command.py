from __future__ import annotations

import json

from trainyard.catalogue.skus import all_skus, find_sku
from trainyard.cli.skus import as_json, one_in_full, overview


def test_the_overview_has_a_line_for_every_machine() -> None:
    lines = overview(all_skus()).splitlines()
    for sku in all_skus():
        assert any(sku.name in line for line in lines), sku.name


def test_one_machine_in_full_names_its_sources() -> None:
    text = one_in_full(find_sku("ND96asr_v4"))
    assert "8 x NVIDIA A100 SXM4 40GB" in text
    assert find_sku("ND96asr_v4").source in text


def test_a_retired_machine_names_what_takes_its_place() -> None:
    assert "Standard_NC64as_T4_v3" in one_in_full(find_sku("NC24"))


def test_every_machine_can_be_told_to_other_programs() -> None:
    told = json.loads(as_json(all_skus()))
    assert [sku["name"] for sku in told] == [sku.name for sku in all_skus()]
