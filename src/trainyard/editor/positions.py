"""Places in text as the protocol counts them, and as the linter does.

The protocol counts lines and columns from 0, columns in code units of an encoding that client and server agree on, and
knows three line breaks. The linter counts from 1, in characters, and breaks lines where YAML does, which is also at
U+0085, U+2028 and U+2029.
"""

from __future__ import annotations

import errno
import re
from bisect import bisect_right
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lsprotocol import types

from trainyard.spec.diagnostic import Span
from trainyard.spec.yaml_parsing import line_starts

_LINE_BREAK = re.compile("\r\n|\r|\n")
_BYTES_PER_UNIT = {"utf-8": 1, "utf-16": 2, "utf-32": 4}


class Places:
    """Converts places of one text, in both directions."""

    def __init__(self, text: str, encoding: str = "utf-16") -> None:
        self._text = text
        self._codec = encoding if encoding == "utf-8" else f"{encoding}-le"
        self._bytes_per_unit = _BYTES_PER_UNIT[encoding]

    def range_of(self, span: Span) -> types.Range:
        """Return a span of the linter in the protocol's form."""
        start, end = self._position(span.line, span.column), self._position(span.end_line, span.end_column)
        return types.Range(start, end)

    def place_of(self, position: types.Position) -> tuple[int, int]:
        """Return the line and column of a position as the linter counts them."""
        offset = self.offset_of(position)
        line = bisect_right(self._yaml_lines, offset)
        return line, offset - self._yaml_lines[line - 1] + 1

    def offset_of(self, position: types.Position) -> int:
        """Return how many characters precede a position; one beyond the end of a line is that end."""
        if position.line >= len(self._lines):
            return len(self._text)
        start = self._lines[position.line]
        end = self._lines[position.line + 1] if position.line + 1 < len(self._lines) else len(self._text)
        line = self._text[start:end].rstrip("\r\n")
        before = self._encoded(line)[: position.character * self._bytes_per_unit]
        return start + len(before.decode(self._codec, errors="ignore"))

    def position_of(self, offset: int) -> types.Position:
        """Return the position in front of the character at an offset."""
        line = bisect_right(self._lines, offset) - 1
        before = self._text[self._lines[line] : offset]
        return types.Position(line, len(self._encoded(before)) // self._bytes_per_unit)

    def _position(self, line: int, column: int) -> types.Position:
        if line > len(self._yaml_lines):
            return self.position_of(len(self._text))
        return self.position_of(min(self._yaml_lines[line - 1] + column - 1, len(self._text)))

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._codec, "surrogatepass")

    @cached_property
    def _yaml_lines(self) -> list[int]:
        return line_starts(self._text)

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(line_break.end() for line_break in _LINE_BREAK.finditer(self._text))]


def path_of(uri: str) -> Path | None:
    """Return the file of a `file:` URI; None for others, such as that of an editor's unnamed buffer,
    and for a name that no file can have."""
    try:
        parts = urlsplit(uri)
        if parts.scheme != "file":
            return None
        share = f"//{parts.netloc}" if parts.netloc else ""
        # A path may contain '?' and '#' only if they are escaped.
        path = Path(url2pathname(share + parts.path))
        path.stat()
    except ValueError:
        return None
    except OSError as error:
        return None if error.errno == errno.ENAMETOOLONG else path
    return path
