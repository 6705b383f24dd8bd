"""The files that Azure ML's client uploads with a component's code."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.ignore_files import ignore_file
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule

_SHOWN = 3


DOUBTFUL_UPLOAD = Rule("AML423", "doubtful-upload", "warning").explained(
    summary="The code folder holds secrets, a repository's history, links that leave it, or huge files.",
    why="Azure ML's client uploads every file of the `code` folder, also through links, unless its `.amlignore`, "
    "or else its `.gitignore`, leaves it out. Everyone who may read the workspace's storage can read them: `.env`, "
    "private keys, `.git` with everything that was ever committed. Files above 200 MiB belong in a data asset.",
    example="""\
type: command
name: train
code: ‸./src
command: python train.py
environment: azureml:torch:3
=== src/train.py
print("training")
=== src/.env
SECRET=1
=== src/.amlignore
‹data/⇒.env›
""",
)


@check("command")
def _doubtful_upload(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    code, node = command.component.code, command.node.get("code")
    if code is None or node is None or not node.is_text:
        return
    found = context.doubtful_uploads(code)
    if not found:
        return
    shown = ", ".join(f"{place} ({reason})" for place, reason in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    rules = ignore_file(code)
    name = rules.name if rules is not None else ".amlignore"
    lines = ", ".join(f"`/{place}`" for place, _ in found[:_SHOWN] if place != ".")
    hint = f"Add {lines} to `{name}` in that folder." if lines else f"Leave some out in `{name}` in that folder."
    yield DOUBTFUL_UPLOAD.at(node.span, f"would be uploaded with the code: {shown}{more}", hint)
