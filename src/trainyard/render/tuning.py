"""What pipelines/autotune.yaml measures for a profile: the memory model of `trainyard plan` over all candidates.

The model is that of the training's settings file.
"""

from __future__ import annotations

import json
from typing import Any

from trainyard.errors import UsageError
from trainyard.plan.estimate.architectures import families
from trainyard.plan.estimate.config_file import architecture_for_data
from trainyard.plan.estimate.search import Proposal, propose
from trainyard.plan.estimate.training import TrainingShape, machines_of_sku
from trainyard.render import rules
from trainyard.render.profiles import Profile
from trainyard.render.project import Project
from trainyard.render.steps import StepDescription
from trainyard.render.values import written
from trainyard.settings.step_fields import StepField
from trainyard.settings.written_settings import SettingValue, value_of_yaml
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Node, read_document, require_mapping

_OF_THE_TRIAL = frozenset(
    {"task", "global_batch_size", "precision", "steps", "warmup_steps", "process_group_timeout_seconds"}
)
"""Settings of a trial that have another meaning in a training, or come from the profile."""


def tuning_proposal(
    profile: Profile,
    *,
    model_type: str,
    model_overrides: str | None,
    vocabulary_size: int,
    sequence_length: int,
    loss_chunk_tokens: int,
    is_deterministic: bool,
    samples: int,
    most: int,
) -> Proposal:
    """Return the candidates for a language model on a profile's machines, at most so many.

    `samples` are those of one process in an optimizer step. If there is no estimate, nothing is ruled out, and the
    proposal has the reason. Only models that are counted in closed form are estimated, so that a rendering is the same
    with and without transformers. UsageError for overrides that are not a JSON object.
    """
    sku = profile.sku
    if sku is None or not sku.gpu_count:
        return propose(samples, most, None, "these machines have no GPU", has_gpu=False)
    if model_type not in families():
        return propose(samples, most, None, f"the size of {model_type} is not known in closed form")
    try:
        settings: dict[str, Any] = json.loads(model_overrides or "{}")
    except ValueError as error:
        raise UsageError(f"model_overrides: {model_overrides!r} is not a mapping ({error})") from None
    try:
        training = TrainingShape(
            architecture=architecture_for_data(model_type, settings, vocabulary_size, sequence_length),
            machines=machines_of_sku(sku, profile.nodes),
            engine="zero0",
            micro_batch_size=samples,
            accumulation_steps=1,
            sequence_length=sequence_length,
            precision=profile.precision,
            loss_chunk_tokens=loss_chunk_tokens,
            is_deterministic=is_deterministic,
        )
        return propose(samples, most, training)
    except UsageError as error:
        return propose(samples, most, None, str(error))


def trial_settings(project: Project, step: StepDescription, path: str) -> dict[str, SettingValue]:
    """Return what a training's settings file says of its model and its speed, as the inputs of a trial (`step`).

    Raise SpecError for a value that the step does not take.
    """
    document = read_document(project.root / path)
    require_mapping(document)
    names = [name for name in step.field if name not in _OF_THE_TRIAL and name in document.root.entries]
    values = {name: _value(step.field[name], document.root.entries[name].value) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _value(field: StepField, node: Node) -> SettingValue | None:
    try:
        value: SettingValue | None = written(value_of_yaml(field, node.data, node.text), node.span)
    except ValueError as error:
        raise SpecError(rules.PROFILE_VALUE.at(node.span, f"{field.name}: {error}")) from None
    return value
