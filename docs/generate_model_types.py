"""Write the model types of transformers with their settings: `python docs/generate_model_types.py [--check]`.

Lint compares `model_type` and `model_overrides` with this table, so that it need not import transformers.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "src" / "trainyard" / "spec" / "model_types.json"
# The training steps' tasks, with transformers' table of the types that each can train (steps/training/tasks/).
_TABLES = {
    "image_classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "language_modeling": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
}


def table() -> dict[str, Any]:
    """Return the table; settings that every type has are under `every_type`."""
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    settings: dict[str, set[str]] = {}
    tasks: dict[str, list[str]] = {}
    for task, name in _TABLES.items():
        tasks[task] = sorted(getattr(modeling_auto, name))
        for model_type in tasks[task]:
            if model_type not in settings:
                try:
                    config: Any = AutoConfig.for_model(model_type)
                except Exception:
                    continue  # its own defaults contradict each other, so its settings are not compared
                own = {key for key in config.to_dict() if not key.startswith("_")}
                # As steps/training/from_transformers.py takes them: under other names too, where those exist.
                settings[model_type] = own | {name for name, meant in config.attribute_map.items() if meant in own}
    counts = Counter(name for names in settings.values() for name in names)
    shared = {name for name, number in counts.items() if number == len(settings)}
    return {
        "generated": "by docs/generate_model_types.py: do not edit",
        "transformers": transformers.__version__,
        "tasks": tasks,
        "every_type": sorted(shared),
        "settings": {model_type: sorted(names - shared) for model_type, names in sorted(settings.items())},
    }


def text() -> str:
    """Return the table as JSON with a line for each model type."""
    document = table()
    lines = [f" {json.dumps(name)}: {json.dumps(names)}" for name, names in document.pop("settings").items()]
    head = json.dumps(document, indent=1)[: -len("\n}")]
    return f'{head},\n "settings": {{\n' + ",\n".join(lines) + "\n }\n}\n"


if __name__ == "__main__":
    written = text()
    if "--check" not in sys.argv:
        FILE.write_text(written, encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != written:
        sys.exit(f"{FILE} differs from transformers: run `python docs/generate_model_types.py`")
