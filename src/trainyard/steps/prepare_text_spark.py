"""Turn text that outgrows one machine into a dataset of tokens, on Spark.

    python -m trainyard.steps.prepare_text_spark --source downloads/books --prepared data/books

Alone it runs on all cores of this machine. On Azure ML, spark-submit starts this file on the cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    # Started as a file, not as a module: this folder is on the path, in place of the one that holds the package.
    sys.path[0] = str(Path(__file__).resolve().parents[2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step and return its exit code."""
    from trainyard.settings.steps.preparation import PrepareTextSpark
    from trainyard.steps.data.at_scale.session import require_spark
    from trainyard.steps.runtime.entrypoint import run_step

    def prepare(settings: PrepareTextSpark) -> int:
        require_spark()
        from trainyard.steps.data.at_scale.prepare_on_spark import prepare_on_spark

        return prepare_on_spark(settings)

    return run_step(PrepareTextSpark, "trainyard.steps.prepare_text_spark", prepare, arguments)


if __name__ == "__main__":
    sys.exit(main())
