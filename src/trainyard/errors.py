"""What a user asked that cannot be done: said in one message, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.foundation.suggestions import close_match


class UserError(ValueError):
    """Something that cannot be done as things stand; the message is for the user, `exit_code` for the shell."""

    exit_code = 1


class UsageError(UserError):
    """Something was asked wrongly: a name, a flag, a path, a value on the command line."""

    exit_code = 2


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name nobody knows: the closest known ones, then all of them."""
    names = sorted(known)
    hint = close_match(name, names)
    return UsageError(
        " ".join(filter(None, (f"{name!r} is no {kind}.", hint, f"There are: {', '.join(names) or 'none'}.")))
    )
