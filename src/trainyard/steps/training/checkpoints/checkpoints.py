"""The checkpoints of one training: what its loop calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.checkpoints.checkpoint_to_resume import (
    choose_checkpoint,
    keep_newest_and_best,
    name_to_go_back_to,
    step_folder,
)
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import (
    Commit,
    changed_settings,
    read_commit,
    refuse_another_training,
    write_commit,
)
from trainyard.steps.training.checkpoints.restoring import restore
from trainyard.steps.training.checkpoints.saving import HostCopy, in_thread, write_and_commit
from trainyard.steps.training.checkpoints.state_files import RANDOM_PREFIX, in_file_order, share_to_write
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.new_weights import SCHEME
from trainyard.steps.training.randomness import random_state
from trainyard.steps.training.samples.plan import Progress
from trainyard.steps.training.validation import Metric

_OF_FIGURES = ("best_metric", "evaluation_batches")
"""The settings without which figures of validations cannot be compared."""


class Checkpoints:
    """The checkpoints in one folder. Every rank calls every method, in the same order, from its main thread.

    At most one checkpoint is being written. The training computes the same bits whether it waits or not: what is saved
    is copied first, and nothing else is shared with the thread that writes.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        identity: Mapping[str, Any],
        *,
        identity_defaults: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        keep: int = 2,
        best_by: Metric | None = None,
        asynchronous: bool = True,
        failed_saves_limit: int = 5,
    ) -> None:
        self.stall_seconds = 0.0
        """How long checkpoints have held up the training so far, on this rank."""
        self.failed_saves = 0
        """How many checkpoints could not be written, while the training continued."""
        self.is_engine_damaged = False
        """Whether the engine holds parts of a checkpoint that proved to be damaged, and of no other one."""
        self._folder, self._world, self._identity = folder, world, identity
        self._new_weights: int | None = SCHEME
        self._identity_defaults, self._settings = identity_defaults or {}, settings or {}
        self._went_back_to: str | None = None
        self._keep, self._best_by, self._asynchronous = keep, best_by, asynchronous
        self._failed_saves_limit, self._failed_in_a_row = failed_saves_limit, 0
        self._ranks = Ranks(world)
        self._copy = HostCopy(world.device)
        self._saving: tuple[Progress, Future[None]] | None = None
        """How far the training had come when its state was copied, and what is done once it is committed."""
        self._best: float | None = None
        self._best_before: float | None = None
        self._committed: Progress | None = None

    def resume(self, resume: str, engine: Engine, seed: int) -> tuple[Path, Progress] | None:
        """Restore the engine from the checkpoint to resume from. Return its folder and how far it had come, if any.

        StepError if there is none by that name.
        """
        self._went_back_to = name_to_go_back_to(self._folder, resume)

        def use(folder: Path, commit: Commit) -> Progress:
            self.is_engine_damaged = True
            progress = self.load(folder, commit, engine, seed)
            self.is_engine_damaged = False
            return progress

        restored = choose_checkpoint(self._folder, resume, self._ranks, use)
        if self._world.device.type == "cuda":
            self._copy.prepare(self._pieces(engine.state()))
        return restored

    def load(self, folder: Path, commit: Commit, engine: Engine, seed: int) -> Progress:
        """Restore everything from a checkpoint, of whatever engine and world size. Return how far it had come.

        Raises as `restore`.
        """
        refuse_another_training(folder, commit.identity, self._identity, self._identity_defaults)
        restore(folder, commit, engine, self._ranks, self._world.device, seed)
        if warning := changed_settings(commit.settings, self._settings):
            self._world.log(warning)
        self._new_weights = commit.new_weights
        if folder == step_folder(self._folder, commit.progress.step):
            self._committed = commit.progress
        is_comparable = all(commit.settings.get(name) == self._settings.get(name) for name in _OF_FIGURES)
        self._best = commit.best_figure if is_comparable else None
        if (commit.engine, commit.world_size) != (engine.name, self._world.size):
            self._world.log(
                f"saved by engine {commit.engine} at world size {commit.world_size}; continuing with engine "
                f"{engine.name} at world size {self._world.size}"
            )
        return commit.progress if is_comparable else replace(commit.progress, figure_to_beat=None, idle_validations=0)

    def is_best(self, validation: Mapping[str, float]) -> bool:
        """Return whether these figures make a checkpoint worth keeping: the best so far."""
        if self._best_by is None or not validation:
            return False
        with self._stalled():
            self._settle()  # if saving the last best one failed, every rank must know
            return self._best_by.is_better(self._best_by.value(validation), self._best)

    def save(
        self, engine: Engine, progress: Progress, validation: Mapping[str, float] | None = None, *, wait: bool = False
    ) -> None:
        """Save the state as it is now, and commit it while the training continues.

        With `wait` it is committed when the call returns, or StepError is raised on every rank. Without, a checkpoint
        that cannot be written is logged and counted, and the training continues with the one before: until
        `failed_saves_limit` have failed in a row, when StepError is raised on every rank instead of trying again.
        """
        is_best = self.is_best(validation or {})
        with self._stalled():
            self._settle()
            if not wait and self._failed_in_a_row >= self._failed_saves_limit:  # all ranks know of the same saves
                raise StepError(
                    f"{self._failed_in_a_row} checkpoints in a row could not be written to {self._folder} "
                    "(--failed-saves-limit); make room or make it writable, and run the same command again"
                )
            self._best_before = self._best
            if is_best and validation and self._best_by is not None:
                self._best = self._best_by.value(validation)
            if self._committed is not None and progress.step == self._committed.step:
                # Writing it again would remove it for a moment, and only what its validation says may be new.
                self._ranks.main(lambda: self._commit_again(progress, is_best=is_best))
                self._committed = progress
                return
            beside_training = self._asynchronous and not wait
            self._saving = progress, self._begin(engine, progress, is_best=is_best, beside_training=beside_training)
            if not beside_training:
                self._settle(must_succeed=wait)

    def before_update(self) -> None:
        """Let copies finish before the state changes: called before each optimizer step."""
        if self._saving is not None:
            self._copy.before_update()
            if self._saving[1].done():
                self._settle()

    def finish(self) -> None:
        """Wait for the checkpoint being written, whatever ended the training; errors are reported elsewhere."""
        with self._stalled(), suppress(Exception):
            self._settle()

    def _begin(self, engine: Engine, progress: Progress, *, is_best: bool, beside_training: bool) -> Future[None]:
        """Copy the state as it is now, and start writing it."""
        engine.align_ranks()
        state = engine.state()
        pieces = self._pieces(state)
        self._copy.begin(pieces, state)
        commit = Commit(
            progress=progress,
            world_size=self._world.size,
            engine=engine.name,
            identity=self._identity,
            scalars=engine.scalars(),
            best_figure=self._best,
            is_best=is_best,
            settings=self._settings,
            new_weights=self._new_weights,
            went_back_to=self._went_back_to,
        )
        folder = step_folder(self._folder, progress.step)

        def save() -> None:
            write_and_commit(folder, commit, pieces, self._copy, self._ranks, beside_training=beside_training)
            if self._world.is_main:
                keep_newest_and_best(folder, self._keep, keep_best=self._best_by is not None)

        return in_thread(save)

    def _commit_again(self, progress: Progress, *, is_best: bool) -> None:
        if is_best or progress != self._committed:
            folder = step_folder(self._folder, progress.step)
            commit = read_commit(folder)
            is_best = is_best or commit.is_best
            write_commit(folder, replace(commit, progress=progress, best_figure=self._best, is_best=is_best))

    def _settle(self, *, must_succeed: bool = False) -> None:
        """Wait for the checkpoint being written. A failure is raised, or logged and counted."""
        if self._saving is None:
            return
        (progress, saving), self._saving = self._saving, None
        self._copy.before_update()
        try:
            saving.result()
        except StepError as error:
            if must_succeed:
                raise
            self._best = self._best_before
            self.failed_saves += 1
            self._failed_in_a_row += 1
            self._world.log(
                f"warning: cannot write the checkpoint of step {progress.step}, and the training continues without "
                f"it: {error}"
            )
        else:
            self._committed, self._failed_in_a_row = progress, 0

    def _pieces(self, state: Sequence[Fragment]) -> list[Fragment]:
        """Return what this rank writes: its share of the state, and its random state."""
        random = [
            Fragment(RANDOM_PREFIX + name, tuple(values.shape), 0, values.view(-1))
            for name, values in random_state(self._world.device).items()
        ]
        return in_file_order([*share_to_write(state, self._world.rank, self._world.size), *random])

    @contextmanager
    def _stalled(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.stall_seconds += time.perf_counter() - started
