"""Models of families without a closed form, counted on torch's meta device: shapes without values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.errors import UsageError
from trainyard.estimate.architectures import OTHER_FAMILY, Architecture


def architecture_on_meta(model_type: str, settings: Mapping[str, Any], name: str) -> Architecture:
    """Return the shape of a causal language model of transformers, with the parameters that the real model has.

    Takes seconds, since transformers is imported. UsageError for an unknown model type, for one without a language
    model, and where transformers is not installed.
    """
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise UsageError(
            f"counting the parameters of a {model_type!r} needs {error.name}: pip install 'trainyard[train]'"
        ) from None
    try:
        given = {key: value for key, value in settings.items() if key != "model_type"}
        config = AutoConfig.for_model(model_type, **given)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        # transformers refuses settings with whatever its own code raises.
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{name}: not a language model of transformers: {first[:160]}") from None
    count = sum(parameter.numel() for parameter in model.parameters())
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or hidden // heads
    tied = bool(config.tie_word_embeddings)
    in_layers = count - config.vocab_size * hidden * (1 if tied else 2)
    attention = 2 * hidden * head_size * (heads + kv_heads)
    return Architecture(
        name=name,
        family=OTHER_FAMILY,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=max(1, (in_layers // layers - attention) // (2 * hidden)),
        vocabulary_size=config.vocab_size,
        positions=getattr(config, "max_position_embeddings", 0) or 0,
        tied=tied,
        counted=count,
    )
