"""IDX files, gzipped or not: MNIST, Fashion-MNIST, KMNIST, EMNIST and others in MNIST's format.

The format is a magic number (two zero bytes, a type, the number of dimensions), each dimension as a big-endian
32-bit integer, and the values: https://yann.lecun.org/exdb/mnist/ describes it.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.settings.steps.prepare_images import PrepareImages
from trainyard.steps.data.images.source import ImagePart, ImageSource, part_in_memory
from trainyard.steps.runtime.errors import StepError

_UNSIGNED_BYTE = 0x08
_FILE_NAME = re.compile(r"(?P<set>.*?)(?P<part>train|t10k|test)-(?P<kind>images|labels)[-.]idx\d-ubyte(\.gz)?")
"""`train-images-idx3-ubyte.gz`, also with a dot before idx, and with a set's name before it, as in EMNIST."""
_GZIP_WINDOW = 31  # zlib: the largest window, with gzip's header and checksum
_CLASS_NAMES_FILE = "classes.txt"


def open_source(settings: PrepareImages) -> ImageSource:
    """Return the images and labels in the folder; t10k or test files, if any, are the test set."""
    folder = settings.source
    assert folder is not None
    files = _find_files(folder)
    if ("train", "images") not in files:
        raise StepError(
            f"{folder} holds no IDX images: expected train-images-idx3-ubyte and train-labels-idx1-ubyte, "
            "with or without .gz"
        )
    parts: dict[str, ImagePart] = {}
    shapes = {}
    for part in sorted({part for part, _ in files}):
        parts[part], shapes[part] = _read_part(folder, files, part)
    if len(set(shapes.values())) > 1:
        sizes = ", ".join(f"{part} {height}x{width}" for part, (_, height, width) in shapes.items())
        raise StepError(f"{folder}: the parts' images differ in size: {sizes}")
    return ImageSource(_class_names(folder, parts), shapes["train"], parts)


def _find_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the file of each (part, kind); where a file exists both plain and gzipped, the plain one."""
    found: dict[tuple[str, str], Path] = {}
    sets = set()
    for file in sorted(folder.iterdir(), key=lambda file: (file.suffix == ".gz", file.name)):
        if match := _FILE_NAME.fullmatch(file.name):
            sets.add(match["set"])
            part = "train" if match["part"] == "train" else "test"
            found.setdefault((part, match["kind"]), file)
    if len(sets) > 1:
        names = ", ".join(sorted(name or "(unnamed)" for name in sets))
        raise StepError(f"{folder} holds several sets of IDX files: {names}; keep only one in the folder")
    return found


def _read_part(folder: Path, files: dict[tuple[str, str], Path], part: str) -> tuple[ImagePart, tuple[int, int, int]]:
    for kind in ("images", "labels"):
        if (part, kind) not in files:
            raise StepError(f"{folder}: the {kind} of the {part} part are missing; found only {_names(files, part)}")
    images = read_idx(files[part, "images"], dimensions=3)
    labels = read_idx(files[part, "labels"], dimensions=1).astype(np.int64)
    if len(images) != len(labels):
        raise StepError(
            f"{files[part, 'images'].name} has {len(images)} images but {files[part, 'labels'].name} has "
            f"{len(labels)} labels (in {folder})"
        )
    if not len(images):
        raise StepError(f"{files[part, 'images']} holds no images")
    return part_in_memory(labels, images[:, None]), (1, images.shape[1], images.shape[2])


def _names(files: dict[tuple[str, str], Path], part: str) -> str:
    return ", ".join(file.name for (file_part, _), file in files.items() if file_part == part)


def _class_names(folder: Path, parts: dict[str, ImagePart]) -> list[str]:
    """Return the lines of classes.txt if the folder has one (IDX files hold no class names), else numbers."""
    count = 1 + max(int(part.labels.max()) for part in parts.values())
    file = folder / _CLASS_NAMES_FILE
    if not file.is_file():
        return [str(number) for number in range(count)]
    names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(names) < count:
        raise StepError(f"{file} names {len(names)} classes, but the labels go up to {count - 1}")
    return names


def read_idx(file: Path, dimensions: int) -> npt.NDArray[Any]:
    """Return the array in an IDX file of unsigned bytes. Raise StepError with what was expected and what was found."""
    data = _read_bytes(file)
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if data[:4] != magic:
        raise StepError(
            f"{file} does not start as an IDX file of unsigned bytes with {dimensions} dimension"
            f"{'s' if dimensions > 1 else ''}: expected {magic.hex(' ')}, found {data[:4].hex(' ') or 'nothing'}"
        )
    header_bytes = 4 + 4 * dimensions
    if len(data) < header_bytes:
        raise StepError(f"{file} is truncated: expected {header_bytes} bytes of header, found {len(data)}")
    shape = struct.unpack(f">{dimensions}I", data[4:header_bytes])
    expected_bytes = header_bytes + math.prod(shape)
    if len(data) != expected_bytes:
        wrong = "is truncated" if len(data) < expected_bytes else "is longer than its header says"
        raise StepError(f"{file} {wrong}: expected {expected_bytes} bytes, found {len(data)}")
    return np.frombuffer(data, dtype=np.uint8, offset=header_bytes).reshape(shape)


def _read_bytes(file: Path) -> bytes:
    if file.suffix != ".gz":
        return file.read_bytes()
    decompressor = zlib.decompressobj(_GZIP_WINDOW)
    try:
        decompressed = decompressor.decompress(file.read_bytes())
    except zlib.error as failure:
        raise StepError(f"{file} is not a valid gzip file: {failure}") from None
    if not decompressor.eof:
        raise StepError(
            f"{file} is truncated: its gzip stream ends early; {_expected(decompressed)}found {len(decompressed)}"
        )
    return decompressed


def _expected(start_of_file: bytes) -> str:
    """Return how many bytes a truncated file's header promises, as words, if the header is complete."""
    dimensions = start_of_file[3] if len(start_of_file) > 3 else 0
    header_bytes = 4 + 4 * dimensions
    if not dimensions or len(start_of_file) < header_bytes:
        return "decompressed bytes "
    shape = struct.unpack(f">{dimensions}I", start_of_file[4:header_bytes])
    return f"expected {header_bytes + math.prod(shape)} decompressed bytes, "
