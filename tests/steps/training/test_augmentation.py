"""Training images are shifted and mirrored as their sample's random bits say; nothing else, and nowhere else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.tasks import ImageClassificationSettings
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.training.samples.batches import SAMPLE_DRAWS, TrainingBatches
from trainyard.steps.training.samples.plan import TrainingPlan
from trainyard.steps.training.tasks.augmentation import Mixing, augment, partners_of
from trainyard.steps.training.tasks.image_classification import ImageClassification

PIXELS = torch.arange(2 * 16 * 24, dtype=torch.float32).reshape(1, 2, 16, 24)


def draw(down: int, right: int, *, mirrored: bool = False, side: tuple[int, int] = (16, 24)) -> torch.Tensor:
    """Bits that show the image from so many pixels further down and right."""
    bits = int(mirrored) << 32
    for place, (shift, length) in enumerate(zip((down, right), side, strict=True)):
        largest = length // 8
        bits |= ((2 * (shift + largest) + 1) * 2**15 // (2 * largest + 1)) << (16 * place)
    return torch.tensor([bits])


def edge_padded(down: int, right: int) -> torch.Tensor:
    padded = np.pad(PIXELS.numpy(), ((0, 0), (0, 0), (3, 3), (3, 3)), mode="edge")
    return torch.from_numpy(padded[:, :, 3 + down : 19 + down, 3 + right : 27 + right])


@pytest.mark.parametrize("down", [-2, -1, 0, 2])
@pytest.mark.parametrize("right", [-3, 0, 1, 3])
def test_a_shift_repeats_the_edge(down: int, right: int) -> None:
    assert torch.equal(augment(PIXELS, draw(down, right), "shift_flip"), edge_padded(down, right))


def test_a_mirrored_image_is_shifted_then_mirrored() -> None:
    assert torch.equal(augment(PIXELS, draw(1, 2, mirrored=True), "shift_flip"), edge_padded(1, 2).flip(3))
    assert torch.equal(augment(PIXELS, draw(1, 2, mirrored=True), "shift"), edge_padded(1, 2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_each_image_of_a_batch_has_its_own_variation(dtype: torch.dtype) -> None:
    images = torch.arange(3 * 16 * 24).remainder(200).reshape(1, 3, 16, 24).to(dtype)
    draws = torch.cat([draw(-2, 0), draw(0, 3), draw(0, 0, mirrored=True)])
    together = augment(images.expand(3, -1, -1, -1), draws, "shift_flip")
    assert together.dtype == dtype
    assert together.shape == (3, 3, 16, 24)
    assert torch.equal(together[2], images[0].flip(2))
    for number in range(3):
        assert torch.equal(together[number], augment(images, draws[number : number + 1], "shift_flip")[0])


def test_every_shift_is_as_likely() -> None:
    """Of a picture of its own coordinates, the middle pixel tells the shift."""
    rows = torch.arange(16.0)[None, None, :, None].expand(2000, 1, 16, 16)
    draws = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, 2000))
    middle = augment(rows, draws, "shift_flip")[:, 0, 8, 8] - 8
    counts = torch.bincount((middle + 2).long(), minlength=5)
    assert len(counts) == 5
    assert counts.min() > 320
    assert counts.max() < 480


def test_a_crop_enlarges_a_part_of_the_image_and_covers_all_of_it_over_time() -> None:
    """Of a picture of its own coordinates, a crop shows a rectangle: where it begins and how large it is."""
    side, samples = 32, 4000
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    images = torch.stack([rows, columns]).float().expand(samples, -1, -1, -1)
    draws = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, samples))
    crops = augment(images, draws, "crop")
    assert crops.shape == images.shape
    # The slope over the middle, away from the repeated edge, is the share of the side.
    tall = (crops[:, 0, 24, 0] - crops[:, 0, 8, 0]) / 16
    wide = (crops[:, 1, 0, 24] - crops[:, 1, 0, 8]) / 16
    area, ratio = tall * wide, wide / tall
    assert 0.079 < area.min() < 0.09
    assert 0.97 < area.max() < 1.001
    assert abs(area.mean() - 0.54) < 0.03, "uniform, but for what does not fit"
    assert 0.74 < ratio.min() < 0.78
    assert 1.28 < ratio.max() < 1.35
    assert crops.min() == 0
    assert crops.max() == side - 1
    mirrored = augment(images, draws, "crop_flip")
    is_mirrored = mirrored[:, 1, 0, 24] < mirrored[:, 1, 0, 8]
    assert 0.45 < is_mirrored.float().mean() < 0.55
    torch.testing.assert_close(mirrored[is_mirrored], crops[is_mirrored].flip(3))
    assert torch.equal(mirrored[~is_mirrored], crops[~is_mirrored])


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_a_mixed_image_has_its_own_share(mixup: float, cutmix: float) -> None:
    """Images are alternately all ones and all zeros, so that a mean is a share."""
    samples = 2000
    images = (torch.arange(samples) % 2).to(torch.uint8)[:, None, None, None].expand(-1, 1, 16, 16)
    draws = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, samples))
    mixed, share = Mixing(mixup, cutmix).mix(images, draws)
    is_one = images[:, 0, 0, 0] == 1
    torch.testing.assert_close(mixed[is_one].mean(dim=(1, 2, 3)), share[is_one])
    torch.testing.assert_close(mixed[~is_one].mean(dim=(1, 2, 3)), 1 - share[~is_one])
    assert torch.equal(partners_of(is_one), ~is_one)
    assert 0 <= share.min() < 0.1
    assert 0.9 < share.max() <= 1
    is_blended = torch.tensor([len(image.unique()) == 1 for image in mixed]).float().mean()
    assert is_blended > 0.99 if cutmix == 0 else is_blended < (0.75 if mixup else 0.25)
    if cutmix == 0:
        assert abs(share.mean() - 0.5) < 0.03


def test_small_images_shift_by_a_pixel() -> None:
    digit = torch.eye(4)[None, None]
    seen = {
        tuple(augment(digit, torch.tensor([bits]), "shift").flatten().tolist()) for bits in range(0, 2**32, 9973**2)
    }
    assert len(seen) > 1


def batches_of_epoch(
    data: Path, world_size: int, micro: int, seed: int, steps_done: int = 0
) -> dict[int, torch.Tensor]:
    """What a training sees of each sample, augmented, at some world size."""
    split = SplitReader(data, read_manifest(data), "train")
    plan = TrainingPlan(split.samples, divide_batch(64, micro, world_size), epochs=1)
    seen = {}
    for rank in range(world_size):
        batches = TrainingBatches(split, plan, seed, rank, steps_done, torch.device("cpu"), sample_draws=True)
        for _, micro_batches in batches:
            for batch in micro_batches:
                images = augment(batch.tensors["images"], batch.tensors[SAMPLE_DRAWS], "crop_flip")
                seen.update(zip(batch.sample_ids.tolist(), images, strict=True))
        batches.close()
    return seen


def test_a_sample_is_varied_alike_at_any_world_size_and_after_a_resume(digits: Path) -> None:
    alone = batches_of_epoch(digits, world_size=1, micro=64, seed=3)
    together = batches_of_epoch(digits, world_size=2, micro=8, seed=3)
    resumed = batches_of_epoch(digits, world_size=4, micro=4, seed=3, steps_done=10)
    assert alone.keys() == together.keys() > resumed.keys()
    assert all(torch.equal(image, together[sample]) for sample, image in alone.items())
    assert all(torch.equal(image, alone[sample]) for sample, image in resumed.items())


def test_another_seed_varies_otherwise(digits: Path) -> None:
    one, other = (batches_of_epoch(digits, world_size=1, micro=64, seed=seed) for seed in (3, 4))
    assert sum(torch.equal(image, other[sample]) for sample, image in one.items()) < len(one) / 2


class Witness(torch.nn.Module):
    """A model that keeps the pixels it was given."""

    def forward(self, pixel_values: torch.Tensor) -> Witness:
        self.pixels = pixel_values
        self.logits = torch.zeros(len(pixel_values), 10)
        return self


def test_the_task_augments_what_it_learns_from_and_nothing_else(digits: Path) -> None:
    manifest = read_manifest(digits)
    batch = {
        name: torch.from_numpy(array)
        for name, array in SplitReader(digits, manifest, "test").gather(np.arange(8)).items()
    }
    batch[SAMPLE_DRAWS] = torch.arange(8) * 0x5BD1_E995_1234_567
    plain, model = (batch["images"].float() / 127.5 - 1), Witness()

    task = ImageClassification(manifest, ImageClassificationSettings(augmentation="shift_flip"))
    assert task.needs_sample_draws
    task.loss(model, batch)
    assert not torch.equal(model.pixels, plain)
    task.measure(model, batch)
    assert torch.equal(model.pixels, plain)

    mixing = ImageClassification(manifest, ImageClassificationSettings(mixup_alpha=0.5))
    assert mixing.needs_sample_draws
    loss = mixing.loss(model, batch)
    assert not torch.equal(model.pixels, plain)
    assert loss.item() == pytest.approx(8 * np.log(10)), "the logits are all zero"

    unchanged = ImageClassification(manifest, dataclasses.replace(task.settings, augmentation="none"))
    assert not unchanged.needs_sample_draws
    unchanged.loss(model, batch)
    assert torch.equal(model.pixels, plain)


def test_augmentation_is_deterministic_where_torch_must_be() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        images = torch.rand(4, 3, 16, 16)
        draws = torch.arange(4) * 0x9E37_79B9_7F4A
        assert torch.equal(augment(images, draws, "shift_flip"), augment(images, draws, "shift_flip"))
    finally:
        torch.use_deterministic_algorithms(False)
