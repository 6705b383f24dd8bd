"""What a shell does with texts, and what should not stand in a file at all: secrets, scripts fetched and run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Document, Node, shorten
from trainyard.spec.expressions import Binding, ExpressionError, bindings_in, only_binding
from trainyard.spec.kinds import Kind
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Example, Rule

UNQUOTED_TEXT = Rule(
    "AML551",
    "unquoted-text",
    "warning",
    "A text input stands unquoted in the command.",
    "Azure ML fills the text in as it is: a blank in it makes two words, and the shell runs a `;` or `$(…)` in it.",
    Example("""\
type: command
name: train
command: python -m train --label ‹⇒'›‸${{inputs.label}}‹⇒'›
environment: azureml:torch:3
inputs:
  label: {type: string}
"""),
)
SECRET = Rule(
    "AML552",
    "secret",
    "warning",
    "A secret stands in the file.",
    "Everybody who sees the repository or the job in the studio can read it. Keep it in the workspace's key vault, or "
    "use the identity of the job.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
    environment_variables:
      ‹HF_TOKEN⇒HF_HOME›: ‹hf_QmVyZ2ZyaWVkaG9mU3RyYXNzZTEyMzQ1⇒/tmp/cache›
""".replace("      ‹HF_TOKEN⇒HF_HOME›: ‹", "      ‹HF_TOKEN⇒HF_HOME›: ‸‹")
    ),
)
FETCHED_SCRIPT = Rule(
    "AML553",
    "fetched-script",
    "warning",
    "A script is fetched from the network and run at once.",
    "What runs is whatever lies there on the day, and nobody has looked at it. Put it into the image or the code.",
    Example("""\
type: command
name: train
command: ‹curl -sSL https://example.com/setup.sh | bash⇒bash setup.sh› && python train.py
environment: azureml:torch:3
"""),
)
CONTINUATION = Rule(
    "AML554",
    "line-continuation",
    "warning",
    "A backslash at the end of a line of the command.",
    "A folded block (`>`) makes one line of all: the backslash then stands before a blank, and the shell takes the "
    "blank for a part of the next word. Azure ML's documentation asks for commands without them.",
    Example(
        """\
type: command
name: train
command: >-
  python train.py‹ \\⇒›
  --epochs 3
environment: azureml:torch:3
""".replace("‹ \\", "‹ ‸\\")
    ),
)
RULES = (UNQUOTED_TEXT, SECRET, FETCHED_SCRIPT, CONTINUATION)
_CONTINUATION = re.compile(r"(?<!\\)\\(?=\s+-{1,2}\w|\s*\n|\s*\Z|\s+\$\[\[)")

_FETCHED = re.compile(
    r"\b(?:curl|wget)\b[^|;&\n]*\|\s*(?:sudo\s+)?(?:ba|z|da|k)?sh\b|"
    r"\b(?:ba|z)?sh\s+(?:-c\s+)?[\"']?(?:<\(|\$\()\s*(?:curl|wget)\b|"
    r"\b(?:curl|wget)\b[^|;&\n]*\|\s*python[0-9.]*\b"
)
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
# Filled in from outside before the file is sent: `InstrumentationKey=${KEY}`.
_FILLED_IN = re.compile(r"\$\{\w+\}|\$\(\w+\)|<[\w -]+>|\{\{")
# A binding of another form than a job's: what it names is data as likely as a text, and it is an error elsewhere.
_WRONG_SCOPE = re.compile(r"\s*\$\{\{\s*(?!parent\.)[\w.-]+\s*\}\}\s*")
_TOKEN_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*_(?:TOKEN|SECRET|PASSWORD|APIKEY|KEY)")
_RANDOM_TEXT = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w~+/=.-]{12,}")
_VARIABLE_WITH_SECRET = re.compile(
    r"\b[A-Z][A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|(?:ACCESS|ACCOUNT|STORAGE)_KEY)=[\"']?([^\s\"'$;&|<>{}]{8,})"
)
_PLACEHOLDER = re.compile(
    r"<.*>|\$.*|.*(change|replace|your|example|placeholder|dummy|todo|xxx|\*\*\*).*|azureml:.*|none|null|true|false",
    re.IGNORECASE,
)


