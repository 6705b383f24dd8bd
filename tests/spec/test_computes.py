"""Which machines are behind a cluster's name, from whatever lies beside the file that uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.spec.computes import Computes
from trainyard.spec.findings import DocumentStore


def sizes(folder: Path, named: dict[str, str] | None = None) -> dict[str, str]:
    """The size of each cluster that a pipeline in `pipelines/` knows."""
    computes, file = Computes(DocumentStore(), named or {}), folder / "pipelines" / "p.yaml"
    return {name: found.size for name in computes.names(file) if (found := computes.find(name, file)) is not None}


@pytest.fixture
def compute(tmp_path: Path) -> Path:
    """The folder of compute files."""
    (tmp_path / "compute").mkdir()
    return tmp_path / "compute"


def test_each_cluster_has_the_size_that_its_file_says(compute: Path) -> None:
    (compute / "a.yaml").write_text("type: amlcompute\nname: gpus\nsize: Standard_ND96asr_v4\n")
    (compute / "b.yaml").write_text("type: amlcompute\nname: cpus\nsize: Standard_D8s_v5\n")
    assert sizes(compute.parent) == {"gpus": "Standard_ND96asr_v4", "cpus": "Standard_D8s_v5"}


@pytest.mark.parametrize(
    "text",
    [
        "name: [broken\n",
        "",
        "- a list\n",
        "type: amlcompute\nname: no-size\n",
        "type: amlcompute\nname: empty-size\nsize:\n",
        "type: kubernetes\nname: arc\n",
        "name: trainyard\nimage: ubuntu\nsize: Standard_D8s_v5\n",
        "type: command\nname: step\ncommand: echo\nsize: Standard_D8s_v5\n",
    ],
)
def test_a_file_that_says_no_size_is_passed_over(compute: Path, text: str) -> None:
    (compute / "a.yaml").write_text(text)
    (compute / "b.yaml").write_text("type: amlcompute\nname: cpus\nsize: Standard_D8s_v5\n")
    (compute / "c.yaml").mkdir()
    assert sizes(compute.parent) == {"cpus": "Standard_D8s_v5"}


def test_without_a_folder_there_are_no_sizes(tmp_path: Path) -> None:
    assert sizes(tmp_path) == {}


def test_settings_come_before_compute_files_and_these_before_profiles(compute: Path) -> None:
    profiles = compute.parent / "profiles"
    profiles.mkdir()
    (profiles / "base.yaml").write_text("sku: Standard_NC64as_T4_v3\ncluster: gpus\n")
    (profiles / "mine.yaml").write_text("extends: base\ncluster: others\n")
    assert sizes(compute.parent) == {"gpus": "Standard_NC64as_T4_v3", "others": "Standard_NC64as_T4_v3"}

    (compute / "a.yaml").write_text("type: amlcompute\nname: gpus\nsize: Standard_ND96asr_v4\n")
    assert sizes(compute.parent)["gpus"] == "Standard_ND96asr_v4"
    assert sizes(compute.parent, {"gpus": "Standard_D8s_v5"})["gpus"] == "Standard_D8s_v5"


def test_a_cluster_that_two_profiles_describe_differently_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "a.yaml").write_text("sku: Standard_NC64as_T4_v3\ncluster: gpus\n")
    (tmp_path / "profiles" / "b.yaml").write_text("sku: Standard_ND96asr_v4\ncluster: gpus\n")
    (tmp_path / "profiles" / "c.yaml").write_text("extends: c\ncluster: gpus\n")
    assert sizes(tmp_path) == {}
