"""Values that remember where they were written, so that a rendered line can name the profile's line behind it."""

from __future__ import annotations

from typing import Any

from trainyard.spec.diagnostic import Span


class WrittenText(str):
    """A text with the place it was written at."""

    origin: Span


class WrittenInteger(int):
    """A whole number with the place it was written at; products keep it."""

    origin: Span

    def __mul__(self, other: int) -> int:
        return written(int(self) * int(other), self.origin)  # type: ignore[no-any-return]

    __rmul__ = __mul__


class WrittenNumber(float):
    """A number with the place it was written at."""

    origin: Span


_TYPES: dict[type, Any] = {str: WrittenText, int: WrittenInteger, float: WrittenNumber}


def written(value: Any, origin: Span | None) -> Any:
    """The value with its origin; booleans and None, which Python lets nobody extend, and unknown origins stay bare."""
    kind = _TYPES.get(type(value))
    if origin is None or kind is None:
        return value
    marked = kind(value)
    marked.origin = origin
    return marked


def origin_of(value: Any) -> Span | None:
    """Where a value was written, when it knows."""
    return value.origin if isinstance(value, (WrittenText, WrittenInteger, WrittenNumber)) else None
