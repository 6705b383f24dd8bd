"""The forms in which conversations are published, as messages: those of ShareGPT and of Alpaca.

ShareGPT's are lists of `from` and `value` (https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered);
Alpaca's are an instruction, an input that may be empty, and an output (https://github.com/tatsu-lab/stanford_alpaca).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.steps.runtime.errors import StepError

_ROLES_OF_SHAREGPT = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


def from_sharegpt(fields: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Return ShareGPT's conversations as messages, other fields as they are. StepError names a turn that is neither."""
    turns = fields.get("conversations")
    if not isinstance(turns, list) or "messages" in fields:
        return fields
    return {**fields, "messages": [_message(turn, f"{place}: turn {n}") for n, turn in enumerate(turns, start=1)]}


def question_of_alpaca(fields: Mapping[str, Any]) -> str | None:
    """Return the instruction and, after an empty line, its input; None for fields of another form."""
    if not isinstance(fields.get("instruction"), str) or not isinstance(fields.get("output"), str):
        return None
    return "\n\n".join(text for text in (fields["instruction"], fields.get("input")) if text)


def _message(turn: Any, place: str) -> dict[str, Any]:
    if not isinstance(turn, dict) or not {"from", "value"} <= set(turn):
        raise StepError(f"{place} is not an object with from and value")
    role = _ROLES_OF_SHAREGPT.get(str(turn["from"]))
    if role is None:
        raise StepError(f"{place} is from {turn['from']!r}; expected one of {', '.join(_ROLES_OF_SHAREGPT)}")
    return {"role": role, "content": turn["value"]}


def require_known_roles(messages: Sequence[Mapping[str, Any]], place: str) -> None:
    """Raise StepError, with the roles, for a conversation in which no one has the assistant's, and some an unknown one.

    Another role beside the assistant's is left to the chat template.
    """
    roles = list(dict.fromkeys(str(message["role"]) for message in messages))
    unknown = [role for role in roles if role not in _ROLES]
    if unknown and "assistant" not in roles:
        named = " and ".join(map(repr, unknown))
        raise StepError(
            f"{place}: no message has the role 'assistant', whose answers are learned; found {named}: name the roles "
            "system, user, assistant and tool"
        )
