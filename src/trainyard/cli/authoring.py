"""Verbs that write and check YAML: render, lint, lsp, explain, schemas."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trainyard.cli.parameters import OneOf, PathOf, chosen_file

_LINT_FORMATS = ("text", "json", "sarif", "github")


@click.command(short_help="Templates and a profile to YAML.")
@click.argument("profile", required=False)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one value of the profile.")
@click.option("--apply", "applied", type=PathOf("file"), help="Change the profile's values that this YAML file holds.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and show the diff where files have drifted.")
@click.option("--diff", is_flag=True, help="Write nothing; show what this profile would change on disk.")
@click.option("--out", type=PathOf("folder"), help="Write into another folder.")
def render(
    profile: str | None, settings: tuple[str, ...], applied: Path | None, check: bool, diff: bool, out: Path | None
) -> None:
    """Render every template for PROFILE; without one, for the profile the files on disk were rendered for.

    Where --set changes the number of processes, each pipeline's global batch stays, or the learning rate follows it;
    what is changed for that is printed.

    \b
    Examples:
      trainyard render nd96                       components, pipelines, environments, compute for 8 x A100
      trainyard render nd96 --set nodes=4 --diff  what four nodes would change, without writing
      trainyard render nd96 --apply profile.yaml  with the settings that pipelines/autotune.yaml found
      trainyard render --check                    in CI: have the rendered files drifted from their templates?
    """
    from trainyard.commands import render as rendering

    if check and diff:
        raise click.UsageError("--check and --diff exclude each other: --check takes the profile from the files.")
    options = rendering.RenderOptions(profile, settings, applied, out)
    if check:
        if not rendering.check(options):
            sys.exit(1)
    elif diff:
        rendering.show_difference(options)
    else:
        rendering.write_files(options)


@click.command(short_help="Every mistake in the YAML, on its line.")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-f", "--file", "more_paths", multiple=True, metavar="FILE", help="The same as PATH, as in `az ml`.")
@click.option("--format", "output_format", type=OneOf(_LINT_FORMATS), default="text", show_default=True)
@click.option("--fix", is_flag=True, help="Fix what is safe to fix: mistyped names, unquoted texts.")
@click.option("--pedantic", is_flag=True, help="Also report what careful teams differ on.")
@click.option("--baseline", type=PathOf("file"), help="Known findings, not reported again.")
@click.option("--write-baseline", is_flag=True, help="Write the current findings to the baseline.")
@click.option("--root", type=PathOf("folder"), help="Read nothing outside of it.  [default: the repository]")
@click.option("--no-templates", is_flag=True, help="Render nothing: findings do not name the template's line.")
def lint(
    paths: tuple[str, ...],
    more_paths: tuple[str, ...],
    output_format: str,
    fix: bool,
    pedantic: bool,
    baseline: Path | None,
    write_baseline: bool,
    root: Path | None,
    no_templates: bool,
) -> None:
    """Check Azure ML YAML: every mistake with file, line, column and what to do. Exit 1 when there is an error.

    \b
    Examples:
      trainyard lint                          the project's components, pipelines, environments, compute, profiles
      trainyard lint pipelines/ddp.yaml       one pipeline with its components
      trainyard lint --fix                    fix mistyped names and unquoted texts in place
      trainyard lint --format sarif my/folder for code scanning; github and json for others
    """
    from trainyard.commands.lint import LintOptions
    from trainyard.commands.lint import lint as check

    options = LintOptions(output_format, fix, baseline, write_baseline, pedantic, root, renders=not no_templates)
    if not check([Path(path) for path in (*paths, *more_paths)], options):
        sys.exit(1)


@click.command(short_help="Findings, fixes and names in an editor, while you type.")
@click.option("--stdio", is_flag=True, help="Accepted, since editors pass it: the server always uses standard input.")
def lsp(stdio: bool) -> None:
    """Serve an editor by the Language Server Protocol, over standard input and output. The editor starts this.

    Needs `pip install 'trainyard-azureml[lsp]'`. For VS Code: editors/vscode; for others: docs/editor.md.

    \b
    Examples:
      trainyard lsp
      vim.lsp.config("trainyard", {cmd = {"trainyard", "lsp"}, filetypes = {"yaml"}})    in Neovim's init.lua
    """
    from trainyard.errors import UserError

    try:
        from trainyard.editor.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        raise UserError("the language server needs pygls; run: pip install 'trainyard-azureml[lsp]'") from None
    serve()


@click.command(short_help="A rule of lint in full.")
@click.argument("subject", metavar="[RULE | FILE]", required=False)
def explain(subject: str | None) -> None:
    """Explain a rule: what it means, what Azure ML does, and how to fix it; without one, list all rules.

    RULE is an id or a name. With a FILE: the rules that find something in it.

    \b
    Examples:
      trainyard explain                      all rules, a line each
      trainyard explain AML206
      trainyard explain unknown-command-port
      trainyard explain pipelines/ddp.yaml
    """
    from trainyard.commands.explain import explanation_of

    if subject is not None and subject.endswith((".yaml", ".yml")):
        subject = str(chosen_file(subject, None))
    click.echo(explanation_of(subject))


@click.command(short_help="The JSON Schema of every kind of file.")
@click.argument("name", required=False)
def schemas(name: str | None) -> None:
    """List the JSON Schemas of every kind of file; with NAME, print that schema.

    \b
    Examples:
      trainyard schemas
      trainyard schemas pipeline > pipeline.schema.json
    """
    from trainyard.errors import unknown_name
    from trainyard.resources import schema_file, schema_names
    from trainyard.terminal import short

    known = schema_names()
    if name is None:
        for known_name in known:
            click.echo(f"{known_name:<24}{short(schema_file(known_name))}")
    elif name in known:
        click.echo(schema_file(name).read_text(encoding="utf-8"), nl=False)
    else:
        raise unknown_name("schema", name, known)
