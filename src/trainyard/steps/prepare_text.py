"""Turn text into a dataset of tokens.

    python -m trainyard.steps.prepare_text --prepared data/topics
    python -m trainyard.steps.prepare_text --source downloads/books --prepared data/books --sequence-length 1024

One process or several, as the environment's RANK and WORLD_SIZE say, each with its share of the files; the result is
the same.
"""

from __future__ import annotations

from trainyard.settings.steps.preparation import PrepareText
from trainyard.steps.runtime.entrypoint import as_step, run_and_end


@as_step(PrepareText, "trainyard.steps.prepare_text")
def main(settings: PrepareText) -> int:
    """Read the text, split it, learn or load a vocabulary, write the rows."""
    from trainyard.steps.data.tokenizing.prepare_tokens import prepare_tokens

    return prepare_tokens(settings)


if __name__ == "__main__":
    run_and_end(main)
