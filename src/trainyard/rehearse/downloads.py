"""Data inputs with a public address: downloaded once, and kept under the cache for later runs."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import urllib.parse
from pathlib import Path

from trainyard.rehearse.errors import RunError, cannot_write

_TIMEOUT_SECONDS = 60
_BLOB = re.compile(r"wasbs?://([^@/]+)@([^/]+)/(.+)", re.IGNORECASE)


def web_address(text: str) -> str | None:
    """Return the address under which HTTP serves this data: itself, or that of a blob (`wasbs://`); None for others."""
    if text.lower().startswith(("http://", "https://")):
        return text
    blob = _BLOB.fullmatch(text)
    return f"https://{blob[2]}/{blob[1]}/{blob[3]}" if blob else None


def download(address: str, cache: Path) -> Path:
    """Return the local copy of a file with this address, fetched if it is not in the cache yet.

    Raise `RunError`, in one line, when it cannot be fetched or kept.
    """
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(address).path)).name or "data"
    file = cache / hashlib.sha256(address.encode()).hexdigest()[:16] / name
    if file.is_file():
        return file
    from urllib.error import URLError
    from urllib.request import urlopen  # takes 20 ms to import

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            try:
                with urlopen(address, timeout=_TIMEOUT_SECONDS) as answer:
                    shutil.copyfileobj(answer, part)
                part.close()
                os.replace(part.name, file)
            finally:
                Path(part.name).unlink(missing_ok=True)
    except (URLError, TimeoutError, ConnectionError) as error:
        raise RunError(f"{address}: cannot be downloaded ({getattr(error, 'reason', error)})") from error
    except OSError as error:
        raise cannot_write(file, error) from error
    return file
