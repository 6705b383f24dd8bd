"""Text files that are replaced whole or not at all, so that a reader finds either the old or the new text."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def replace_text(file: Path, text: str) -> None:
    """Replace a file's text, keeping its permissions. Raise OSError if that fails, leaving the file as it was."""
    # Threads and processes that write the same file must not share a temporary one. `open` applies the umask.
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            temporary.chmod(file.stat().st_mode & 0o777)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
