from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from trainyard.catalogue import skus
from trainyard.catalogue.skus import UnknownSku, all_skus, closest_by_name, closest_current, find_sku


def test_a_machine_with_everything_that_is_known_of_it() -> None:
    sku = find_sku("Standard_ND96asr_v4")
    assert (sku.gpu_count, sku.gpu_model, sku.gpu_memory_gb_each, sku.rdma, sku.bf16) == (
        8,
        "NVIDIA A100 SXM4 40GB",
        40,
        True,
        True,
    )
    assert (sku.vcpus, sku.ram_gib, sku.infiniband_gbit_per_second_per_gpu) == (96, 900, 200)
    assert sku.nccl_settings["NCCL_IB_PCI_RELAXED_ORDERING"] == "1"
    assert sku.source


@pytest.mark.parametrize("name", ["ND96asr_v4", "standard_nd96asr_v4", " STANDARD_ND96ASR_V4 "])
def test_case_and_prefix_do_not_matter(name: str) -> None:
    assert find_sku(name).name == "Standard_ND96asr_v4"


def test_every_row_is_read_and_every_fact_has_a_source() -> None:
    with (Path(skus.__file__).parent / "skus.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [sku.name for sku in all_skus()] == [row["name"] for row in rows]
    for sku in all_skus():
        assert sku.source
        assert (sku.gpu_count > 0) == (sku.gpu_model is not None)


def test_every_column_of_the_data_is_read() -> None:
    with (Path(skus.__file__).parent / "skus.csv").open(encoding="utf-8", newline="") as file:
        columns = set(next(csv.reader(file)))

    assert set(skus.Sku._fields) == columns


def test_gpus_and_memory_multiply_out() -> None:
    for sku in all_skus():
        if sku.gpu_count and sku.gpu_fraction == 1:
            assert sku.gpu_memory_gb_each is not None
            assert sku.gpu_memory_gb_total == sku.gpu_count * sku.gpu_memory_gb_each, sku.name


def test_a_part_of_a_gpu_is_a_fraction() -> None:
    assert find_sku("NV6ads_A10_v5").gpu_fraction == Fraction(1, 6)


@pytest.mark.parametrize(
    ("retired", "successor"),
    [
        ("Standard_NC24", "Standard_NC64as_T4_v3"),
        ("Standard_NC6", "Standard_NC4as_T4_v3"),
        ("Standard_NC6s_v3", "Standard_NC24ads_A100_v4"),
        ("Standard_NC24rs_v3", "Standard_NC96ads_A100_v4"),
        ("Standard_NC12s_v3", "Standard_NC48ads_A100_v4"),
        ("Standard_ND24rs", "Standard_NC96ads_A100_v4"),
        ("Standard_HC44rs", "Standard_HB120rs_v3"),
        ("Standard_E4s_v3", "Standard_D8s_v5"),
    ],
)
def test_a_retired_size_has_a_successor_of_its_kind(retired: str, successor: str) -> None:
    sku = find_sku(retired)
    assert not sku.is_current
    assert closest_current(sku)[0].name == successor
    assert all(other.is_current for other in closest_current(sku))
    assert all(sku.gpu_count or other.rdma == sku.rdma for other in closest_current(sku))


def test_retired_sizes_say_so() -> None:
    sku = find_sku("NC24")
    assert (sku.is_retired, sku.retirement_date) == (True, "2023-08-31")
    assert not find_sku("HC44rs").is_retired, "only announced"


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("Standard_ND96asr", "Standard_ND96asr_v4"),
        ("ND96isr_H100", "Standard_ND96isr_H100_v5"),
        ("NC64as_T4", "Standard_NC64as_T4_v3"),
        ("NC24s", "Standard_NC64as_T4_v3"),
    ],
)
def test_a_mistyped_name_is_answered_with_current_sizes(mistyped: str, meant: str) -> None:
    with pytest.raises(UnknownSku, match=f"unknown VM size '{mistyped}'. Closest: {meant}"):
        find_sku(mistyped)
    assert all(sku.is_current for sku in closest_by_name(mistyped))


def test_a_name_like_no_other_is_not_guessed_at() -> None:
    with pytest.raises(UnknownSku) as caught:
        find_sku("bogus")
    assert "Closest" not in str(caught.value)
    assert "`trainyard skus` lists all" in str(caught.value)


def test_the_family_is_the_letters_before_the_first_digit() -> None:
    assert [find_sku(name).family for name in ("NC6", "ND96asr_v4", "HB120rs_v3", "DS3_v2")] == ["NC", "ND", "HB", "DS"]


def test_the_floor_between_machines_is_three_quarters_of_their_infiniband() -> None:
    assert find_sku("Standard_ND96isr_H100_v5").network_floor_gbyte_per_second == 300
    assert find_sku("Standard_ND40rs_v2").network_floor_gbyte_per_second == 9.375
    assert find_sku("Standard_NC96ads_A100_v4").network_floor_gbyte_per_second is None


def test_the_floor_between_machines_asks_no_more_of_a_link_than_azure_does_without_nccl() -> None:
    for sku in all_skus():
        least = sku.health_check_infiniband_bandwidth_gbit_per_second
        if least is not None and sku.network_floor_gbyte_per_second is not None:
            assert sku.network_floor_gbyte_per_second <= least * sku.infiniband_links / 8


@pytest.mark.parametrize(("name", "gpus", "instead"), [("Standard_NC24r", 4, 4), ("Standard_NV6", 1, 1)])
def test_the_sizes_of_old_tutorials_are_known_as_retired(name: str, gpus: int, instead: int) -> None:
    sku = find_sku(name)
    assert (sku.is_retired, sku.gpu_count) == (True, gpus)
    assert closest_current(sku)[0].gpu_count == instead
