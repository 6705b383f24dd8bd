"""Write docs/steps.md from the dataclasses of the steps: `python docs/generate.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.foundation.configs import STEP_CONFIGS
from trainyard.steps.runtime.settings_table import settings_table

PAGE = Path(__file__).parent / "steps.md"


def steps_page() -> str:
    """The page as it should be."""
    parts = [
        "# The steps and their settings\n",
        "Written by `python docs/generate.py` from the dataclasses in `src/trainyard/foundation/configs/`, which are\n"
        "also the source of each step's flags and of its component's inputs and outputs.\n",
    ]
    for name, config_class in STEP_CONFIGS.items():
        parts += [f"## {name}\n", f"{config_class.__doc__}\n", settings_table(config_class)]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(
            PAGE.read_text(encoding="utf-8") != steps_page() and "docs/steps.md has drifted: python docs/generate.py"
        )
    PAGE.write_text(steps_page(), encoding="utf-8")
