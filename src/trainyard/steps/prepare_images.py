"""Turn labelled images into a dataset.

python -m trainyard.steps.prepare_images --prepared data/digits
python -m trainyard.steps.prepare_images --format folder --source downloads/mnist --prepared data/mnist
"""

from __future__ import annotations

import sys

from trainyard.settings.steps.preparation import PrepareImages
from trainyard.steps.runtime.entrypoint import as_step

_LEAST_CLASSES = 2


@as_step(PrepareImages, "trainyard.steps.prepare_images")
def main(settings: PrepareImages) -> int:
    """Read the images, split them, write the dataset."""
    from trainyard.steps.data.dataset.manifest import ArrayType
    from trainyard.steps.data.dataset.writer import DatasetWriter, settings_named
    from trainyard.steps.data.images import open_source
    from trainyard.steps.data.images.image_source import split_parts
    from trainyard.steps.runtime.long_work import ProgressLines

    source = open_source(settings)
    splits = split_parts(source, settings.validation_fraction, settings.test_fraction, settings.seed)
    arrays = {"images": ArrayType("uint8", source.image_shape), "labels": ArrayType("int64", ())}
    with DatasetWriter(settings.prepared, arrays, settings.shard_samples) as dataset:
        for name, (part, sample_ids) in splits.items():
            progress = ProgressLines("wrote", len(sample_ids), f"{name} images")
            with dataset.split(name) as split:
                for labels, images in part.read(sample_ids):
                    split.add({"images": images, "labels": labels})
                    progress.advance(len(labels))
        made_by = settings_named(settings, "format", "seed", "validation_fraction", "test_fraction", "image_size")
        manifest = dataset.finish("labelled_images", source.classes, made_by)
    channels, height, width = source.image_shape
    counts = ", ".join(f"{split.samples} {name}" for name, split in manifest.splits.items())
    if len(source.classes) < _LEAST_CLASSES:
        print(
            f"warning: all images are of one class, {source.classes[0]!r}, so there is nothing to learn: the source "
            "needs a folder (or a label) for each class",
            flush=True,
        )
    print(f"{counts} images of {channels}x{height}x{width} in {len(source.classes)} classes: {settings.prepared}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
