"""Secrets in plain text, wherever they are in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lint.checks import LintedFile, rule
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Document, Node, shorten

_SECRET_VALUES = (
    (re.compile(r"[?&]sig=[A-Za-z0-9%+/=]{20,}"), "a SAS signature"),
    (re.compile(r"AccountKey=[A-Za-z0-9+/]{40,}={0,2}"), "a storage account's key"),
    (re.compile(r"SharedAccessKey=[A-Za-z0-9+/]{30,}={0,2}"), "a shared access key"),
    (re.compile(r"\bhf_[A-Za-z0-9]{24,}\b"), "a Hugging Face token"),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{30,}\b|\bgithub_pat_[A-Za-z0-9_]{30,}\b"), "a GitHub token"),
    (re.compile(r"\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,}\b"), "an API key"),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), "an AWS access key"),
    (re.compile(r"\bxox[abps]-[A-Za-z0-9-]{20,}"), "a Slack token"),
    (re.compile(r"-----BEGIN (?:RSA |EC |OPENSSH )?PRIVATE KEY-----"), "a private key"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{10,}"), "a signed token"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@${]+:[^/\s:@${]{3,}@"), "a password in an address"),
)
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:password|passwd|pwd_value|secret|client_secret|api_?key|access_?key|account_?key|sas_token|"
    r"auth_token|access_token|hf_token|github_token|wandb_api_key|connection_string|client_secret_value)",
    re.IGNORECASE,
)
_FLAG_WITH_SECRET = re.compile(
    r"--?(?:password|passwd|secret|api[-_]?key|access[-_]?key|account[-_]?key|client[-_]secret|token|auth[-_]?token)"
    r"[= ]+(?![-$\"']?\$|--)[\"']?([A-Za-z0-9+/_=!.-]{6,})[\"']?",
    re.IGNORECASE,
)
# Substituted by another program before submission: `InstrumentationKey=${KEY}`.
_FILLED_IN = re.compile(r"\$\{\w+\}|\$\(\w+\)|<[\w -]+>|\{\{")
_TOKEN_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*_(?:TOKEN|SECRET|PASSWORD|APIKEY|KEY)")
_RANDOM_TEXT = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w~+/=.-]{12,}")
_VARIABLE_WITH_SECRET = re.compile(
    r"\b[A-Z][A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|(?:ACCESS|ACCOUNT|STORAGE)_KEY)=[\"']?([^\s\"'$;&|<>{}]{8,})"
)
_PLACEHOLDER = re.compile(
    r"<.*>|\$.*|.*(change|replace|your|example|placeholder|dummy|todo|xxx|\*\*\*).*|azureml:.*|none|null|true|false",
    re.IGNORECASE,
)


@rule(
    "file",
    "AML552",
    "secret",
    "warning",
    summary="The file contains a secret.",
    why="Everyone who can see the repository, or the job in the studio, can read it. Keep it in the workspace's key "
    "vault, or use the job's identity.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
    environment_variables:
      ‹HF_TOKEN⇒HF_HOME›: ‹hf_QmVyZ2ZyaWVkaG9mU3RyYXNzZTEyMzQ1⇒/tmp/cache›
""".replace("      ‹HF_TOKEN⇒HF_HOME›: ‹", "      ‹HF_TOKEN⇒HF_HOME›: ‸‹"),
)
def secret(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    if file.kind != "profile":
        # A value with aliases is visited once per use, and reported once.
        found: dict[Span, Diagnostic] = {}
        for each in _secrets(file.document.root, "", file.document):
            found.setdefault(each.span, each)
        yield from found.values()


def _secrets(node: Node, name: str, document: Document) -> Iterator[Diagnostic]:
    if node.is_mapping:
        for key, entry in node.entries.items():
            yield from _secrets(entry.value, key, document)
    elif isinstance(node.data, list):
        for item in node.items:
            yield from _secrets(item, name, document)
    elif node.is_text:
        yield from _secret_text(node, name, document)


def _secret_text(node: Node, name: str, document: Document) -> Iterator[Diagnostic]:
    text = node.text
    hint = "Remove and rotate it: everyone who could read this file has it."
    if len(text) < 6 or name in ("description", "$schema"):
        return
    for pattern, what in _SECRET_VALUES:
        match = pattern.search(text)
        if match is not None and not _PLACEHOLDER.fullmatch(match[0]):
            yield secret.at(document.span_within(node, *match.span()), f"{what} in plain text", hint)
            return
    if name == "command":
        match = _FLAG_WITH_SECRET.search(text) or _VARIABLE_WITH_SECRET.search(text)
        if match is not None and not _PLACEHOLDER.fullmatch(match[1]):
            yield secret.at(document.span_within(node, *match.span(1)), "a secret in plain text", hint)
    elif _is_named_secret(name, text):
        yield secret.at(node.span, f"'{shorten(name)}' is set to a secret in plain text", hint)


def _is_named_secret(name: str, text: str) -> bool:
    """Whether the name of a value suggests a secret, and the value looks like one."""
    if _PLACEHOLDER.fullmatch(text) or " " in text or "${{" in text or _FILLED_IN.search(text):
        return False
    if _TOKEN_VARIABLE.fullmatch(name) and _RANDOM_TEXT.fullmatch(text):
        return True
    return _SECRET_NAME.fullmatch(name) is not None
