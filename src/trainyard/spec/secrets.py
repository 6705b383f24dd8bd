"""Secrets in texts: how lint knows them, and how they are left out of what is printed."""

from __future__ import annotations

import re
from typing import Any

from trainyard.settings.regex import regex

HIDDEN = "***"

# What a secret contains (most texts have none of it), its pattern, compiled when it is needed, and what it is.
SECRET_VALUES = (
    ("sig=", r"(?:[?&]|&amp;)sig=[A-Za-z0-9%+/=]{20,}", "a SAS signature"),
    ("AccountKey=", r"AccountKey=[A-Za-z0-9+/]{40,}={0,2}", "a storage account's key"),
    ("SharedAccessKey=", r"SharedAccessKey=[A-Za-z0-9+/]{30,}={0,2}", "a shared access key"),
    ("hf_", r"\bhf_[A-Za-z0-9]{24,}\b", "a Hugging Face token"),
    ("gh", r"\bgh[pousr]_[A-Za-z0-9]{30,}\b", "a GitHub token"),
    ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{30,}\b", "a GitHub token"),
    ("sk-", r"\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,}\b", "an API key"),
    ("AKIA", r"\bAKIA[0-9A-Z]{16}\b", "an AWS access key"),
    ("xox", r"\bxox[abps]-[A-Za-z0-9-]{20,}", "a Slack token"),
    ("PRIVATE KEY", r"-----BEGIN (?:RSA |EC |OPENSSH )?PRIVATE KEY-----", "a private key"),
    ("eyJ", r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{10,}", "a signed token"),
    ("@", r"\b[a-z][a-z0-9+.-]*://[^/\s:@${]+:[^/\s:@${]{3,}@", "a password in an address"),
)
SECRET_NAME = regex(
    r"(?:.*_)?(?:password|passwd|pwd_value|secret|client_secret|api_?key|access_?key|account_?key|sas_token|"
    r"auth_token|access_token|hf_token|github_token|wandb_api_key|connection_string|client_secret_value)",
    re.IGNORECASE,
)


def redacted(text: str, name: str = "") -> str:
    """Return a text without the secrets in it; of a value whose name is that of a secret, nothing is left."""
    if text and SECRET_NAME.fullmatch(name.rpartition(".")[2]):
        return text if "${{" in text else HIDDEN
    for part, pattern, _ in SECRET_VALUES:
        if part in text:
            text = re.sub(pattern, HIDDEN, text)
    return text


def redacted_data(data: Any, name: str = "") -> Any:
    """Return what JSON can hold without the secrets in its texts."""
    if isinstance(data, dict):
        return {key: redacted_data(value, str(key)) for key, value in data.items()}
    if isinstance(data, list):
        return [redacted_data(value, name) for value in data]
    return redacted(data, name) if isinstance(data, str) else data
