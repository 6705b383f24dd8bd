"""How references to other files and to Azure ML are understood: paths, addresses, names kept in a workspace."""

from __future__ import annotations

import re

from trainyard.spec.documents import Node
from trainyard.spec.parsed import Reading
from trainyard.spec.rules.references import BAD_REFERENCE


def is_remote(reference: str) -> bool:
    """Whether a reference names something in a workspace or registry, which is not readable offline."""
    return reference.startswith("azureml:")


def is_address(reference: str) -> bool:
    """Whether a data path is an address (https://, azureml:…) or holds a binding, rather than a local path."""
    return is_remote(reference) or "${{" in reference or reference.startswith(_ADDRESSES)


# A resource's own id in Azure begins with its subscription.
_ADDRESSES = ("http:", "https:", "wasb:", "wasbs:", "abfs:", "abfss:", "adl:", "hdfs:", "dbfs:", "/subscriptions/")


# `azureml:NAME:VERSION` or an address: what code in Azure ML is named by.
_REGISTERED_CODE = re.compile(r"azureml:(?:/.*|[^:@/\s]+[:@][^:@/\s]+)")


def is_code_of_this_machine(code: Node, reading: Reading) -> bool:
    """Whether `code` names a local folder; a reference that Azure ML's client cannot resolve is reported."""
    text = code.text
    if "${{" in text or text.startswith("git+") or _REGISTERED_CODE.fullmatch(text):
        return False
    prefix = next((prefix for prefix in ("azureml:", "file:") if text.startswith(prefix)), None)
    if prefix is None:
        return True
    message = f"'{text}' is neither a folder nor registered code"
    hint = f"A folder is '{text.removeprefix(prefix)}', registered code azureml:NAME:VERSION."
    reading.findings.add(code.span, BAD_REFERENCE, message, hint)
    return False


def reference_text(node: Node | None, reading: Reading) -> str:
    """The text of a reference; empty for anything but a text."""
    if node is None or node.data is None:
        return ""
    if not node.is_text or not node.text.strip() or "\n" in node.text.strip():
        reading.findings.left_out = True
        return ""
    return node.text
