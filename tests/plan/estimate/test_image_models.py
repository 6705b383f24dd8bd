"""Image classifiers in closed form, held to what the real models of transformers keep and multiply."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trainyard.catalogue.gpus import find_gpu
from trainyard.errors import UsageError
from trainyard.plan.estimate.config_file import find_model
from trainyard.plan.estimate.estimator import estimate
from trainyard.plan.estimate.image_models import ImageModel, Images, ModelBlock, image_model
from trainyard.plan.estimate.meta_model import count_without_values, image_model_on_meta
from trainyard.plan.estimate.search import Scope, search
from trainyard.plan.estimate.training import Adapters, TrainingShape, machines_of_gpu
from trainyard.settings.small_image_models import small_image_settings

_RESNET_18 = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}


def _parts(model: ImageModel) -> tuple[ModelBlock, ...]:
    return (*model.blocks, model.around)


def _kept(model: ImageModel) -> int:
    return sum(part.kept for part in _parts(model))


def _flops(model: ImageModel) -> float:
    return sum(product.flops for part in _parts(model) for product in part.products)


def _flops_of_3_by_3(model: ImageModel) -> float:
    return sum(product.flops for part in _parts(model) for product in part.products if product.is_3_by_3)


@pytest.mark.parametrize(
    ("model_type", "settings", "images"),
    [
        ("convnext", {}, Images()),
        ("convnext", small_image_settings("convnext", 8), Images(8, 8, 1, 10)),
        ("vit", {}, Images()),
        ("vit", small_image_settings("vit", 32), Images(32, 32, 3, 10)),
        ("resnet", {}, Images()),
        ("resnet", _RESNET_18, Images(96, 96, 3, 5)),
        ("swin", {}, Images()),
        ("swin", {"depths": [2, 4], "num_heads": [2, 4], "window_size": 4, "embed_dim": 64}, Images(90, 70, 3, 10)),
    ],
)
def test_a_closed_form_is_what_the_real_model_does(model_type: str, settings: dict[str, Any], images: Images) -> None:
    ours, real = (make(model_type, settings, images) for make in (image_model, image_model_on_meta))
    assert ours.parameters == real.parameters
    assert _flops(ours) == pytest.approx(_flops(real))
    assert _flops_of_3_by_3(ours) == pytest.approx(_flops_of_3_by_3(real))
    assert _kept(ours) == pytest.approx(_kept(real), rel=0.02)
    assert [block.working for block in ours.blocks] == pytest.approx([block.working for block in real.blocks], rel=0.02)
    assert ours.layers == real.layers
    assert [block.parameters for block in ours.blocks] == [block.parameters for block in real.blocks]
    moved = [sum(part.moved for part in _parts(model)) for model in (ours, real)]
    assert moved[0] == pytest.approx(moved[1], rel=0.3)


def test_no_selective_checkpointing_of_images_is_searched() -> None:
    training = TrainingShape(find_model("vit"), machines_of_gpu(find_gpu("A100"), 1), "ddp", 1, 1, 1)
    for kind, count in (("none", 5), ("full", 5), ("selective", 0)):
        wanted = replace(training, activation_checkpointing=kind)
        found = search(wanted, [wanted.machines], Scope(fixed=frozenset({"activation_checkpointing"}))).fastest
        assert len(found) == count


@pytest.mark.parametrize("model_type", ["convnext", "vit", "swin"])
def test_adapters_are_those_that_peft_injects(model_type: str) -> None:
    """Beside every linear layer but the head, which is trained whole, as train_ddp does it."""
    from peft import LoraConfig, inject_adapter_in_model  # seconds, which every process that collects tests would take

    with torch.device("meta"):
        model = transformers.AutoModelForImageClassification.from_config(
            transformers.AutoConfig.for_model(model_type, num_labels=10)
        )
    inject_adapter_in_model(LoraConfig(r=8, target_modules="all-linear", modules_to_save=["classifier"]), model)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)

    ours = image_model(model_type, {}, Images(classes=10))
    assert Adapters(8).parameters(ours) == trained
    machines = machines_of_gpu(find_gpu("A100-SXM-80GB"), 1)
    full, adapted = (
        estimate(TrainingShape(ours, machines, "ddp", 64, 1, 1, adapters=adapters)) for adapters in (None, Adapters(8))
    )
    assert adapted.memory.parameters + adapted.memory.gradients < full.memory.parameters + full.memory.gradients
    assert adapted.memory.optimizer < full.memory.optimizer
    assert adapted.memory.total < full.memory.total


def test_adapters_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="a resnet has no linear layers to put adapters beside"):
        Adapters(8).matrices(image_model("resnet", {}, Images()))
    with pytest.raises(UsageError, match="no layer of vit is called query,value; expected one of: all-linear"):
        Adapters(8, "query,value").matrices(image_model("vit", {}, Images()))


def test_a_model_without_closed_form_is_counted() -> None:
    swin = image_model_on_meta("swinv2", {}, Images())
    assert swin.parameters == 28_347_154
    assert _flops(swin) / 1e9 == pytest.approx(9.0, rel=0.05)


@pytest.mark.parametrize(
    ("layer", "is_3_by_3"),
    [
        (torch.nn.Conv2d(4, 8, 3), True),
        (torch.nn.Conv2d(4, 8, 3, stride=2), False),
        (torch.nn.Conv2d(4, 8, 3, dilation=2), False),
        (torch.nn.Conv2d(4, 8, 3, groups=2), False),
        (torch.nn.Conv2d(4, 8, (1, 3)), False),
        (torch.nn.Conv2d(4, 8, (7, 3)), False),
        (torch.nn.ConvTranspose2d(4, 8, 3), False),
    ],
    ids=str,
)
def test_convolutions_that_winograds_algorithm_computes_are_told_from_others(
    layer: torch.nn.Module, is_3_by_3: bool
) -> None:
    _, around = count_without_values(layer, lambda: layer(torch.empty(1, 4, 16, 16)), "a layer")
    assert [product.is_3_by_3 for product in around.products] == [is_3_by_3]


@pytest.mark.parametrize(
    ("model_type", "parameters"),
    [("convnext", 28_589_128), ("vit", 86_567_656), ("resnet", 25_557_032), ("swin", 28_288_354)],
)
def test_models_of_the_papers_have_their_parameters(model_type: str, parameters: int) -> None:
    found = find_model(model_type)
    assert found.parameters == parameters


def test_settings_that_no_model_can_have_are_refused() -> None:
    with pytest.raises(UsageError, match="a convnext cannot have these settings"):
        image_model("convnext", {"hidden_sizes": [48], "num_stages": 2}, Images())
    with pytest.raises(UsageError, match="a swin cannot have these settings: a window of 7 x 7 patches on 6 x 6"):
        image_model("swin", {}, Images(96, 96))


def test_recomputing_and_smaller_micro_batches_take_less() -> None:
    def total(**settings: Any) -> float:
        chosen = {"micro_batch_size": 64, "accumulation_steps": 1, "sequence_length": 1, **settings}
        machines = machines_of_gpu(find_gpu("A100-SXM-80GB"), 1)
        return estimate(TrainingShape(image_model("resnet", {}, Images()), machines, "ddp", **chosen)).memory.total

    whole = total()
    assert total(activation_checkpointing="full") < whole
    assert total(micro_batch_size=32) < whole


_OF_NVIDIA = (
    ("A100-SXM-80GB", 1, "fp16", 2470),
    ("A100-SXM-80GB", 8, "fp16", 16621),
    ("V100-SXM-16GB", 1, "fp16", 1200),
    ("V100-SXM-16GB", 8, "fp16", 8322),
    ("V100-SXM-32GB", 1, "fp16", 1156),
    ("V100-SXM-32GB", 8, "fp16", 8056),
    ("V100-SXM-16GB", 1, "fp32", 367),
    ("V100-SXM-16GB", 8, "fp32", 2855),
    ("V100-SXM-32GB", 1, "fp32", 356),
    ("V100-SXM-32GB", 8, "fp32", 2766),
)
"""Images a second of ResNet-50, which nothing is fitted to; those in mixed precision with channels last.

