"""The shape of a language model, from the table of architectures or from a config.json, and its parameters counted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.catalogue.csv_rows import rows_of
from trainyard.errors import UsageError
from trainyard.settings.suggestions import close_match, misspelt_name

_CSV_FILE = Path(__file__).parent / "architectures.csv"
_FAMILIES_FILE = Path(__file__).parent / "families.json"

Widths = dict[str, int]
"""A model's sizes by name: "hidden", "queries", "keys" (also the values'), "all" three of them, "head", "inner"."""


class Linear(NamedTuple):
    """Linear layers of one size: the rows of a token or image, what each takes and gives, the name, and how many."""

    rows: int
    takes: int
    gives: int
    name: str = ""
    times: int = 1


@dataclass(frozen=True)
class Family:
    """What models of one `model_type` of transformers consist of, by the names of `Widths`.

    `names` are the keys of config.json, `defaults` those of transformers. `linear_layers` are a layer's matrices: the
    name of each, what it takes and what it gives. `vectors` count a layer's biases and norms by width,
    `outside_vectors` those outside of layers. `extra_positions` has an entry for each table of learned positions: how
    many more positions it holds than config.json states.
    """

    names: Mapping[str, str]
    defaults: Mapping[str, Any]
    linear_layers: Sequence[tuple[str, str, str]]
    vectors: Mapping[str, int]
    extra_positions: Sequence[int]
    outside_vectors: Mapping[str, int]


@cache
def generated_families() -> dict[str, Any]:
    """Return what docs/generate_families.py wrote: families of `language` and of `images` by their model type."""
    table: dict[str, Any] = json.loads(_FAMILIES_FILE.read_text(encoding="utf-8"))
    return table


@cache
def families() -> dict[str, Family]:
    """Return the families of language models that are counted without transformers."""
    return {name: Family(**row) for name, row in generated_families()["language"].items()}


OTHER_FAMILY = ""
_OTHER = Family(
    names={},
    defaults={},
    linear_layers=(
        ("attention", "hidden", "all"),
        ("output", "queries", "hidden"),
        ("up", "hidden", "inner"),
        ("down", "inner", "hidden"),
    ),
    vectors={},
    extra_positions=(),
    outside_vectors={},
)


@dataclass(frozen=True)
class EagerOperations:
    """What a family's operations do in eager mode, which its shapes do not tell.

    `kept_by_mlp` is how many tensors of its inner width the backward pass of an MLP without a gate needs;
    `moved_by_mlp` how many its nonlinearity reads and writes. `moved_scores` is how often attention's scores are,
    beyond the product that writes them, without flash attention: by default read and written by a fused softmax, and
    read again.
    """

    kept_by_mlp: int = 2
    moved_by_mlp: int = 2
    moved_scores: int = 3


_EAGER_OPERATIONS = {
    # transformers computes GPT-2's GELU operation by operation: six with one tensor, two with two. Its attention
    # divides, masks, takes the softmax and drops out, each in an operation.
    "gpt2": EagerOperations(kept_by_mlp=5, moved_by_mlp=18, moved_scores=9),
    # Eager attention of BERT and others with dropout: scaled, masked, a softmax, dropped out, each an operation.
    OTHER_FAMILY: EagerOperations(moved_scores=9),
    # Of a ReLU, only its result is needed.
    "opt": EagerOperations(kept_by_mlp=1),
}
_SHAPED_LIKE = {"megatron": "gpt2"}
"""GPT-2 as in Megatron-LM and OneFlow, which have one kernel for GELU, and one for the softmax of masked scores."""

# Of names, since the table has dense models only: 8x7b, 30b-a3b (active parameters), and families without either.
_EXPERTS = re.compile(
    r"moe|\dx\d|\db-a\d|mixtral|deepseek-?(?:v[23]|r1)|gpt-oss|llama-?4|dbrx|grok|kimi-k2|glm-4\.5|jamba"
)
_MOST_NEAR = 5
_KIND_OF_WEIGHTS = re.compile(r"[-_](?:hf|base|instruct|chat|it|pt|v\d+(?:\.\d+)*)$")
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
    other_names: tuple[str, ...] = ()
    counted: int | None = None

    @cached_property
    def _family(self) -> Family:
        return families().get(_SHAPED_LIKE.get(self.family, self.family), _OTHER)

    @cached_property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate (SwiGLU): three matrices instead of two."""
        return [gives for _, _, gives in self._family.linear_layers].count("inner") == 2

    @cached_property
    def eager(self) -> EagerOperations:
        """What its operations do in eager mode."""
        return _EAGER_OPERATIONS.get(self.family, EagerOperations())

    @property
    def query_width(self) -> int:
        """The width of all queries."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """The width of all keys, which is that of all values."""
        return self.kv_heads * self.head_size

    @cached_property
    def _widths(self) -> Widths:
        return {
            "hidden": self.hidden_size,
            "queries": self.query_width,
            "keys": self.kv_width,
            "all": self.query_width + 2 * self.kv_width,
            "head": self.head_size,
            "inner": self.intermediate_size,
        }

    def _vector_parameters(self, counts: Mapping[str, int]) -> int:
        widths = self._widths
        return sum(number * widths[width] for width, number in counts.items())

    @cached_property
    def linear_layers(self) -> list[Linear]:
        """All layers' matrices: query, key, value, output, and the MLP's two or three."""
        widths = self._widths
        return [
            Linear(1, widths[takes], widths[gives], name, self.layers)
            for name, takes, gives in self._family.linear_layers
        ]

    @cached_property
    def layer_parameters(self) -> int:
        """All parameters of one layer, with its biases and norms."""
        matrices = sum(each.takes * each.gives for each in self.linear_layers)
        return matrices + self._vector_parameters(self._family.vectors)

    @property
    def block_parameters(self) -> int:
        """All parameters of all layers."""
        return self.layers * self.layer_parameters

    @property
    def largest_block(self) -> int:
        """All parameters of one layer, as all are of one size."""
        return self.layer_parameters

    @property
    def embedding_parameters(self) -> int:
        """The parameters of the word embedding, which a tied model also predicts with."""
        return self.vocabulary_size * self.hidden_size

    @cached_property
    def parameters(self) -> int:
        """All parameters, each once: the closed form of Kaplan et al. 2020 (arXiv:2001.08361), table 1, and the rest.

        The rest is embeddings, biases, norms and, in families that learn them, positions.
        """
        if self.counted is not None:
            return self.counted
        family = self._family
        positions = sum(self.positions + extra for extra in family.extra_positions)
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        outside = embeddings + positions * self.hidden_size + self._vector_parameters(family.outside_vectors)
        return self.block_parameters + outside


def find_architecture(name: str) -> Architecture:
    """Return a model of the table by its name, or by the name it has on the Hugging Face Hub. UsageError if unknown."""
    plain = _plain(name)
    found = _by_plain_name().get(plain) or _by_name_without_dots().get(plain)
    if found is not None:
        return found
    if _EXPERTS.search(name.lower()) and "distill" not in name.lower():
        raise _is_of_experts(name)
    names = [architecture.name for architecture in all_architectures()]
    near = get_close_matches(plain, names, n=_MOST_NEAR, cutoff=0.0)
    hint = close_match(name, names) or f"Nearest: {', '.join(near)}."
    others = f"docs/models.md has all {len(names)}; of others, give the path of their config.json"
    raise UsageError(f"unknown model {name!r}. {hint} {others}")


@cache
def all_architectures() -> tuple[Architecture, ...]:
    """Return the models of the table, in its order."""
    return rows_of(Architecture, _CSV_FILE)


def refuse_experts(settings: Mapping[str, Any], name: str) -> None:
    """Raise UsageError for the configuration of a mixture of experts."""
    if any(settings.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise _is_of_experts(name)


def _is_of_experts(name: str) -> UsageError:
    return UsageError(f"{name} is a mixture of experts, which is not estimated; expected a dense model")


def from_settings(family: str, settings: Mapping[str, Any], name: str) -> Architecture:
    """Return a model of a family with settings named as in its config.json; what is missing has transformers' default.

    Raise UsageError for sizes that no model can have.
    """
    known = families()[family]
    missing = [theirs for theirs in known.names.values() if theirs not in settings]
    for key in sorted(settings.keys() - known.names.values()):
        if meant := misspelt_name(key, missing):
            raise UsageError(f"unknown key {key!r}; did you mean {meant!r}?")
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
    if not sizes.get("intermediate_size"):
        sizes["intermediate_size"] = settings.get("expansion_ratio", 4) * sizes["hidden_size"]
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
