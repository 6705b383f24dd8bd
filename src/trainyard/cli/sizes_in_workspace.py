"""The VM sizes of clusters that no file here describes: what the workspace says, where there is a login."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import click

from trainyard.catalogue.skus import UnknownSku, find_sku
from trainyard.errors import UsageError, UserError
from trainyard.settings.suggestions import close_match

Where = tuple[str | None, str | None, str | None]
"""Subscription, resource group and workspace, as far as options name them."""


def sizes_in_workspace(where: Where = (None, None, None)) -> Callable[[str], str]:
    """Return what gives a cluster's VM size by its name, with a note; the size is empty where it is not known.

    The workspace is asked once, at the first name. Without Azure ML's client, a workspace or a login nothing is
    imported, asked or printed.
    """
    answer = partial(cache(_answer), where)

    @cache
    def size_of(name: str) -> str:
        if name in ("serverless", "local") or "/" in name or (answered := answer()) is None:
            return ""
        workspace, sizes = answered
        if name not in sizes:
            click.echo(f"note: {workspace} has no cluster '{name}'. {close_match(name, sizes)}".rstrip(" ."), err=True)
            return ""
        click.echo(f"note: '{name}' has {sizes[name] or 'no VM size'} in {workspace}", err=True)
        try:
            return find_sku(sizes[name]).name
        except UnknownSku:
            return ""

    return size_of


def _answer(where: Where) -> tuple[str, Mapping[str, str]] | None:
    from trainyard.azure.workspace import find_workspace, is_signed_in

    try:
        workspace = find_workspace(*where)
        if not is_signed_in():
            return None
        from trainyard.azure.submission import cluster_sizes

        return str(workspace), cluster_sizes(workspace)
    except UserError as error:
        if not isinstance(error, UsageError) and not isinstance(error.__cause__, ImportError):
            reason = str(error).partition("\n")[0]
            click.echo(f"note: the workspace was not asked for the sizes of clusters: {reason}", err=True)
        return None
