"""One checkpoint on its way to disk, in a thread beside the training."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.commit import Commit, SavedFile, write_commit
from trainyard.steps.training.checkpoints.durable_files import make_names_durable, write_durably
from trainyard.steps.training.checkpoints.host_copy import HostCopy
from trainyard.steps.training.checkpoints.retention import keep_newest_and_best, remove_checkpoint
from trainyard.steps.training.checkpoints.state_files import state_file_header, state_file_name
from trainyard.steps.training.checkpoints.together import Ranks
from trainyard.steps.training.fragments import Fragment

_WRITER_NICENESS = 10
"""Above the training's 0: with all processors busy, the training goes first."""


@dataclass(frozen=True)
class SaveRequest:
    """What is to be saved, and what stays beside it."""

    folder: Path
    commit: Commit
    """Without its files, which come of the saving."""
    keep: int
    keep_best: bool


class Saving:
    """Writes this rank's file, and commits once every rank has written its own. Begins when made, on every rank."""

    def __init__(
        self, request: SaveRequest, pieces: Sequence[Fragment], copy: HostCopy, ranks: Ranks, *, beside_training: bool
    ) -> None:
        self._request, self._pieces, self._copy, self._ranks = request, pieces, copy, ranks
        self._beside_training = beside_training
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def step(self) -> int:
        """The step whose state is saved."""
        return self._request.commit.progress.step

    def is_done(self) -> bool:
        """Whether waiting would take no time."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Return once it is committed. StepError, on every rank, when one rank could not write its part."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            if self._beside_training and sys.platform == "linux":
                with suppress(PermissionError):
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _WRITER_NICENESS)
            self._write_and_commit()
        except BaseException as failure:  # whoever waits hears of it
            self._failure = failure

    def _write_and_commit(self) -> None:
        request, ranks = self._request, self._ranks
        ranks.main(self._make_folder)
        try:
            files = dict(ranks.each(self._write_own_file))
            ranks.main(lambda: write_commit(request.folder, replace(request.commit, files=files)))
        except StepError:
            if ranks.is_main:
                # What a full disk holds of it would stand in the way of the next one.
                with suppress(OSError):
                    remove_checkpoint(request.folder)
            raise
        if ranks.is_main:
            keep_newest_and_best(request.folder, request.keep, keep_best=request.keep_best)

    def _make_folder(self) -> None:
        remove_checkpoint(self._request.folder)
        self._request.folder.mkdir(parents=True)

    def _write_own_file(self) -> tuple[str, SavedFile]:
        file = self._request.folder / state_file_name(self._ranks.rank)
        file.parent.mkdir(exist_ok=True)  # another node may not see yet that rank 0 made it
        header = state_file_header(self._pieces)
        saved = SavedFile(*write_durably(file, [header, self._copy.wait()]))
        make_names_durable(file.parent)
        return file.name, saved
