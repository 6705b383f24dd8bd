"""Where images come from: one module per format, each giving the same thing, an `ImageSource`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from trainyard.foundation.configs.prepare_images import PrepareImages
from trainyard.steps.data.images.source import ImageSource
from trainyard.steps.runtime.errors import StepError

_MODULE_OF_FORMAT = {"digits": "digits", "idx": "idx", "cifar10": "cifar10", "folder": "image_folder"}
"""Each format's module here; imported only when asked for, so that no format costs another one's packages."""


def open_source(settings: PrepareImages) -> ImageSource:
    """Open the images that the settings name. StepError says what is missing or wrong about them."""
    if settings.format != "digits":
        if settings.source is None:
            raise StepError(f"--format {settings.format} needs --source, the folder that holds the images")
        if not settings.source.is_dir():
            raise StepError(f"--source {settings.source} is not a folder")
    module = import_module(f"{__name__}.{_MODULE_OF_FORMAT[settings.format]}")
    open_format: Callable[[PrepareImages], ImageSource] = module.open_source
    return open_format(settings)
