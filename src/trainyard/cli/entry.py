"""The entry point `trainyard`: all verbs in one group, and every error in its own words and style."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

import trainyard
from trainyard.cli.parameters import VerbGroup
from trainyard.lint.processors import keeping_everything
from trainyard.project_files import without_limit
from trainyard.settings.files import describe_os_error
from trainyard.terminal import colour_choice, fail, print_diagnostics, write_out_unencodable

VERBS = {
    "init": "A new project, ready to run.",
    "new": "Another component or pipeline.",
    "import": "A script of Azure ML's Python SDK to YAML.",
    "model": "A model of the Hugging Face Hub, to start from.",
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
        # Python has the word `import` for itself.
        module = "import_script" if cmd_name == "import" else cmd_name
        with keeping_everything():
            command: click.Command = getattr(import_module(f"trainyard.cli.{module}"), module)
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


@without_limit()
def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit: 0 success, 1 findings or a failed run, 2 wrong usage, 130 Ctrl-C.

    A user's mistake is one message on stderr, never a traceback.
    """
    from trainyard.errors import UserError
    from trainyard.spec.diagnostic import SpecError

    words = list(arguments) if arguments is not None else None
    write_out_unencodable()
    try:
        # With standalone_mode off, click returns the code of its own early exits (--help, --version).
        exit_code = trainyard_command.main(
            args=words, prog_name="trainyard", color=colour_choice(), standalone_mode=False
        )
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted", _INTERRUPTED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "trainyard"
        fail(f"{_in_our_words(error, words or sys.argv[1:])}\nSee `{command} --help`.", error.exit_code)
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


_REWORDED = (
    (r"Got unexpected extra arguments? \(([\w.]+=.*)\)", r"unexpected argument '\1'; write --set \1"),
    (
        r"Got unexpected extra arguments? \((.*\.ya?ml.*)\)",
        r"unexpected argument '\1'; one file at a time, and quotes around a path that holds spaces",
    ),
    (r"Got unexpected extra arguments? \((.*)\)", r"unexpected argument '\1'; quote a value that holds spaces"),
    (r"'(.*)' is not a valid float range\.", r"expected a number, got '\1'"),
    (r"(.*) is not in the range (.*)\.", r"expected a number in the range \2, got '\1'"),
    (r"Option '(.*)' requires an argument\.", r"\1: expected a value after it"),
)
"""Patterns of click's messages that have no class of their own, and what they become."""


def _in_our_words(error: click.UsageError, words: Sequence[str]) -> str:
    """Return the message of wrong usage; `words` are those of the command line."""
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error, words)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"missing {_as_typed(error.param)}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_as_typed(error.param)}: {_reworded(error.message) or error.message}"
    message = error.format_message()
    if reworded := _reworded(message):
        return reworded
    is_sentence = message[1:2].islower()
    return (message[:1].lower() if is_sentence else message[:1]) + message[1:].rstrip(".")


def _as_typed(parameter: click.Parameter) -> str:
    return parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name


def _reworded(message: str) -> str | None:
    for pattern, replacement in _REWORDED:
        if re.fullmatch(pattern, message):
            return re.sub(pattern, replacement, message)
    return None


def _unknown_option(error: click.NoSuchOption, words: Sequence[str]) -> str:
    from trainyard.settings.suggestions import close_match, only_close

    option = error.option_name
    parameters = error.ctx.command.params if error.ctx else []
    known = [name for parameter in parameters for name in parameter.opts]
    verbs = _verbs_with(option, error.ctx) if error.ctx else []
    # A setting is often tried as an option; the options of `estimate` are settings.
    of_settings = next((parameter.metavar for parameter in parameters if "--set" in parameter.opts), None) or ""
    if not option.startswith("--"):
        # Of `-profile` click names only `-p`.
        likely = [f"'{name}'" for name in known if name.startswith(f"-{option}")]
        hint = f"Did you mean {_listed(likely, 'or')}?" if likely else ""
    elif option.lstrip("-") in (parameter.name for parameter in parameters if isinstance(parameter, click.Argument)):
        hint = f"Write its value without {option}"
    elif verbs and not (of_settings and verbs == ["`trainyard estimate`"]):
        hint = f"It is an option of {_listed(verbs, 'and')}"
    else:
        name = option.strip("-").replace("-", "_")
        if of_settings and not only_close(option, known):
            hint = f"Did you mean {_as_setting(option, name, of_settings, words)}?"
        else:
            hint = close_match(option, known)
    return f"unknown option {option}. {hint}".rstrip(" .")


def _as_setting(option: str, name: str, metavar: str, words: Sequence[str]) -> str:
    """Return how a setting is given that was tried as an option; `metavar` is that of --set."""
    from trainyard.resources import schema_source

    typed = " ".join(words)
    value = re.search(rf"{re.escape(option)}[ =]([^\s-]\S*)", typed)
    is_of_profile = name in json.loads(schema_source("profile").read_text(encoding="utf-8"))["properties"]
    key = name if is_of_profile else re.sub("=.*", "", re.sub("KEY|X", name, metavar))
    profile = "--profile NAME " if is_of_profile and "X" in metavar and "--profile" not in typed else ""
    return f"{profile}--set {key}={value[1] if value else 'VALUE'}"


def _listed(names: Sequence[str], joint: str) -> str:
    return f" {joint} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _verbs_with(option: str, context: click.Context) -> list[str]:
    """Return the verbs that have an option, as users call them: an option of one verb is often tried on another."""
    root = context.find_root()
    verbs = root.command
    if not isinstance(verbs, click.Group):
        return []
    found = ((name, verbs.get_command(root, name)) for name in verbs.list_commands(root))
    options = {name: [each for parameter in verb.params for each in parameter.opts] for name, verb in found if verb}
    return [f"`trainyard {name}`" for name, known in options.items() if option in known]
