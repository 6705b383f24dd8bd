"""The settings of the step that turns labelled images into a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class PrepareImages:
    """Turn labelled images into a dataset of memory-mapped arrays with train, validation and test splits."""

    prepared: Path = output_folder()
    """Where the dataset is written: manifest.json and one or more arrays per split."""

    format: str = parameter("digits", choices=("digits", "folder", "table"))
    """The format of the images: scikit-learn's handwritten digits (needs no source), one folder of PNG and JPEG files
    per class (also below train/, validation/ or val/, and test/), or a table (CSV or parquet) of paths and labels."""

    source: Path | None = input_folder(optional=True)
    """The folder that holds the images. Every format but digits needs it."""

    image_size: int = parameter(0, minimum=0, maximum=4096)
    """Height and width in pixels to scale the images of a folder or table to. 0 keeps them as they are if they all have
    the same size, and otherwise takes the median of their shorter sides, at most 224."""

    path_column: str = parameter("path")
    """The column of a table with the images' paths, relative to the source."""

    label_column: str = parameter("label")
    """The column of a table with the images' classes. A column `split`, if there is one, says train, validation (or
    val) or test."""

    validation_fraction: float = parameter(0.1, minimum=0.0, maximum=0.9)
    """The share of the training images held out for validation."""

    test_fraction: float = parameter(0.2, minimum=0.0, maximum=0.9)
    """The share of all images held out for testing, if the source has no test set."""

    shard_samples: int = parameter(65536, minimum=1)
    """The most samples in one array file."""

    skip_undecodable: bool = parameter(False)
    """Skip images that cannot be decoded, naming and counting them, instead of failing."""

    workers: int = parameter(0, minimum=0, maximum=256)
    """Processes that decode images; 0 means one per processor."""

    seed: int = parameter(0, minimum=0, maximum=2_147_483_647)
    """The seed of the assignment of images to splits."""
