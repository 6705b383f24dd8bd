"""When findings are determined: in a thread of its own, quickly after each change, fully when changes pause."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trainyard.editor.workspace import Checked, EditorWorkspace, Interrupted

_PAUSE_SECONDS = 0.3
# How many objects may wait to be searched for cycles: a full pass leaves 45,000 of them, an interrupted one fewer.
_OBJECTS_AT_PAUSE = 60_000
_OBJECTS_AT_ANY_TIME = 250_000


class Checker:
    """Checks a workspace again and again, and publishes what it finds from its own thread.

    `failed` gets an error that is a bug of Trainyard; the next change is checked all the same.
    """

    def __init__(
        self, workspace: EditorWorkspace, publish: Callable[[Checked], None], failed: Callable[[Exception], None]
    ) -> None:
        self._workspace = workspace
        self._publish = publish
        self._failed = failed
        self._condition = threading.Condition()
        self._changed: set[Path] = set()
        self._full_due: float | None = None
        self._is_over = False
        self._waiting: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._work, daemon=True, name="checker")

    def start(self) -> None:
        """Start the thread."""
        # A search for cycles stops all threads, so it waits for a pause unless there is much to search.
        gc.set_threshold(_OBJECTS_AT_ANY_TIME, *gc.get_threshold()[1:])
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and the pass that it is in."""
        with self._condition:
            self._is_over = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def changed(self, files: Iterable[Path]) -> None:
        """Check some files now, and all of them when changes pause."""
        with self._condition:
            self._changed.update(files)
            self._full_due = time.monotonic() + _PAUSE_SECONDS
            self._condition.notify()

    def check_all(self, done: Callable[[], None] | None = None) -> None:
        """Check all files now; `done` is called, in the thread, after their findings were published."""
        with self._condition:
            self._full_due = time.monotonic()
            if done is not None:
                self._waiting.append(done)
            self._condition.notify()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._is_over and not self._changed and not self._is_full_due():
                    due = self._full_due
                    self._condition.wait(None if due is None else max(0.0, due - time.monotonic()))
                if self._is_over:
                    return
                changed, self._changed = self._changed, set()
                waiting: list[Callable[[], None]] = []
                if not changed:
                    self._full_due = None
                    waiting, self._waiting = self._waiting, []
            self._check(changed, waiting)

    def _check(self, changed: set[Path], waiting: list[Callable[[], None]]) -> None:
        if not changed and gc.get_count()[0] > _OBJECTS_AT_PAUSE:
            # What only holds itself is dropped; all that remains is left out of later searches.
            gc.collect()
            gc.freeze()
        # Documents are kept to the end. With searches for cycles in between, one finding in twenty came 350 ms after
        # its keystroke; without, 20 ms.
        gc.disable()
        try:
            if changed:
                self._publish(self._workspace.check_quickly(changed))
            else:
                self._publish(self._workspace.check_all(self._checkpoint))
        except Interrupted:
            with self._condition:
                self._full_due = self._full_due or time.monotonic() + _PAUSE_SECONDS
                self._waiting = [*waiting, *self._waiting]
            return
        except Exception as error:
            self._failed(error)
        finally:
            gc.enable()
        for done in waiting:
            done()

    def _is_full_due(self) -> bool:
        return self._full_due is not None and time.monotonic() >= self._full_due

    def _checkpoint(self) -> None:
        time.sleep(0)  # which lets the thread that reads messages go on
        if self._changed or self._is_over:
            raise Interrupted
