"""The documentation that comes with Python: half a megabyte of English, so that the first run needs no data.

It is what `help("topics")` shows, from the module `pydoc_data.topics`; it varies a little with Python's version.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.steps.data.text.rows import RowsBlock
from trainyard.steps.data.text.source import BLOCK_BYTES, TextFile
from trainyard.steps.runtime.errors import StepError


class PythonTopics(TextFile):
    """Each topic is a document."""

    name = "pydoc_data.topics"

    def __init__(self) -> None:
        try:
            from pydoc_data.topics import topics
        except ImportError as failure:
            raise StepError(
                f"this Python has no documentation ({failure}); give text of your own by --source"
            ) from None
        self._topics = sorted((f"{self.name}:{name}", text.encode()) for name, text in topics.items())
        self.size_bytes = sum(len(text) for _, text in self._topics)

    def blocks(self) -> Iterator[RowsBlock]:
        """Topics by name, as many as make a block."""
        waiting: list[tuple[str, bytes]] = []
        waiting_bytes = 0
        for name, text in self._topics:
            waiting.append((name, text))
            waiting_bytes += len(text)
            if waiting_bytes >= BLOCK_BYTES:
                yield RowsBlock(self.name, waiting_bytes, tuple(waiting))
                waiting, waiting_bytes = [], 0
        if waiting:
            yield RowsBlock(self.name, waiting_bytes, tuple(waiting))
