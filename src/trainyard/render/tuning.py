"""What pipelines/autotune.yaml measures for a profile: the memory model of `trainyard plan` over all candidates."""

from __future__ import annotations

import json
from typing import Any

from trainyard.errors import UsageError
from trainyard.plan.estimate.architectures import families
from trainyard.plan.estimate.candidates import Proposal, TuningRequest, propose, propose_unestimated
from trainyard.plan.estimate.config_file import architecture_for_data
from trainyard.plan.estimate.training import machines_of_sku
from trainyard.render.profiles import Profile


def tuning_proposal(
    profile: Profile,
    *,
    model_type: str,
    model_overrides: str | None,
    vocabulary_size: int,
    sequence_length: int,
    loss_chunk_tokens: int,
    samples: int,
    most: int,
) -> Proposal:
    """Return the candidates for a language model on a profile's machines, at most so many.

    `samples` are those of one process in an optimizer step. If there is no estimate, nothing is ruled out, and the
    proposal has the reason. Only models that are counted in closed form are estimated, so that a rendering is the same
    with and without transformers. UsageError for overrides that are not a JSON object.
    """
    request = TuningRequest(samples, sequence_length, profile.precision, most, loss_chunk_tokens)
    has_gpu = profile.sku is not None and profile.sku.gpu_count > 0
    if profile.sku is None or not has_gpu:
        return propose_unestimated(request, "these machines have no GPU", has_gpu=False)
    if model_type not in families():
        return propose_unestimated(request, f"the size of {model_type} is not known in closed form", has_gpu=True)
    settings = _settings_of_model(model_overrides)
    try:
        architecture = architecture_for_data(model_type, settings, vocabulary_size, sequence_length)
        return propose(request, architecture, machines_of_sku(profile.sku, profile.nodes))
    except UsageError as error:
        return propose_unestimated(request, str(error), has_gpu=True)


def _settings_of_model(overrides: str | None) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(overrides or "{}")
    except ValueError as error:
        setting = "pipelines.deepspeed.model_overrides"
        raise UsageError(f"{setting}: {overrides!r} is not JSON ({error}); write it as '{{\"n_layer\": 12}}'") from None
    return settings
