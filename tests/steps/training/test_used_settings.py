"""What a changed setting means when a training is resumed: every setting says so, and is treated so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rank_processes import training_arguments

from trainyard.settings.step_fields import StepField
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.steps.tasks import BUILT_IN_TASKS
from trainyard.settings.steps.training import TrainDDP
from trainyard.settings.task_fields import step_fields
from trainyard.settings.written_settings import has_settings_file, keys_of_file
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.flags import parse_task_flags
from trainyard.steps.training.checkpoints.commit import changed_settings, refuse_another_training
from trainyard.steps.training.engines.replicas import DDPEngine
from trainyard.steps.training.request import CheckedRequest, check_request
from trainyard.steps.training.used_settings import UsedSettings

TRAINING_STEPS = {name: config for name, config in STEP_CONFIGS.items() if has_settings_file(step_fields(config))}
OWNERS: dict[str, Any] = {**TRAINING_STEPS, **BUILT_IN_TASKS}
FIELDS = [(owner, field) for owner, config in OWNERS.items() for field in keys_of_file(step_fields(config)).values()]
PORTS = ("data", "model", "checkpoints", "metrics", "evaluation", "deepspeed_config")


def fields_that_mean(meaning: str) -> list[Any]:
    return [
        pytest.param(owner, field, id=f"{owner}-{field.name}") for owner, field in FIELDS if field.on_resume == meaning
    ]


def changed(settings: Any, field: StepField) -> Any:
    """The same settings with another value of one."""
    value = getattr(settings, field.name)
    if field.choices is not None:
        another: Any = next(choice for choice in field.choices if choice != value)
    elif field.type == "boolean":
        another = not value
    elif field.type == "string":
        another = "another"
    else:
        another = (value or 0) + 1
    return dataclasses.replace(settings, **{field.name: another})


def used(owner: str, field: StepField) -> tuple[UsedSettings, UsedSettings]:
    """The settings of a step or a task at their defaults, and with one of them changed."""
    config = OWNERS[owner]
    ports = {name: Path(name) for name in PORTS if name in config.__dataclass_fields__}
    defaults = config(**ports)
    return UsedSettings(defaults, None, {}), UsedSettings(changed(defaults, field), None, {})


@pytest.mark.parametrize("owner", OWNERS)
def test_every_setting_says_what_its_change_means(owner: str) -> None:
    silent = [field.name for field in dataclasses.fields(OWNERS[owner]) if field.metadata["on_resume"] is None]
    assert silent == []


@pytest.mark.parametrize(("owner", "field"), fields_that_mean("identity"))
def test_what_makes_another_training_is_refused(owner: str, field: StepField) -> None:
    before, after = (settings.compared("identity") for settings in used(owner, field))
    with pytest.raises(StepError, match=f"belongs to another training, with {field.name} .*--resume never"):
        refuse_another_training(Path("step-1"), before, after, {})


@pytest.mark.parametrize(("owner", "field"), fields_that_mean("numbers"))
def test_what_changes_the_numbers_is_logged(owner: str, field: StepField) -> None:
    before, after = (settings.compared("numbers") for settings in used(owner, field))
    assert f"settings have changed since the checkpoint: {field.name} was " in (changed_settings(before, after) or "")


@pytest.mark.parametrize(("owner", "field"), [*fields_that_mean("attempt"), *fields_that_mean("nothing")])
def test_other_changes_pass(owner: str, field: StepField) -> None:
    before, after = used(owner, field)
    refuse_another_training(Path("step-1"), before.compared("identity"), after.compared("identity"), {})
    assert changed_settings(before.compared("numbers"), after.compared("numbers")) is None
    assert (field.name in after.for_mlflow()) == (field.on_resume == "nothing")


def test_a_mapping_is_what_it_says_however_it_is_written() -> None:
    def settings(text: str) -> UsedSettings:
        return UsedSettings(BUILT_IN_TASKS["language_modeling"](model_overrides=text), None, {})

    first, same, other = map(settings, ('{"a": 1, "b": [2]}', '{"b":[2],"a":1.0}', '{"a": 1}'))
    refuse_another_training(Path("step-1"), first.compared("identity"), same.compared("identity"), {})
    with pytest.raises(StepError, match="model_overrides"):
        refuse_another_training(Path("step-1"), first.compared("identity"), other.compared("identity"), {})


class TestRequest:
    """What a request adds: the dataset, the average, and which settings are without effect."""

    @pytest.fixture
    def request_to_train(self, digits: Path, tmp_path: Path) -> CheckedRequest:
        flags = training_arguments(digits, tmp_path, "image_classification")
        given = parse_task_flags(TrainDDP, "trainyard.steps.train_ddp", [str(flag) for flag in flags])
        return check_request(given, "train_ddp", DDPEngine, 1)

    def with_settings(self, request: CheckedRequest, **changes: Any) -> CheckedRequest:
        settings = dataclasses.replace(request.settings, **changes)
        used = UsedSettings(settings, request.chosen_task.settings, {})
        return dataclasses.replace(request, settings=settings, used=used)

    def test_an_average_is_another_training_and_its_decay_a_number(self, request_to_train: CheckedRequest) -> None:
        averaged, slower = (self.with_settings(request_to_train, ema_decay=decay) for decay in (0.9, 0.99))
        assert request_to_train.identity()["ema"] == "off"
        assert averaged.identity() == slower.identity() != request_to_train.identity()
        assert averaged.numbers() != slower.numbers()

    def test_settings_of_adapters_count_where_there_are_some(self, request_to_train: CheckedRequest) -> None:
        assert self.with_settings(request_to_train, lora_rank=4).identity() == request_to_train.identity()
        adapted = self.with_settings(request_to_train, tuning="lora")
        assert self.with_settings(request_to_train, tuning="lora", lora_rank=4).identity() != adapted.identity()

    def test_another_steps_checkpoint_has_the_defaults_of_what_it_does_not_say(
        self, request_to_train: CheckedRequest
    ) -> None:
        now = {**request_to_train.identity(), "strategy": "ddp", "module": None}
        defaults = {**request_to_train.identity_defaults(), "strategy": "ddp"}
        refuse_another_training(Path("step-1"), request_to_train.identity(), now, defaults)
        with pytest.raises(StepError, match=r"strategy 'ddp' \(now 'fsdp2'\)"):
            refuse_another_training(Path("step-1"), request_to_train.identity(), {**now, "strategy": "fsdp2"}, defaults)
