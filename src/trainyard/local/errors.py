"""What can go wrong with a local run that is nobody's YAML: used wrongly (exit code 2), or not possible here (1)."""

from __future__ import annotations

from trainyard.errors import UsageError, UserError

__all__ = ["RunError", "UsageError"]


class RunError(UserError):
    """A run that this machine does not allow: a full disk, a folder that cannot be written."""
