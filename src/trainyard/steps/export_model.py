"""Export a trained model for MLflow, as safetensors with its configuration, and as ONNX.

    python -m trainyard.steps.export_model --data data/digits --model out/model --mlflow-model out/mlflow \\
        --files out/files

The MLflow model is served with `mlflow models serve -m out/mlflow --env-manager local`.
"""

from __future__ import annotations

from trainyard.settings.steps.models import ExportModel
from trainyard.steps.runtime.entrypoint import as_step, run_and_end


@as_step(ExportModel, "trainyard.steps.export_model")
def main(settings: ExportModel) -> int:
    """Export the model; StepError if a format, loaded again, computes something else."""
    from trainyard.steps.runtime.imports import from_extra, require_packages

    require_packages("an MLflow model", from_extra("train"), "pandas", "mlflow.pyfunc")
    if settings.onnx:
        require_packages("--onnx", from_extra("onnx"), "onnx", "onnxruntime", "onnxscript")
    from trainyard.steps.exporting.export import run_export

    return run_export(settings)


if __name__ == "__main__":
    run_and_end(main)