def check_command(seen: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Texts that are not quoted, scripts that are fetched."""
    command = seen.node.get("command")
    if command is None or not command.is_text:
        return
    for match in _FETCHED.finditer(command.text):
        span = seen.reading.document.span_within(command, match.start(), match.end())
        yield FETCHED_SCRIPT.at(span, "this runs whatever lies at that address", "Put it into the image or the code.")
    continuation = _CONTINUATION.search(command.text)
    if continuation is not None:
        span = seen.reading.document.span_within(command, *continuation.span())
        yield CONTINUATION.at(span, "this joins the blank behind it to the next word", "Remove it.")
    try:
        bindings = bindings_in(command.text)
    except ExpressionError:
        return
    quoted = _quoted(command.text, bindings)
    for binding in bindings:
        port = seen.component.inputs.get(".".join(binding.path[1:])) if binding.path[0] == "inputs" else None
        if port is None or binding in quoted or port.type != "string" or port.choices is not None:
            continue
        if port.default is not None and port.default.text.startswith("${{jobs."):
            continue  # the earlier form of a binding to data
        if (
            not seen.is_component
            and port.default is None
            and port.type == "string"
            and not _may_be_text(seen, port.name)
        ):
            continue
        span = seen.reading.document.span_within(command, binding.start, binding.end)
        message = f"'{port.name}' is a text and stands unquoted: a blank in it makes two words"
        related = [Related(port.key_span, f"'{port.name}' is declared here")]
        found = UNQUOTED_TEXT.at(span, message, f"Write '{binding.text}'.", related)
        yield replace(found, severity="info") if port.default is not None and _is_one_word(port.default.text) else found


def _may_be_text(seen: ParsedCommand, name: str) -> bool:
    """Whether what a job gives its own command may hold a blank: a literal without one cannot."""
    inputs = seen.node.get("inputs")
    node = inputs.get(name) if inputs is not None else None
    if node is None or not node.is_text or _WRONG_SCOPE.fullmatch(node.text):
        return False
    binding = only_binding(node.text)
    if binding is not None and binding.path[:2] == ("parent", "inputs"):
        given = seen.reading.document.root.get("inputs")
        literal = given.get(".".join(binding.path[2:])) if given is not None else None
        return literal is None or not literal.is_text or not _is_one_word(literal.text)
    if binding is not None and binding.path[:2] == ("parent", "jobs"):
        return False  # what a job gives is data
    return not _is_one_word(node.text)


def _is_one_word(text: str) -> bool:
    return re.fullmatch(r"[\w.,:/@%+=-]*", text) is not None


def _quoted(command: str, bindings: list[Binding]) -> list[Binding]:
    """The bindings that stand within quotes."""
    found, quote, position = [], "", 0
    by_start = {binding.start: binding for binding in bindings}
    while position < len(command):
        binding = by_start.get(position)
        if binding is not None:
            found += [binding] if quote else []
            position = binding.end
            continue
        character = command[position]
        if character == "\\" and quote != "'":
            position += 1
        elif character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        position += 1
    return found


def check_document(document: Document, kind: Kind, context: LintContext) -> Iterator[Diagnostic]:
    """Secrets, wherever they stand in a file."""
    if kind == "profile":
        return
    told: set[Span] = set()
    for found in _secrets(document.root, "", document):
        if found.span not in told:
            told.add(found.span)
            yield found


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
    if len(text) < 6 or name in ("description", "$schema"):
        return
    hint = "Take it out, and have it renewed: whoever could read this file has it."
    for pattern, what in _SECRET_VALUES:
        match = pattern.search(text)
        if match is not None and not _PLACEHOLDER.fullmatch(match[0]):
            yield SECRET.at(_span(document, node, match.span()), f"{what} stands here in plain text", hint)
            return
    if name == "command":
        match = _FLAG_WITH_SECRET.search(text) or _VARIABLE_WITH_SECRET.search(text)
        if match is not None and not _PLACEHOLDER.fullmatch(match[1]):
            yield SECRET.at(_span(document, node, match.span(1)), "a secret stands here in plain text", hint)
    elif _is_named_secret(name, text):
        yield SECRET.at(node.span, f"'{shorten(name)}' is set to a secret in plain text", hint)


def _is_named_secret(name: str, text: str) -> bool:
    """Whether a value's name says that it is a secret, and the value looks like one."""
    if _PLACEHOLDER.fullmatch(text) or " " in text or "${{" in text or _FILLED_IN.search(text):
        return False
    if _TOKEN_VARIABLE.fullmatch(name) and _RANDOM_TEXT.fullmatch(text):
        return True
    return _SECRET_NAME.fullmatch(name) is not None


def _span(document: Document, node: Node, offsets: tuple[int, int]) -> Span:
    return document.span_within(node, *offsets)
