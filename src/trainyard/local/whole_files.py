"""Files that are replaced whole or not at all, so that whoever reads one at any time finds the old or the new."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def replace_text(file: Path, text: str) -> None:
    """Put this text in the place of the file's. Raises `OSError`, and then the file is as it was."""
    # Threads and processes that write the same file must not share the temporary one; `open` heeds the umask.
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
