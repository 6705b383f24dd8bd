"""The entry point `trainyard`: all verbs in one group, and every error in one style."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import trainyard
from trainyard.cli.authoring import explain, lint, lsp, render, schemas
from trainyard.cli.parameters import VerbGroup
from trainyard.cli.planning import doctor, estimate, graph, plan, skus
from trainyard.cli.running import run, runs
from trainyard.cli.scaffolding import init, new
from trainyard.cli.submitting import submit
from trainyard.cli.usage_errors import usage_message
from trainyard.project_files import without_limit
from trainyard.settings.files import describe_os_error
from trainyard.terminal import colour_choice, fail, print_diagnostics, write_out_unencodable

_INTERRUPTED = 130
"""128 + SIGINT, as shells report Ctrl-C."""


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
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


# In the order of a day's work, which is the order of `trainyard --help`.
for _verb in (init, new, render, lint, lsp, explain, plan, estimate, graph, run, runs, submit, skus, schemas, doctor):
    trainyard_command.add_command(_verb)


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