https://github.com/NVIDIA/DeepLearningExamples/blob/291f0d02e815b148fa5c2b81bf07aa3552142895/PyTorch/Classification/ConvNets/resnet50v1.5/README.md
"""


@pytest.mark.parametrize(("gpu", "gpus", "precision", "published"), _OF_NVIDIA)
def test_published_trainings_of_resnet_50_are_predicted(gpu: str, gpus: int, precision: str, published: int) -> None:
    """Within 10 %, on eight A100 too."""
    machines, batch = machines_of_gpu(find_gpu(gpu), 1, gpus), 256 if precision == "fp16" else 112
    training = TrainingShape(image_model("resnet", {}, Images()), machines, "ddp", batch, 1, 1, precision)
    found = estimate(replace(training, stack="eager", stack_year=2021, channels_last=precision == "fp16"))
    assert found.samples_per_second == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": [224]}, r"image_size \[224\]; expected a number of pixels, or \[height, width\]"),
        ({"image_size": "big"}, "image_size 'big'"),
        ({"id2label": 5}, "id2label 5; expected an object with the name of each class"),
        ({"num_labels": -1}, "num_labels -1; expected a whole number above 0"),
    ],
)
def test_a_configuration_of_impossible_images_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", **settings}))
    with pytest.raises(UsageError, match=message):
        find_model(str(tmp_path))
