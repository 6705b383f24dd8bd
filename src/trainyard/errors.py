"""Errors for users: one message, an exit code, no traceback."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from trainyard.settings.suggestions import close_match


class UserError(ValueError):
    """What cannot be done on this machine or with these files; `exit_code` is for the shell."""

    exit_code = 1


class UsageError(UserError):
    """Wrong usage: an unknown name, an invalid path or value on the command line."""

    exit_code = 2


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the closest known one and the list of all."""
    names = sorted(known)
    # `profiles/nd96.yaml` and `nd96.yaml` mean nd96.
    hint = close_match(PurePath(name).stem, names) or close_match(name, names)
    parts = (f"unknown {kind} {name!r}.", hint, f"Known: {', '.join(names) or 'none'}.")
    return UsageError(" ".join(filter(None, parts)))
