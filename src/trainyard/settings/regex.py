"""Regular expressions that are compiled when they are first used: for a pipeline, the linter uses half of its 187."""

from __future__ import annotations

import re
from typing import Any, cast


class _Pattern:
    def __init__(self, expression: str, flags: int) -> None:
        self._source = expression, flags

    def __getattr__(self, name: str) -> Any:
        """Return the compiled expression's attribute, which is this object's own from then on."""
        found = getattr(re.compile(*self._source), name)
        setattr(self, name, found)
        return found


def regex(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Return what `re.compile` would, but compile at the first call of a method."""
    return cast("re.Pattern[str]", _Pattern(expression, flags))
