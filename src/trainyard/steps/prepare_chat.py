"""Turn conversations into a dataset of tokens for fine-tuning.

python -m trainyard.steps.prepare_chat --base-model models/llama --source data/chats --prepared data/prepared
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.settings.steps.preparation import PrepareChat
from trainyard.steps.runtime.entrypoint import run_and_end, run_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step and return its exit code."""
    return run_step(PrepareChat, "trainyard.steps.prepare_chat", prepare, arguments)


def prepare(settings: PrepareChat) -> int:
    """Read the conversations, tokenize them as the model does, pack them into rows, write the rows."""
    from trainyard.steps.data.conversations.prepare_conversations import prepare_conversations

    return prepare_conversations(settings)


if __name__ == "__main__":
    run_and_end(main)
