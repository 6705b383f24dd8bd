"""Which VM size each cluster is, as a folder of compute files says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Document, read_document
from trainyard.spec.kinds import kind_of


def sku_by_compute(folder: Path) -> dict[str, str]:
    """The size of each cluster by the cluster's name, from the compute files of a folder that need not be there.

    Files that cannot be read and those of another kind are passed over: what is wrong with them, lint says.
    """
    return {
        name.text: size.text
        for compute in _computes(folder)
        if (name := compute.root.get("name")) is not None and (size := compute.root.get("size")) is not None
        if name.text and size.text
    }


def _computes(folder: Path) -> Iterator[Document]:
    for file in sorted(folder.glob("*.yaml")):
        try:
            document = read_document(file)
        except SpecError:
            continue
        if kind_of(document) == "compute":
            yield document
