"""The entry point `trainyard`: all verbs in one group, and every error in one style."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

import trainyard
from trainyard.cli.parameters import VerbGroup
from trainyard.cli.usage_errors import usage_message
from trainyard.project_files import without_limit
from trainyard.settings.files import describe_os_error
from trainyard.terminal import colour_choice, fail, print_diagnostics, write_out_unencodable

VERBS = {
    "init": "A new project, ready to run.",
    "new": "Another component or pipeline.",
    "render": "Templates and a profile to YAML.",
    "lint": "Every mistake in the YAML, on its line.",
    "lsp": "Findings, fixes and names in an editor, while you type.",
    "explain": "A rule of lint in full.",
    "plan": "Machines, memory, time and price of a pipeline.",
    "estimate": "Memory, time and price of a training without YAML.",
    "graph": "Draw a pipeline.",
    "run": "Run a pipeline on this machine.",
    "runs": "Runs: list, show, compare, logs, serve, resume, clean.",
    "submit": "Check a job and send it to Azure ML.",
    "skus": "Azure's machines for training.",
    "schemas": "The JSON Schema of every kind of file.",
    "doctor": "Is this machine ready?",
}
"""Each verb, which is a module of this package, in the order of a day's work and so of `trainyard --help`."""

_INTERRUPTED = 130
"""128 + SIGINT, as shells report Ctrl-C."""


class _Verbs(VerbGroup):
    """The verbs, of which only the one that is asked for is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in their order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the function in the verb's module that has its name."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"trainyard.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs into the help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(trainyard.__version__, "-V", "--version", message="trainyard %(version)s")
def trainyard_command() -> None:
    """Distributed training on Azure Machine Learning: declare it, check it, rehearse it, and only then pay for it.

    \b
    Examples:
      trainyard run pipelines/ddp.yaml --profile local    the whole pipeline, on this machine
      trainyard render nd96                               all YAML for 8 x A100 nodes
      trainyard lint                                      every mistake, on its line
      trainyard submit pipelines/ddp.yaml                 the same files, to Azure ML
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit: 0 success, 1 findings or a failed run, 2 wrong usage, 130 Ctrl-C.

    A user's mistake is one message on stderr, never a traceback.
    """
    words = list(arguments) if arguments is not None else None
    write_out_unencodable()
    with without_limit():
        _run(words)


def _run(words: list[str] | None) -> NoReturn:
    from trainyard.errors import UserError
    from trainyard.spec.diagnostic import SpecError

    try:
        # With standalone_mode off, click returns the code of its own early exits (--help, --version).
        exit_code = trainyard_command.main(
            args=words, prog_name="trainyard", color=colour_choice(), standalone_mode=False
        )
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted", _INTERRUPTED)
    except click.UsageError as error:
        fail(usage_message(error), error.exit_code)
    except click.ClickException as error:
        fail(error.format_message(), error.exit_code)
    except SpecError as error:
        print_diagnostics(error.diagnostics)
        sys.exit(1)
    except UserError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        fail(describe_os_error(error), exit_code=1)
    sys.exit(exit_code or 0)
