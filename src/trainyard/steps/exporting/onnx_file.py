"""A trained image classifier as ONNX: pixels in, probabilities out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.tasks.image_classification import image_logits

_TOLERANCE = 1e-4
"""Another runtime adds in another order: probabilities agree to this, not to the bit."""


class _Classifier(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return image_logits(self._model, images).softmax(dim=1)


def write_onnx(model: torch.nn.Module, images: torch.Tensor, file: Path) -> float:
    """Write the model for any number of images. Return the largest difference of a probability, by ONNX Runtime.

    StepError if it is more than 1e-4.
    """
    import onnxruntime

    batch = torch.export.Dim("images")
    torch.onnx.export(
        _Classifier(model).eval(),
        (images,),
        file,
        input_names=["images"],
        output_names=["probabilities"],
        dynamic_shapes={"images": {0: batch}},
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})
    with torch.inference_mode():
        expected = _Classifier(model)(images).numpy()
    difference = float(np.abs(found - expected).max())
    if not difference <= _TOLERANCE:
        raise StepError(f"{file}: ONNX Runtime's probabilities differ from the model's by up to {difference:.2g}")
    return difference
