"""Any range of any tensor of a checkpoint, whichever ranks' files it lies in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint
from trainyard.steps.training.checkpoints.state_files import PieceName, shape_text
from trainyard.steps.training.fragments import Fragment


@dataclass
class _SavedTensor:
    """The pieces of one tensor that were found so far."""

    shape: str
    pieces: list[tuple[int, int, Any]] = field(default_factory=list)
    """Start, stop, and what reads from the file."""

    def from_position(self, position: int) -> tuple[int, int, Any] | None:
        """A piece that holds this element."""
        return next((piece for piece in self.pieces if piece[0] <= position < piece[1]), None)


class StateReader:
    """Reads a checkpoint's state files, and only as many of them as hold what is asked for.

    They are opened in the order given: with the nearest first, a rank that goes on with what it had opens little
    else than its own file, which counts where opening a file fetches it whole from a blob store.
    """

    def __init__(self, folder: Path, file_names: Sequence[str]) -> None:
        self._folder = folder
        self._unopened = list(file_names)
        self._tensors: dict[str, _SavedTensor] = {}

    def read_into(self, fragment: Fragment) -> None:
        """Fill a fragment. StepError when the tensor's shape or type is another; BrokenCheckpoint for what lacks."""
        position = fragment.start
        while position < fragment.stop:
            saved, start, stop, file_slice = self._find(fragment.key, position)
            if saved.shape != shape_text(fragment.shape):
                raise StepError(
                    f"{self._folder}: {fragment.key} has the shape ({saved.shape}), "
                    f"in this model ({shape_text(fragment.shape)})"
                )
            end = min(stop, fragment.stop)
            values = file_slice[position - start : end - start]
            if values.dtype != fragment.values.dtype:
                raise StepError(
                    f"{self._folder}: {fragment.key} is of {values.dtype}, in this training of {fragment.values.dtype}"
                )
            fragment.values[position - fragment.start : end - fragment.start].copy_(values)
            position = end

    def _find(self, key: str, position: int) -> tuple[_SavedTensor, int, int, Any]:
        while True:
            saved = self._tensors.get(key)
            if saved is not None and (piece := saved.from_position(position)) is not None:
                return saved, *piece
            if not self._unopened:
                raise BrokenCheckpoint(f"{self._folder} lacks {key} from element {position} on")
            self._open(self._unopened.pop(0))

    def _open(self, file_name: str) -> None:
        file = open_state_file(self._folder / file_name)
        shapes = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            piece = PieceName.parse(name)
            saved = self._tensors.setdefault(piece.key, _SavedTensor(shapes[piece.key]))
            saved.pieces.append((piece.start, piece.stop, file.get_slice(name)))


def open_state_file(file: Path) -> Any:
    """Map a file of safetensors. BrokenCheckpoint when it is none."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as failure:
        raise BrokenCheckpoint(f"{file} cannot be read: {failure}") from None


def keys_in(file: Path) -> set[str]:
    """The keys that a state file holds a piece of."""
    return {PieceName.parse(name).key for name in open_state_file(file).keys()}  # noqa: SIM118 (it is no mapping)


def read_whole(file: Path, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors of one file whose key starts so, by the rest of their keys, each as flat as it was saved."""
    opened = open_state_file(file)
    names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118 (it is no mapping)
    return {PieceName.parse(name).key.removeprefix(prefix): opened.get_tensor(name) for name in names}
