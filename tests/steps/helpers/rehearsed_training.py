"""A training of two ranks that `trainyard run` executes, preempted or not, and the digest of its weights."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from rank_processes import SOURCE, TESTS, training_arguments

from trainyard.rehearse.display import Display
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.runner import run_pipeline
from trainyard.settings.run_record import RunRecord
from trainyard.spec.loading import load_job


@dataclass(frozen=True)
class RehearsedTraining:
    """A folder with a pipeline of one job, which trains a tiny model on two ranks, saving every few steps.

    `python` is that of the job.
    """

    folder: Path
    digits: Path
    save_every: int = 5
    python: Path = Path(sys.executable)

    def run(self, name: str, *preempt: str) -> RunRecord:
        """Run it to its end; return the record."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "pipeline.yml"
        file.write_text(json.dumps(self._pipeline(), indent=1))
        options = RunOptions(self.folder / "runs", name=name, use_cache=False, preempt=preempt, python=self.python)
        return run_pipeline(load_job(file, strict=True), options, Display(quiet=True, stream=io.StringIO()))

    def _pipeline(self) -> dict[str, object]:
        flags = ("--epochs", 2, "--checkpoint-every-steps", self.save_every, "--global-batch-size", 64)
        arguments = training_arguments(
            self.digits, Path("${{outputs.trained}}"), "tiny_task:Slow", *flags, "--micro-batch-size", 32,
            "--log-every-steps", 1,
        )  # fmt: skip
        words = [shlex.quote(str(argument)) if "${{" not in str(argument) else str(argument) for argument in arguments]
        component = {
            "type": "command",
            "command": f"python -m trainyard.steps.train_ddp {' '.join(words)}",
            "environment": "azureml:some_environment:1",
            "outputs": {"trained": {"type": "uri_folder"}},
            "distribution": {"type": "pytorch", "process_count_per_instance": 2},
        }
        variables = {"PYTHONPATH": f"{SOURCE}:{TESTS}", "OMP_NUM_THREADS": "1"}
        job = {"type": "command", "component": component, "environment_variables": variables}
        return {"type": "pipeline", "settings": {"default_compute": "azureml:cpu"}, "jobs": {"train": job}}


def weights_digest(record: RunRecord) -> str:
    """The digest of the trained model's weights."""
    model = record.folder / record.jobs["train"].outputs["trained"] / "model" / "model.safetensors"
    return hashlib.sha256(model.read_bytes()).hexdigest()
