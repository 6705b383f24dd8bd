"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from typing import Any, cast


def lazy_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return what `re.compile` does, without the work until it is used.

    Most files concern few of the linter's rules: compiling the patterns of all took a tenth of the time for a pipeline.
    """
    return cast("re.Pattern[str]", _LazyPattern(pattern, flags))


class _LazyPattern:
    def __init__(self, pattern: str, flags: int) -> None:
        self._arguments = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        # Set on this object, so that it is found without this function from then on.
        found = getattr(re.compile(*self._arguments), name)
        setattr(self, name, found)
        return found
