"""The shape of a language model, from the table of architectures or from a config.json, and its parameters counted."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError
from trainyard.settings.suggestions import close_match

_CSV_FILE = Path(__file__).parent / "architectures.csv"


@dataclass(frozen=True)
class Family:
    """What models of one `model_type` of transformers have beside their matrices.

    `names` are the keys of config.json, which differ between families; `defaults` are those of transformers.
    `linear_layers` are a layer's matrices by their names in transformers, with what they take and give: "hidden",
    "queries", "keys" (also the values' width), "all" three of them, "inner" of the MLP. `kept_by_mlp` is how many
    tensors of its inner width the backward pass of an MLP without a gate needs, in eager mode; `moved_by_mlp` how many
    its nonlinearity reads and writes. `moved_scores` is how often attention's scores are, without flash attention: by
    default written, read and written by a fused softmax, and read again.
    """

    names: Mapping[str, str]
    defaults: Mapping[str, Any]
    gated: bool
    attention_bias: str
    mlp_bias: bool
    norm_values: int
    learned_positions: int
    head_norms: bool = False
    linear_layers: tuple[tuple[str, str, str], ...] = ()
    kept_by_mlp: int = 2
    moved_by_mlp: int = 2
    moved_scores: int = 4


_LLAMA_LINEAR = (
    ("q_proj", "hidden", "queries"),
    ("k_proj", "hidden", "keys"),
    ("v_proj", "hidden", "keys"),
    ("o_proj", "queries", "hidden"),
    ("gate_proj", "hidden", "inner"),
    ("up_proj", "hidden", "inner"),
    ("down_proj", "inner", "hidden"),
)
_OPT_LINEAR = (
    ("q_proj", "hidden", "queries"),
    ("k_proj", "hidden", "keys"),
    ("v_proj", "hidden", "keys"),
    ("out_proj", "queries", "hidden"),
    ("fc1", "hidden", "inner"),
    ("fc2", "inner", "hidden"),
)


def _fused_linear(attention: str, output: str, up: str, down: str) -> tuple[tuple[str, str, str], ...]:
    return (
        (attention, "hidden", "all"),
        (output, "queries", "hidden"),
        (up, "hidden", "inner"),
        (down, "inner", "hidden"),
    )


_LLAMA_NAMES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocabulary_size": "vocab_size",
    "positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
}
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "intermediate_size": "n_inner",
    "vocabulary_size": "vocab_size",
    "positions": "n_positions",
    "tied": "tie_word_embeddings",
}
_MPT_NAMES = {
    "hidden_size": "d_model",
    "layers": "n_layers",
    "heads": "n_heads",
    "vocabulary_size": "vocab_size",
    "positions": "max_seq_len",
    "tied": "tie_word_embeddings",
}


def _defaults(hidden: int, layers: int, heads: int, inner: int, vocabulary: int, positions: int, tied: bool) -> Any:
    return {
        "hidden_size": hidden,
        "layers": layers,
        "heads": heads,
        "intermediate_size": inner,
        "vocabulary_size": vocabulary,
        "positions": positions,
        "tied": tied,
    }


FAMILIES: dict[str, Family] = {
    "llama": Family(
        _LLAMA_NAMES,
        _defaults(4096, 32, 32, 11008, 32000, 2048, False),
        True,
        "",
        False,
        1,
        0,
        linear_layers=_LLAMA_LINEAR,
    ),
    "mistral": Family(
        _LLAMA_NAMES,
        {**_defaults(4096, 32, 32, 14336, 32000, 131072, False), "kv_heads": 8},
        True,
        "",
        False,
        1,
        0,
        linear_layers=_LLAMA_LINEAR,
    ),
    "qwen2": Family(
        _LLAMA_NAMES,
        {**_defaults(4096, 32, 32, 22016, 151936, 32768, False), "kv_heads": 32},
        True,
        "qkv",
        False,
        1,
        0,
        linear_layers=_LLAMA_LINEAR,
    ),
    "qwen3": Family(
        _LLAMA_NAMES,
        {**_defaults(4096, 32, 32, 22016, 151936, 32768, False), "kv_heads": 32, "head_size": 128},
        True,
        "",
        False,
        1,
        0,
        head_norms=True,
        linear_layers=_LLAMA_LINEAR,
    ),
    "gpt2": Family(
        _GPT2_NAMES,
        _defaults(768, 12, 12, 0, 50257, 1024, True),
        False,
        "qkvo",
        True,
        2,
        1,
        linear_layers=_fused_linear("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        # transformers computes GPT-2's GELU operation by operation: six with one tensor, two with two.
        kept_by_mlp=5,
        moved_by_mlp=18,
        # Its attention divides, masks, takes the softmax and drops out, each in an operation.
        moved_scores=10,
    ),
    "opt": Family(
        {**_LLAMA_NAMES, "intermediate_size": "ffn_dim"},
        _defaults(768, 12, 12, 3072, 50272, 2048, True),
        False,
        "qkvo",
        True,
        2,
        1,
        linear_layers=_OPT_LINEAR,
        # Of a ReLU, only its result is needed.
        kept_by_mlp=1,
    ),
    "gpt_neox": Family(
        _LLAMA_NAMES,
        _defaults(6144, 44, 64, 24576, 50432, 2048, False),
        False,
        "qkvo",
        True,
        2,
        0,
        linear_layers=_fused_linear("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    ),
    "mpt": Family(
        _MPT_NAMES,
        _defaults(2048, 24, 16, 0, 50368, 2048, True),
        False,
        "",
        False,
        1,
        0,
        linear_layers=_fused_linear("Wqkv", "out_proj", "up_proj", "down_proj"),
    ),
}
"""Families whose parameters are counted in closed form; tests hold each to the count of transformers' own model."""

OTHER_FAMILY = ""
_MEGATRON = replace(FAMILIES["gpt2"], kept_by_mlp=2, moved_by_mlp=2, moved_scores=4)
"""GPT-2 as in Megatron-LM and OneFlow, which have one kernel for GELU, and one for the softmax of masked scores."""

_OTHER = Family(
    {},
    {},
    gated=False,
    attention_bias="",
    mlp_bias=False,
    norm_values=0,
    learned_positions=0,
    linear_layers=_fused_linear("attention", "output", "up", "down"),
)

_KIND_OF_WEIGHTS = re.compile(r"[-_](?:hf|base|instruct|chat|it|pt|v\d+(?:\.\d+)*)$")
_OPT_EXTRA_POSITIONS = 2
_POSITIVE = ("hidden_size", "layers", "heads", "kv_heads", "head_size", "intermediate_size", "vocabulary_size")


@dataclass(frozen=True)
class Architecture:
    """A decoder of one of the families; sizes as in its config.json.

    One of OTHER_FAMILY has its parameters `counted` from the real model, and an MLP of the size that makes up for the
    rest of its layers.
    """

    name: str
    family: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocabulary_size: int
    positions: int
    tied: bool
    counted: int | None = None
    other_names: tuple[str, ...] = ()

    @property
    def _family(self) -> Family:
        return _MEGATRON if self.family == "megatron" else FAMILIES.get(self.family, _OTHER)

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate (SwiGLU): three matrices instead of two."""
        return self._family.gated

    @property
    def kept_by_mlp(self) -> int:
        """How many tensors of its inner width the backward pass of an MLP without a gate needs, in eager mode."""
        return self._family.kept_by_mlp

    @property
    def moved_by_mlp(self) -> int:
        """How many tensors of its inner width the nonlinearity of an MLP without a gate reads and writes, eager."""
        return self._family.moved_by_mlp

    @property
    def moved_scores(self) -> int:
        """How often attention's scores are read or written in a forward pass without flash attention."""
        return self._family.moved_scores

    @property
    def query_width(self) -> int:
        """The width of all queries."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """The width of all keys, which is that of all values."""
        return self.kv_heads * self.head_size

    @property
    def layer_matrix_parameters(self) -> int:
        """The parameters of one layer's matrices: query, key, value, output, and the MLP's two or three."""
        attention = self.hidden_size * (2 * self.query_width + 2 * self.kv_width)
        return attention + (3 if self.is_gated else 2) * self.hidden_size * self.intermediate_size

    @property
    def layer_parameters(self) -> int:
        """All parameters of one layer, with its biases and norms."""
        family = self._family
        biases = {
            "": 0,
            "qkv": self.query_width + 2 * self.kv_width,
            "qkvo": self.query_width + 2 * self.kv_width + self.hidden_size,
        }[family.attention_bias]
        if family.mlp_bias:
            biases += self.intermediate_size + self.hidden_size
        norms = 2 * family.norm_values * self.hidden_size + (2 * self.head_size if family.head_norms else 0)
        return self.layer_matrix_parameters + biases + norms

    @property
    def block_parameters(self) -> int:
        """All parameters of all layers."""
        return self.layers * self.layer_parameters

    @property
    def largest_block(self) -> int:
        """All parameters of one layer, as all are of one size."""
        return self.layer_parameters

    @property
    def linear_layers(self) -> tuple[tuple[str, int, int], ...]:
        """One layer's matrices: the name of each in transformers, what it takes and what it gives."""
        widths = {
            "hidden": self.hidden_size,
            "queries": self.query_width,
            "keys": self.kv_width,
            "all": self.query_width + 2 * self.kv_width,
            "inner": self.intermediate_size,
        }
        named = self._family.linear_layers
        return tuple((name, widths[takes], widths[gives]) for name, takes, gives in named)

    @property
    def embedding_parameters(self) -> int:
        """The parameters of the word embedding, which a tied model also predicts with."""
        return self.vocabulary_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters, each once: the closed form of Kaplan et al. 2020 (arXiv:2001.08361), table 1, and the rest.

        The rest is embeddings, biases, norms and, in families that learn them, positions.
        """
        if self.counted is not None:
            return self.counted
        family = self._family
        positions = family.learned_positions * self.positions * self.hidden_size
        if self.family == "opt":
            positions += _OPT_EXTRA_POSITIONS * self.hidden_size
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + embeddings + positions + family.norm_values * self.hidden_size


def find_architecture(name: str) -> Architecture:
    """Return a model of the table by its name, or by the name it has on the Hugging Face Hub. UsageError if unknown."""
    plain = _plain(name)
    found = _by_plain_name().get(plain) or _by_name_without_dots().get(plain)
    if found is not None:
        return found
    names = [architecture.name for architecture in all_architectures()]
    hint = close_match(name, names)
    raise UsageError(
        f"unknown model {name!r}. {hint or 'Expected the path of a config.json or one of: ' + ', '.join(names) + '.'}"
    )


@cache
def all_architectures() -> tuple[Architecture, ...]:
    """Return the models of the table, in its order."""
    with _CSV_FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Architecture(
                name=row["name"],
                family=row["family"],
                other_names=tuple(row["other_names"].split()),
                tied=row["tied"] == "yes",
                **{key: int(row[key]) for key in (*_POSITIVE, "positions")},
            )
            for row in csv.DictReader(file)
        )


def refuse_experts(settings: Mapping[str, Any], name: str) -> None:
    """Raise UsageError for the configuration of a mixture of experts."""
    if any(settings.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UsageError(f"{name} is a mixture of experts, which is not estimated; expected a dense model")


def from_settings(family: str, settings: Mapping[str, Any], name: str) -> Architecture:
    """Return a model of a family with settings named as in its config.json; what is missing has transformers' default.

    Raise UsageError for sizes that no model can have.
    """
    known = FAMILIES[family]
    given = {ours: settings[theirs] for ours, theirs in known.names.items() if settings.get(theirs) is not None}
    sizes = {**known.defaults, **given}
    for key, value in sizes.items():
        if key != "tied" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise UsageError(f"{known.names.get(key, key)} is {value!r}; expected a whole number above 0")
    if not sizes["heads"] or not sizes["hidden_size"]:
        raise UsageError(f"{known.names['heads' if not sizes['heads'] else 'hidden_size']} is 0; expected more")
    if "head_size" not in sizes and sizes["hidden_size"] % sizes["heads"]:
        raise UsageError(
            f"{known.names['hidden_size']} {sizes['hidden_size']} is not a multiple of "
            f"{known.names['heads']} {sizes['heads']}"
        )
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("head_size", sizes["hidden_size"] // sizes["heads"])
    # Families without a default of their own take a multiple of the width.
    sizes["intermediate_size"] = sizes["intermediate_size"] or settings.get("expansion_ratio", 4) * sizes["hidden_size"]
    for key in _POSITIVE:
        if not sizes[key]:
            raise UsageError(f"{known.names.get(key, key)} is 0; expected more")
    return Architecture(name=name, family=family, **{**sizes, "tied": bool(sizes["tied"])})


def _plain(name: str) -> str:
    """Return a name without what people write differently: owner, case, separators, the kind of weights.

    Dots stay: 1.3b is not 13b.
    """
    bare = name.lower().rsplit("/", 1)[-1].removeprefix("meta-")
    while _KIND_OF_WEIGHTS.search(bare):
        bare = _KIND_OF_WEIGHTS.sub("", bare)
    return re.sub(r"[^a-z0-9.]", "", bare)


@cache
def _by_plain_name() -> dict[str, Architecture]:
    return {
        _plain(name): architecture
        for architecture in all_architectures()
        for name in (architecture.name, *architecture.other_names)
    }


@cache
def _by_name_without_dots() -> dict[str, Architecture]:
    """Return models by a name that is written without its dots, as qwen25-7b, where only one of them is meant."""
    found: dict[str, Architecture | None] = {}
    for name, architecture in _by_plain_name().items():
        undotted = name.replace(".", "")
        found[undotted] = None if undotted in found else architecture
    return {name: architecture for name, architecture in found.items() if architecture is not None}
