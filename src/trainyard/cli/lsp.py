"""`trainyard lsp`: the language server, which an editor starts."""

from __future__ import annotations

import click

from trainyard.errors import UserError


@click.command()
@click.option("--stdio", is_flag=True, help="Accepted, since editors pass it: the server always uses standard input.")
def lsp(stdio: bool) -> None:
    """Serve an editor by the Language Server Protocol, over standard input and output. The editor starts this.

    Needs `pip install 'trainyard-azureml[lsp]'`. For VS Code: editors/vscode; for others: docs/editor.md.

    \b
    Examples:
      trainyard lsp
      vim.lsp.config("trainyard", {cmd = {"trainyard", "lsp"}, filetypes = {"yaml"}})    in Neovim's init.lua
    """
    try:
        from trainyard.editor.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        raise UserError("the language server needs pygls; run: pip install 'trainyard-azureml[lsp]'") from None
    serve()
