"""Weights from and to torch's distributed checkpoints (DCP), as torchtitan and loops of one's own write them.

    python distributed_checkpoint.py export out/model dcp          a model's folder, as a distributed checkpoint
    python distributed_checkpoint.py import dcp out/model          and back: model.safetensors, to go with a config.json
    python distributed_checkpoint.py import dcp out/model model.   of names that begin so, which the new ones do not

Names and bits of the tensors stay. All of them have to fit into this machine's main memory.

A checkpoint lists its tensors in a pickle, `.metadata`, and a pickle can run code. Nothing is made from it here but the
classes of torch that such a list consists of; tensors are read with `weights_only=True`, from files in its folder only.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of a list of tensors")
        return super().find_class(module, name)


class SafeReader(FileSystemReader):
    """Reads a distributed checkpoint, which may be a stranger's, without running code from it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the list of tensors. SystemExit if it is not only that."""
        file = Path(self.path) / ".metadata"
        try:
            with file.open("rb") as stream:
                metadata = _Unpickler(stream).load()
        except Exception as failure:  # a damaged pickle can raise any
            sys.exit(f"{file} cannot be read: {failure}")
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            sys.exit(f"{file} is not a list of tensors")
        for stored in metadata.storage_data.values():
            if Path(stored.relative_path).name != stored.relative_path:
                sys.exit(f"{file} names {stored.relative_path}; expected a file in its folder")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        return metadata


def export_weights(model: Path, checkpoint: Path) -> None:
    """Write all weights of a model's folder as a distributed checkpoint."""
    tensors = {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}
    dcp.save(tensors, checkpoint_id=checkpoint, no_dist=True)


def import_weights(checkpoint: Path, model: Path, prefix: str = "") -> None:
    """Write the tensors of a distributed checkpoint whose names begin so, without that, as model.safetensors."""
    reader = SafeReader(checkpoint)
    listed = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in listed.items()
        if name.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
    }
    if not tensors:
        sys.exit(f"{checkpoint} has no tensor whose name begins with {prefix!r}")
    dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
    model.mkdir(parents=True, exist_ok=True)
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    save_file(named, model / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    what, source, target, *prefix = sys.argv[1:]
    {"export": export_weights, "import": import_weights}[what](Path(source), Path(target), *prefix)
