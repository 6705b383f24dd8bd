"""How references to other files and to Azure ML are understood: paths, addresses, names kept in a workspace."""

from __future__ import annotations

from trainyard.spec.documents import Node
from trainyard.spec.parsed import Reading
from trainyard.spec.rules.keys import WRONG_TYPE


def is_remote(reference: str) -> bool:
    """Whether a reference names something in a workspace or registry, which is not readable offline."""
    return reference.startswith("azureml:")


def is_address(reference: str) -> bool:
    """Whether a data path is an address (https://, azureml:…) or holds a binding, rather than a local path."""
    return is_remote(reference) or "${{" in reference or reference.startswith(_ADDRESSES)


# A resource's own id in Azure begins with its subscription.
_ADDRESSES = ("http:", "https:", "wasb:", "wasbs:", "/subscriptions/")


def reference_text(node: Node | None, what: str, reading: Reading) -> str:
    """The text of a reference; empty, and reported, for anything but a text."""
    if node is None or node.data is None:
        return ""
    if not node.is_text or not node.text.strip() or "\n" in node.text.strip():
        message = f"{what} is the name of a file or an 'azureml:' reference"
        reading.findings.add(node.span, WRONG_TYPE, message)
        return ""
    return node.text
