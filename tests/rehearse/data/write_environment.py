"""Writes its whole environment to `<folder>/<global rank, or main_<node>>.json`."""

import json
import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
name = os.environ.get("RANK", f"main_{os.environ['AZUREML_CR_NODE_RANK']}")
document = {"environment": dict(os.environ)}
(folder / f"{name}.json").write_text(json.dumps(document))
