"""Which size each cluster has, from whatever lies in the folder of compute files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.plan.compute_files import sku_by_compute


def test_each_cluster_has_the_size_that_its_file_says(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("type: amlcompute\nname: gpus\nsize: Standard_ND96asr_v4\n")
    (tmp_path / "b.yaml").write_text("type: amlcompute\nname: cpus\nsize: Standard_D8s_v5\n")
    assert sku_by_compute(tmp_path) == {"gpus": "Standard_ND96asr_v4", "cpus": "Standard_D8s_v5"}


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
def test_a_file_that_says_no_size_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text("type: amlcompute\nname: cpus\nsize: Standard_D8s_v5\n")
    (tmp_path / "c.yaml").mkdir()
    assert sku_by_compute(tmp_path) == {"cpus": "Standard_D8s_v5"}


def test_without_a_folder_there_are_no_sizes(tmp_path: Path) -> None:
    assert sku_by_compute(tmp_path / "compute") == {}
