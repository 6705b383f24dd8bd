"""Services of a job, such as TensorBoard: settings without which they are not reached."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Node, shorten
from trainyard.spec.rule import Rule

# https://learn.microsoft.com/azure/machine-learning/how-to-interactive-jobs
_NEEDED = {
    "tensor_board": ("log_dir", "which folder it shows", "log_dir: outputs/runs"),
    "ssh": ("ssh_public_keys", "who may log in", "ssh_public_keys: ssh-rsa …"),
}
_TYPES = ("tensor_board", "ssh", "jupyter_lab", "vs_code")


JOB_SERVICE = Rule("AML328", "job-service", "warning").explained(
    summary="A service of a job lacks what it needs, or its type has no underscore.",
    why="The client takes `tensorboard` and `TensorBoard` and drops the service, and sends one without `log_dir`, "
    "which then shows nothing. The job runs without it.",
    example="""\
type: command
command: python train.py
environment: azureml:torch:3
compute: azureml:cpus
services:
  board: {type: ‸tensor_board‹⇒, log_dir: outputs/runs›}
""",
)


@check("file")
def _job_service(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    root = file.document.root
    for holder in (root, *(entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)):
        for name, entry in holder.entries_of("services").items():
            kind = entry.value.get("type") if entry.value.is_mapping else None
            if kind is not None and kind.is_text:
                yield from _service(name, kind, entry.value)


def _service(name: str, kind: Node, service: Node) -> Iterator[Diagnostic]:
    written = kind.text.lower()
    # Any other type is reported by the schema.
    meant = next((known for known in _TYPES if known != written and known.replace("_", "") == written), None)
    if meant is not None:
        message = f"there is no service '{shorten(kind.text)}', and Azure ML's client drops the type"
        yield JOB_SERVICE.at(kind.span, message, f"Write {meant}.", replacement=meant)
    elif written in _NEEDED and service.get(_NEEDED[written][0]) is None and service.get("properties") is None:
        key, what, hint = _NEEDED[written]
        message = f"'{name}' has no '{key}', which says {what}"
        yield JOB_SERVICE.at(kind.span, message, f"Write `{hint}`.")
