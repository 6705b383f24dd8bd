"""Image files, in a folder per class or listed in a table, decoded by Pillow in several processes.

`source/CLASS/…png`, or `source/train/CLASS/…png` with `validation` (or `val`) and `test` beside it. Headers are
read first, so that files that cannot be decoded are reported before anything is written. The result does not depend on
the number of processes: blocks are cut by position and taken in order.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from trainyard.settings.quantities import first_names
from trainyard.settings.steps.preparation import PrepareImages
from trainyard.settings.this_machine import available_processors
from trainyard.steps.data.images.image_source import Blocks, ImagePart, Images, ImageSource
from trainyard.steps.data.text.text_source import skipped_files
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.long_work import ProgressLines, in_processes

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
PART_OF_NAME = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
"""The part that a folder's name, or a table's word, stands for."""
_SIXTEEN_BIT_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})
_GREY_MODES = frozenset({"1", "L", "LA"}) | _SIXTEEN_BIT_MODES
_EXIF_ORIENTATION = 0x0112
_UPRIGHT = 1
_ORIENTATIONS_TURNED_SIDEWAYS = frozenset({5, 6, 7, 8})
_LARGEST_CHOSEN_SIDE = 224
"""What most image models are made for; in pixels."""
_BLOCK_FILES = 64
_FEWEST_FILES_FOR_PROCESSES = 512
"""Below this, starting processes costs more than they save."""
_FEWEST_OF_A_CLASS = 5
"""So that every split can have one, and training a few."""

if TYPE_CHECKING:
    from PIL import Image

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Header:
    """An image file's header; `problem` is set when it cannot be read."""

    size: tuple[int, int] = (0, 0)
    is_grey: bool = True
    problem: str | None = None


LabelledFiles = Sequence[tuple[Path, str]]
"""Image files, each with the name of its class."""


def open_source(settings: PrepareImages) -> ImageSource:
    """Return the images below the source folder, all of one size."""
    assert settings.source is not None
    parts = {name: _list_part(folder) for name, folder in _part_folders(settings.source).items()}
    return open_files(parts, settings)


def open_files(parts: Mapping[str, LabelledFiles], settings: PrepareImages) -> ImageSource:
    """Return the images in the files of each part, all of one size. Raise StepError for files that are not images, and
    for classes that no training image has."""
    classes = sorted({label for _, label in parts["train"]})
    for name, part in parts.items():
        if unknown := sorted({label for _, label in part} - set(classes)):
            raise StepError(
                f"{settings.source}: the part {name} has classes that the training part lacks: {', '.join(unknown)}"
            )
    workers = settings.workers or available_processors()
    headers: dict[Path, _Header] = {}
    all_files = [file for part in parts.values() for file, _ in part]
    progress = ProgressLines("read the headers of", len(all_files), "images")
    for block_files, block in _in_blocks(_read_headers, all_files, workers):
        headers.update(zip(block_files, block, strict=True))
        progress.advance(len(block_files))
    _report_undecodable({file: h.problem for file, h in headers.items() if h.problem}, len(all_files), settings)
    sound = {
        name: [(file, label) for file, label in part if headers[file].problem is None] for name, part in parts.items()
    }
    if not sound["train"]:
        raise StepError(f"{settings.source} holds no image that can be decoded")
    _warn_of_small_classes(sound["train"])
    sound_headers = [headers[file] for part in sound.values() for file, _ in part]
    sizes = [header.size for header in sound_headers]
    width, height = (settings.image_size,) * 2 if settings.image_size else _common_size(sizes)
    channels = 1 if all(header.is_grey for header in sound_headers) else 3
    decoder = _Decoder(channels, height, width, scale=any(size != (width, height) for size in sizes))
    return ImageSource(
        classes,
        (channels, height, width),
        {name: _image_part(part, classes, decoder, workers, settings) for name, part in sound.items()},
    )


def _part_folders(folder: Path) -> dict[str, Path]:
    """Return the folders train, validation and test of the source if it has them, else the source as one part."""
    if not (folder / "train").is_dir() or not any(child.is_dir() for child in (folder / "train").iterdir()):
        return {"train": folder}
    found: dict[str, Path] = {}
    for name, part in PART_OF_NAME.items():
        if (folder / name).is_dir():
            if part in found:
                raise StepError(
                    f"{folder} has both {found[part].name}/ and {name}/; one of them is the validation part"
                )
            found[part] = folder / name
    return found


