"""Write the shapes of the model families that are estimated without transformers, from its own models.

    python docs/generate_families.py [--check]

Of language models: what the keys of config.json are called, their defaults, and which matrices and vectors a layer and
the rest of the model have, by the size that each side follows. Of image classifiers: the defaults.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "src" / "trainyard" / "plan" / "estimate" / "families.json"

LANGUAGE_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "opt", "gpt_neox", "mpt")
KEYS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocabulary_size": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "tied": ("tie_word_embeddings",),
}
"""What a size is called in the families' config.json."""

IMAGE_DEFAULTS = {
    "convnext": ("patch_size", "num_stages", "hidden_sizes", "depths", "layer_scale_init_value"),
    "vit": ("patch_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "qkv_bias"),
    "resnet": (
        "embedding_size",
        "hidden_sizes",
        "depths",
        "layer_type",
        "downsample_in_first_stage",
        "downsample_in_bottleneck",
    ),
    "swin": ("patch_size", "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias"),
}
"""The settings that the size of an image classifier follows from."""

HEADS, KV_HEADS, HEAD_SIZE, HIDDEN, INNER, VOCABULARY, POSITIONS = 6, 2, 10, 84, 77, 97, 101
"""Sizes of a small model, all different, so that the shape of a parameter says which of them it follows."""


def language_family(model_type: str) -> dict[str, Any]:
    """Return the row of a family of language models."""
    from transformers import AutoConfig

    config: Any = AutoConfig.for_model(model_type)
    plain = config.to_dict()
    names = {size: key for size, keys in KEYS.items() for key in keys if key in plain}
    defaults = {size: plain[key] for size, key in names.items() if plain[key] is not None}
    other: Any = AutoConfig.for_model(model_type, **{names["heads"]: 2 * defaults["heads"]})
    for size in ("kv_heads", "head_size"):
        if size in names and other.to_dict()[names[size]] != defaults.get(size):
            del defaults[size]  # it follows the number of heads
    return {"names": names, "defaults": defaults, **_shapes(model_type, names)}


def _shapes(model_type: str, names: dict[str, str]) -> dict[str, Any]:
    """Return what a layer has, and what is outside the layers beside the embedding and the prediction."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    has_head_size, has_kv_heads = "head_size" in names, "kv_heads" in names
    hidden = HIDDEN if has_head_size else HEADS * HEAD_SIZE
    sizes = {
        "hidden_size": hidden,
        "layers": 1,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_size": HEAD_SIZE,
        "intermediate_size": INNER,
        "vocabulary_size": VOCABULARY,
        "positions": POSITIONS,
        "tied": False,
    }
    given = {key: sizes[size] for size, key in names.items()}
    if model_type == "opt":
        given["word_embed_proj_dim"] = hidden
    config: Any = AutoConfig.for_model(model_type, **given)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    keys = (KV_HEADS if has_kv_heads else HEADS) * HEAD_SIZE
    queries = HEADS * HEAD_SIZE
    inner = INNER if "intermediate_size" in names else 4 * hidden
    widths = {HEAD_SIZE: "head", inner: "inner", queries + 2 * keys: "all", keys: "keys", queries: "queries"}
    widths[hidden] = "hidden"
    (layers,) = (module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    in_layers = {id(parameter) for parameter in layers.parameters()}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in in_layers]
    return {
        "linear_layers": [
            [name, widths[takes], widths[gives]]
            for name, module in layers[0].named_modules()
            for takes, gives in _sides(module)
        ],
        "vectors": _vectors(layers.parameters(), widths),
        "extra_positions": [
            parameter.shape[0] - POSITIONS
            for parameter in outside
            if parameter.dim() == 2 and parameter.shape[0] != VOCABULARY
        ],
        "outside_vectors": _vectors(outside, widths),
    }


def _sides(module: Any) -> list[tuple[int, int]]:
    """Return what a matrix takes and gives; nothing for other modules. A Conv1D has its weight the other way round."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        return []
    sides = tuple(weight.shape)
    return [sides if type(module).__name__ == "Conv1D" else sides[::-1]]


def _vectors(parameters: Any, widths: dict[int, str]) -> dict[str, int]:
    return dict(Counter(widths[parameter.numel()] for parameter in parameters if parameter.dim() == 1))


def image_defaults(model_type: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the defaults of an image classifier."""
    from transformers import AutoConfig

    config: Any = AutoConfig.for_model(model_type)
    return {key: getattr(config, key) for key in keys}


def text() -> str:
    """Return the table as JSON with a line for each fact of a family."""
    import transformers

    made_by = f"docs/generate_families.py from transformers {transformers.__version__}: do not edit"
    language = {name: language_family(name) for name in LANGUAGE_FAMILIES}
    images = {name: image_defaults(name, keys) for name, keys in IMAGE_DEFAULTS.items()}
    lines = ["{", f' "generated": "by {made_by}",', ' "language": {', _rows(language), " },", ' "images": {']
    return "\n".join([*lines, _rows(images), " }", "}", ""])


def _rows(families: dict[str, dict[str, Any]]) -> str:
    """Return the families with a line for each fact."""
    blocks = []
    for name, facts in families.items():
        lines = [f"   {json.dumps(key)}: {json.dumps(fact)}" for key, fact in facts.items()]
        blocks.append(f'  "{name}": {{\n' + ",\n".join(lines) + "\n  }")
    return ",\n".join(blocks)


if __name__ == "__main__":
    written = text()
    if "--check" not in sys.argv:
        FILE.write_text(written, encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != written:
        sys.exit(f"{FILE} differs from transformers: run `python docs/generate_families.py`")
