"""CIFAR-10's binary version: five files of training images and one of test images.

Each record is one byte of label and 3,072 bytes of image, 32×32, red plane first, then green, then blue:
https://www.cs.toronto.edu/~kriz/cifar.html describes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.settings.steps.prepare_images import PrepareImages
from trainyard.steps.data.images.source import ImagePart, ImageSource, part_in_memory
from trainyard.steps.runtime.errors import StepError

_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_FILES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
_ARCHIVE_FOLDER = "cifar-10-batches-bin"
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def open_source(settings: PrepareImages) -> ImageSource:
    """Return the images in the folder, or in the folder within it that CIFAR-10's archive unpacks to."""
    folder = settings.source
    assert folder is not None
    if (folder / _ARCHIVE_FOLDER).is_dir():
        folder = folder / _ARCHIVE_FOLDER
    expected = [name for names in _FILES.values() for name in names]
    missing = [name for name in expected if not (folder / name).is_file()]
    if missing:
        raise StepError(f"{folder} lacks files of CIFAR-10's binary version: {', '.join(missing)}")
    parts = {part: _read_part([folder / name for name in names]) for part, names in _FILES.items()}
    return ImageSource(_CLASSES, _SHAPE, parts)


def _read_part(files: list[Path]) -> ImagePart:
    records = np.concatenate([_read_records(file) for file in files])
    return part_in_memory(records[:, 0].astype(np.int64), records[:, 1:].reshape(-1, *_SHAPE))


def _read_records(file: Path) -> npt.NDArray[np.uint8]:
    found_bytes = file.stat().st_size
    if found_bytes == 0 or found_bytes % _RECORD_BYTES:
        whole_bytes = -(-max(found_bytes, 1) // _RECORD_BYTES) * _RECORD_BYTES
        raise StepError(
            f"{file} is truncated: records are {_RECORD_BYTES} bytes, so at least {whole_bytes} bytes were "
            f"expected, found {found_bytes}"
        )
    records = np.fromfile(file, dtype=np.uint8).reshape(-1, _RECORD_BYTES)
    if records[:, 0].max() >= len(_CLASSES):
        wrong = int(np.argmax(records[:, 0] >= len(_CLASSES)))
        raise StepError(f"{file}: record {wrong} has the label {records[wrong, 0]}; expected 0 to {len(_CLASSES) - 1}")
    return records