def _list_part(folder: Path) -> LabelledFiles:
    names = sorted(child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not names:
        loose = sum(child.suffix.lower() in _SUFFIXES for child in folder.iterdir())
        held = f"{loose} images without a folder, so without a class" if loose else "no images"
        raise StepError(f"{folder} holds {held}: expected one folder of images ({' '.join(_SUFFIXES)}) per class")
    listed: list[tuple[Path, str]] = []
    skipped: list[str] = []
    empty: list[str] = []
    for name in names:
        found = [file for file in sorted((folder / name).rglob("*")) if file.is_file()]
        of_class = [(file, name) for file in found if file.suffix.lower() in _SUFFIXES]
        if not of_class:
            empty.append(name)
        skipped += [str(file.relative_to(folder)) for file in found if file.suffix.lower() not in _SUFFIXES]
        listed += of_class
    for note in skipped_files(skipped, "images"):
        print(note, flush=True)
    if not listed:
        raise StepError(f"{folder} holds no images in its folders {first_names(empty)}: expected {' '.join(_SUFFIXES)}")
    if empty:
        print(f"warning: {folder} has folders without images, which are not classes: {first_names(empty)}", flush=True)
    return listed


def _warn_of_small_classes(part: LabelledFiles) -> None:
    images_of = Counter(label for _, label in part)
    if few := {name: count for name, count in sorted(images_of.items()) if count < _FEWEST_OF_A_CLASS}:
        named = first_names(f"{name} ({count})" for name, count in few.items())
        print(
            f"warning: {len(few)} of {len(images_of)} classes have fewer than {_FEWEST_OF_A_CLASS} images for "
            f"training: {named}",
            flush=True,
        )


def _report_undecodable(problems: dict[Path, str | None], total: int, settings: PrepareImages) -> None:
    """Report the files that cannot be decoded. Raise StepError unless they may be skipped."""
    if not problems:
        return
    named = first_names(f"{file} ({problem})" for file, problem in problems.items())
    message = f"{len(problems)} of {total} images cannot be decoded: {named}"
    if not settings.skip_undecodable:
        raise StepError(f"{message}; set --skip-undecodable true to leave them out")
    print(f"warning: skipped: {message}", flush=True)


def _common_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the width and height to give all images: theirs, if they agree."""
    if len(set(sizes)) == 1:
        return sizes[0]
    side = min(_LARGEST_CHOSEN_SIDE, round(statistics.median(min(size) for size in sizes)))
    smallest, largest = (f"{width}x{height}" for width, height in (min(sizes), max(sizes)))
    print(
        f"the images differ in size, from {smallest} to {largest} (width x height): scaling all to {side}x{side}; set "
        "--image-size for another size",
        flush=True,
    )
    return side, side


def _image_part(
    part: LabelledFiles, classes: Sequence[str], decoder: _Decoder, workers: int, settings: PrepareImages
) -> ImagePart:
    number_of = {name: number for number, name in enumerate(classes)}
    labels = np.array([number_of[label] for _, label in part], dtype=np.int64)

    def read(sample_ids: npt.NDArray[np.int64]) -> Blocks:
        chosen = [part[number][0] for number in sample_ids]
        label_of = dict(zip(chosen, labels[sample_ids], strict=True))
        problems: dict[Path, str | None] = {}
        for block_files, (images, block_problems) in _in_blocks(decoder, chosen, workers):
            problems |= block_problems
            kept = [label_of[file] for file in block_files if file not in block_problems]
            yield np.array(kept, dtype=np.int64), images
        _report_undecodable(problems, len(chosen), settings)

    return ImagePart(labels, read)


def _in_blocks(
    work: Callable[[list[Path]], Result], files: list[Path], workers: int
) -> Iterator[tuple[list[Path], Result]]:
    """Yield blocks of files with what `work` returns for them, in order; in several processes if there are enough."""
    blocks = [files[start : start + _BLOCK_FILES] for start in range(0, len(files), _BLOCK_FILES)]
    if workers == 1 or len(files) < _FEWEST_FILES_FOR_PROCESSES:
        yield from ((block, work(block)) for block in blocks)
        return
    yield from in_processes(work, blocks, min(workers, len(blocks)), "decoded images")


def _read_headers(files: list[Path]) -> list[_Header]:
    return [_read_header(file) for file in files]


def _read_header(file: Path) -> _Header:
    from PIL import Image

    try:
        with Image.open(file) as image:
            width, height = image.size
            if _orientation(image) in _ORIENTATIONS_TURNED_SIDEWAYS:
                width, height = height, width
            return _Header((width, height), image.mode in _GREY_MODES)
    except Exception as failure:  # Pillow's decoders raise all kinds of exceptions for broken files
        return _Header(problem=_reason(failure))


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, if there is one: asking a PNG without it would decode all of the PNG's pixels."""
    return int(image.getexif().get(_EXIF_ORIENTATION, _UPRIGHT)) if "exif" in image.info else _UPRIGHT


@dataclass(frozen=True)
class _Decoder:
    """Decodes a block of files into one array; returns the files that cannot be decoded with the reason of each."""

    channels: int
    height: int
    width: int
    scale: bool

    def __call__(self, files: list[Path]) -> tuple[Images, dict[Path, str]]:
        images = np.empty((len(files), self.channels, self.height, self.width), dtype=np.uint8)
        problems: dict[Path, str] = {}
        decoded = 0
        for file in files:
            try:
                images[decoded] = self._decode(file)
                decoded += 1
            except Exception as failure:  # Pillow's decoders raise all kinds of exceptions for broken files
                problems[file] = _reason(failure)
        return images[:decoded], problems

    def _decode(self, file: Path) -> Images:
        from PIL import Image, ImageOps

        with Image.open(file) as opened:
            upright = opened if _orientation(opened) == _UPRIGHT else ImageOps.exif_transpose(opened)
            image = _eight_bit(upright).convert("L" if self.channels == 1 else "RGB")
            if self.scale and image.size != (self.width, self.height):
                # Scale by the shorter side and crop to the centre: scaling each side separately would distort shapes.
                image = ImageOps.fit(image, (self.width, self.height), Image.Resampling.BICUBIC)
            pixels = np.asarray(image, dtype=np.uint8)
        return np.moveaxis(pixels.reshape(self.height, self.width, self.channels), 2, 0)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return the upper 8 bits of a 16-bit image; Pillow would clip all but the darkest pixels to white."""
    from PIL import Image

    if image.mode not in _SIXTEEN_BIT_MODES:
        return image
    return Image.fromarray((np.asarray(image, dtype=np.int64) >> 8).astype(np.uint8))


def _reason(failure: Exception) -> str:
    """Return why a file cannot be decoded, without the file's name, which the message already has."""
    return str(failure).split(" '")[0].split(": '")[0] or type(failure).__name__
