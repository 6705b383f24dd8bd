"""The names of processes' logs, their warnings, and the error that ended a process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from trainyard.printing import last_lines, plain_text

_MOST_LINES_SEARCHED = 1 << 16
_TRACEBACK = "Traceback (most recent call last):"
# torch puts the rank before each line of a traceback.
_RANK = re.compile(r"^\[rank\d+\]: ?")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")
_STEP_ERROR = re.compile(r"[\w.]+: error: (.+)")
_WARNING = "warning: "
_WARNING_BYTES = _WARNING.encode()
# Plain text is without them, so the word may be written around them.
_CONTROL_BYTES = bytes(set(range(0x20)) - set(b"\t\n")) + b"\x7f"
_MOST_CAUSE_CHARACTERS = 200


def log_name(rank: int, processes: int) -> str:
    """Return Azure ML's name: std_log.txt for one process, else std_log_process_<rank>.txt, padded to equal length."""
    if processes == 1:
        return "std_log.txt"
    return f"std_log_process_{rank:0{len(str(processes))}d}.txt"


@dataclass(frozen=True)
class LoggedError:
    """The error that a log ends with: its message on one line, and the lines up to it."""

    cause: str | None
    lines: list[str]


def last_error(log: Path, count: int, names: Mapping[str, str] = MappingProxyType({})) -> LoggedError:
    """Return the last exception or error of a step in a log, with at most `count` lines that end with it.

    `names` are written in place of others, such as the user's path in place of the job's. Without an error the cause
    is None and the lines are the log's last. What a process prints after its error is omitted: it is the noise of its
    end.
    """
    lines = [_RANK.sub("", line) for line in last_lines(log, _MOST_LINES_SEARCHED)]
    for name, shown in sorted(names.items(), key=lambda pair: -len(pair[0])):  # INPUT_data begins INPUT_data_2
        lines = [line.replace(name, shown) for line in lines]
    for position in range(len(lines) - 1, -1, -1):
        if found := _STEP_ERROR.fullmatch(lines[position]):
            return LoggedError(_shortened(found[1]), lines[: position + 1][-count:])
        if lines[position] == _TRACEBACK:
            following = range(position + 1, len(lines))
            end = next((line for line in following if _EXCEPTION.fullmatch(lines[line])), None)
            if end is not None:
                return LoggedError(_shortened(lines[end]), lines[position : end + 1][-count:])
    return LoggedError(None, lines[-count:])


class WarningLines:
    """The lines `warning: …` that a process adds to its log, as far as the log is read: a part at each look."""

    _BYTES_PER_LOOK = 1 << 18

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = log.stat().st_size if log.exists() else 0
        self._cut = b""

    def new(self) -> list[str]:
        """Return what was added since the last look, without the word."""
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._position)
                added = stream.read(self._BYTES_PER_LOOK)
        except OSError:
            return []
        self._position += len(added)
        read, _, self._cut = (self._cut + added).rpartition(b"\n")
        lines = read.split(b"\n") if _may_warn(read) else []
        texts = (plain_text(line.decode("utf-8", errors="replace")).strip() for line in lines if _may_warn(line))
        return [_shortened(text.removeprefix(_WARNING)) for text in texts if text.startswith(_WARNING)]


def _may_warn(read: bytes) -> bool:
    """Return whether what was read is worth making plain, which takes 100 ms for 2 MB, twice what a short job costs."""
    return _WARNING_BYTES in read or len(read.translate(None, _CONTROL_BYTES)) < len(read)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CAUSE_CHARACTERS else text[: _MOST_CAUSE_CHARACTERS - 1] + "…"
