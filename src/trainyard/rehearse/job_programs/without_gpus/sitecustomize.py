"""Has PyTorch run without GPUs in this Python, as soon as it is imported: `trainyard run --without-gpus`.

Python imports this file when it starts, since its folder is on PYTHONPATH; it runs the module of the same name that it
hides. It is for the job's own Python, so it imports nothing of Trainyard.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"


class _Loader(importlib.abc.Loader):
    """Loads a module as another loader does, then changes it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        torch_without_gpus = importlib.import_module("torch_without_gpus")
        if module.__name__ == _FSDP:
            torch_without_gpus.stand_in_for_fsdp(module)
        else:
            torch_without_gpus.stand_in_for_cuda(int(os.environ["TRAINYARD_WITHOUT_GPUS"]))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in ("torch", _FSDP):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _run_hidden_module() -> None:
    """Run the `sitecustomize` that would have been imported without this one."""
    others = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "TRAINYARD_WITHOUT_GPUS" in os.environ:
    sys.meta_path.insert(0, _Finder())
_run_hidden_module()
