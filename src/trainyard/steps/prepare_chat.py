"""Turn conversations into a dataset of tokens for fine-tuning.

python -m trainyard.steps.prepare_chat --base-model models/llama --source data/chats --prepared data/prepared
"""

from __future__ import annotations

from trainyard.settings.steps.preparation import PrepareChat
from trainyard.steps.runtime.entrypoint import as_step, run_and_end


@as_step(PrepareChat, "trainyard.steps.prepare_chat")
def main(settings: PrepareChat) -> int:
    """Read the conversations, tokenize them as the model does, pack them into rows, write the rows."""
    from trainyard.steps.data.conversations.prepare_conversations import prepare_conversations

    return prepare_conversations(settings)


if __name__ == "__main__":
    run_and_end(main)
