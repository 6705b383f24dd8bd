"""Checkpoints of a TensorFlow training: every variable in one safetensors file, and a commit as of all train steps.

Worker 0 writes and chooses; every worker reads the one that was chosen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from trainyard.settings.files import describe_os_error
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import make_names_durable, write_durably
from trainyard.steps.training.checkpoints.checkpoint_to_resume import (
    OneRank,
    choose_checkpoint,
    keep_newest_and_best,
    name_to_go_back_to,
    remove_checkpoint,
    step_folder,
    verify_files,
)
from trainyard.steps.training.checkpoints.commit import (
    Commit,
    SavedFile,
    changed_settings,
    read_commit,
    refuse_another_training,
    write_commit,
)
from trainyard.steps.training.samples.plan import Progress
from trainyard.steps.training.tensorflow.cluster import Tasks
from trainyard.steps.training.tensorflow.trainer import Trainer

ENGINE = "tensorflow"
_STATE_FILE = "variables.safetensors"


class TensorFlowCheckpoints:
    """The checkpoints in one folder. Every worker calls `resume`; only worker 0 writes."""

    def __init__(
        self,
        folder: Path,
        tasks: Tasks,
        identity: Mapping[str, Any],
        identity_defaults: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        keep: int,
        failed_saves_limit: int,
    ) -> None:
        self.stall_seconds = 0.0
        """How long checkpoints have held up the training so far."""
        self.failed_saves = 0
        self._folder, self._tasks, self._settings = folder, tasks, settings
        self._identity, self._identity_defaults = identity, identity_defaults
        self._keep, self._failed_saves_limit, self._failed_in_a_row = keep, failed_saves_limit, 0
        self._went_back_to: str | None = None
        self._committed_step: int | None = None

    def resume(self, setting: str, trainer: Trainer) -> Progress:
        """Restore the trainer from the checkpoint to resume from, if there is one. Return how far it had come."""
        self._went_back_to = name_to_go_back_to(self._folder, setting)
        folder = self._tasks.main(lambda: self._choose(setting))
        if folder is None:
            return Progress()
        commit = read_commit(Path(folder))
        try:
            trainer.restore(load((Path(folder) / _STATE_FILE).read_bytes()), folder)
        except SafetensorError as failure:
            raise StepError(f"{folder} cannot be read: {failure}") from None
        if warning := changed_settings(commit.settings, self._settings):
            self._tasks.log(warning)
        if Path(folder) == step_folder(self._folder, commit.progress.step):
            self._committed_step = commit.progress.step
        progress = commit.progress
        self._tasks.log(f"continuing from {folder}: step {progress.step}, {progress.samples_consumed} samples consumed")
        return progress

    def _choose(self, setting: str) -> str | None:
        chosen = choose_checkpoint(self._folder, setting, OneRank(), self._verify)
        return None if chosen is None else str(chosen[0])

    def _verify(self, folder: Path, commit: Commit) -> None:
        verify_files(folder, commit, OneRank())
        if commit.engine != ENGINE:
            raise StepError(
                f"{folder} was saved by engine {commit.engine}, whose model is not Keras's; start over with --resume "
                "never, which keeps these checkpoints aside"
            )
        refuse_another_training(folder, commit.identity, self._identity, self._identity_defaults)

    def save(self, trainer: Trainer, progress: Progress, *, must_succeed: bool = False) -> None:
        """Write and commit the state as it is now, on worker 0.

        A failure is logged and counted, and raised as StepError if it `must_succeed`, or after too many in a row.
        """
        if not self._tasks.is_main or progress.step == self._committed_step:
            return
        started = time.perf_counter()
        folder = step_folder(self._folder, progress.step)
        try:
            self._write(folder, trainer, progress)
        except OSError as failure:
            with suppress(OSError):  # on a full disk, what was written would leave no space for the next one
                remove_checkpoint(folder)
            self.failed_saves += 1
            self._failed_in_a_row += 1
            problem = f"cannot write the checkpoint of step {progress.step}: {describe_os_error(failure)}"
            if must_succeed or self._failed_in_a_row >= self._failed_saves_limit:
                raise StepError(problem) from None
            print(f"warning: {problem}; the training continues without it", flush=True)
        else:
            self._committed_step, self._failed_in_a_row = progress.step, 0
            keep_newest_and_best(folder, self._keep, keep_best=False)
        self.stall_seconds += time.perf_counter() - started

    def _write(self, folder: Path, trainer: Trainer, progress: Progress) -> None:
        remove_checkpoint(folder)
        folder.mkdir(parents=True)
        saved = SavedFile(*write_durably(folder / _STATE_FILE, [save(trainer.state())]))
        make_names_durable(folder)
        commit = Commit(
            progress=progress,
            world_size=len(self._tasks.place.workers),
            engine=ENGINE,
            identity=self._identity,
            settings=self._settings,
            went_back_to=self._went_back_to,
            files={_STATE_FILE: saved},
        )
        write_commit(folder, commit)
