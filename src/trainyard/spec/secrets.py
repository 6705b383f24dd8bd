"""Secrets in text: how lint knows them, and how they are left out of what is printed."""

from __future__ import annotations

import re
from typing import Any

from trainyard.resources import word_tables
from trainyard.settings.regex import regex

HIDDEN = "***"
SECRET_RULE = "AML552"

SECRET_VALUES: list[tuple[str, str, str]] = word_tables("spec")["secrets"]["words"]
SECRET_NAME = regex(
    r"(?:.*_)?(?:password|passwd|pwd_value|secret|client_secret|api_?key|access_?key|account_?key|sas_token|"
    r"auth_token|access_token|hf_token|github_token|wandb_api_key|connection_string|client_secret_value)",
    re.IGNORECASE,
)
# What a placeholder has around its word is bounded: a long token may have any three letters by chance.
PLACEHOLDER = regex(
    r"<.*>|\$.*|.{,40}(change|replace|your|example|placeholder|dummy|todo|x{3,}|\*\*\*).{,40}|azureml:.*|none|null|true|"
    r"false|private|redacted|removed|hidden|secret|\w+://.*:(password|<.*>)@",
    re.IGNORECASE,
)


def redacted(text: str, name: str = "", *, keeps_width: bool = False) -> str:
    """Return a string without the secrets in it; of a value whose name is that of a secret, nothing is left.

    Placeholders stay. With `keeps_width`, blanks follow each `***`, up to the end of the secret.
    """

    def hidden(secret: re.Match[str]) -> str:
        if PLACEHOLDER.fullmatch(secret[0]):
            return secret[0]
        return HIDDEN.ljust(len(secret[0])) if keeps_width else HIDDEN

    if text and SECRET_NAME.fullmatch(name.rpartition(".")[2]):
        return text if "${{" in text else HIDDEN
    for part, pattern, _ in SECRET_VALUES:
        if part in text:
            text = re.sub(pattern, hidden, text)
    return text


def redacted_data(data: Any, name: str = "") -> Any:
    """Return what JSON can hold without the secrets in its texts."""
    if isinstance(data, dict):
        return {key: redacted_data(value, str(key)) for key, value in data.items()}
    if isinstance(data, list):
        return [redacted_data(value, name) for value in data]
    return redacted(data, name) if isinstance(data, str) else data
