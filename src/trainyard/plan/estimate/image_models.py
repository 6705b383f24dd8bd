"""Image classifiers of transformers in closed form: what each block multiplies, keeps and moves for one image."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import UsageError
from trainyard.plan.estimate.architectures import Linear, generated_families

IMAGE_SIZE, CLASSES = 224, 1000
"""Of ImageNet, where the data does not say."""


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution: the FLOPs of one image's forward pass, and the length of its inner dimension.

    Depthwise convolutions, with one channel for each output, run on a GPU's ordinary units, not on its tensor cores.
    `attends` marks products without weights; `computed` is the share of the FLOPs that is not left out as masked;
    `is_3_by_3` marks convolutions of 3 x 3 over all channels, without stride or dilation.
    """

    flops: float
    inner: int
    is_depthwise: bool = False
    attends: bool = False
    computed: float = 1.0
    moved: float = 0.0
    is_3_by_3: bool = False


@dataclass
class ModelBlock:
    """A part of a model that is recomputed as a whole. All but `parameters` is of one image, in values, forward.

    `kept` is what the backward pass needs, `moved` what is read and written outside products, `entering` the input.
    Of what is kept, `kept_for_weights` is for the gradients of convolutions' weights only: not where these are frozen.
    `shared` are inputs of further matrices, which are counted once.
    `working` is what the backward pass of one operation has for itself, of the one that has most: the gradients of its
    result and its input; of a convolution also both in the layout that oneDNN and cuDNN compute in, and the input.
    The methods add one operation each; a tensor that two operations keep is counted by the first. `times` is how many
    such blocks follow each other.
    """

    entering: int = 0
    parameters: int = 0
    products: list[Product] = field(default_factory=list)
    kept: float = 0
    moved: float = 0
    operations: float = 0
    linear: list[Linear] = field(default_factory=list)
    kept_for_weights: int = 0
    convolved: float = 0
    normalized: float = 0
    scores: float = 0
    shared: float = 0
    working: int = 0
    times: int = 1

    def convolve(
        self, pixels: int, channels: int, out: int, kernel: int, *, groups: int = 1, bias: bool = True, keeps: int = 0
    ) -> None:
        """Add a convolution with so many pixels of output, which keeps so many values of its input."""
        inner = channels // groups * kernel**2
        is_depthwise = groups == channels > 1
        values = pixels * out + max(keeps, pixels * channels)
        # With a stride there are fewer pixels of output than of the input that is kept.
        is_3_by_3 = kernel == 3 and groups == 1 and pixels * channels >= keeps
        flops = 2.0 * pixels * out * inner
        self.products.append(Product(flops, inner, is_depthwise=is_depthwise, moved=values, is_3_by_3=is_3_by_3))
        self.kept_for_weights += keeps
        self.convolved += 0 if is_depthwise else 2 * values
        self._operate(2 * values, keeps=keeps, parameters=inner * out + (out if bias else 0))

    def multiply(self, rows: int, inner: int, out: int, *, bias: bool = True, keeps: int = 0) -> None:
        """Add a linear layer."""
        self.linear.append(Linear(rows, inner, out))
        self.products.append(Product(2.0 * rows * out * inner, inner))
        self._operate(rows * (inner + out), keeps=keeps, parameters=inner * out + (out if bias else 0))

    def attend(self, tokens: int, width: int, heads: int) -> None:
        """Add fused attention: queries, keys, values and its output are kept, and a number for each token and head."""
        flops, values = 2.0 * tokens * tokens * width, 4 * tokens * width
        self.products += [Product(flops, inner, attends=True) for inner in (width // heads, tokens)]
        self._operate(values, keeps=values + tokens * heads, moves=values)
        self.scores += tokens * tokens * heads

    def attend_in_windows(self, tokens: int, window: int, width: int, heads: int) -> None:
        """Add attention within windows of so many tokens, with a learned bias, whose scores are kept: not fused."""
        values, scores, flops = tokens * width, tokens * window * heads, 2.0 * tokens * window * width
        self.products += [Product(flops, width // heads), Product(flops, window)]
        bias = (2 * math.isqrt(window) - 1) ** 2 * heads
        # Queries, keys, values and the result are scaled and copied; the bias is added to the scores, then a softmax.
        self._operate(
            2 * scores, keeps=4 * values + scores, moves=14 * values + 4 * scores, parameters=bias, operations=9
        )

    def pass_over(self, values: int, *, times: int = 2, keeps: int = 0, parameters: int = 0) -> None:
        """Add an operation that reads or writes so many values so many times, such as a norm or a nonlinearity."""
        self._operate(2 * values, keeps=keeps, moves=times * values, parameters=parameters)

    def normalize(self, values: int, width: int) -> None:
        """Add a layer norm, which keeps its input."""
        self.normalized += values
        self.pass_over(values, keeps=values, parameters=2 * width)

    def _operate(self, working: int, *, keeps: int, moves: int = 0, parameters: int = 0, operations: int = 1) -> None:
        self.work(working)
        self.kept += keeps
        self.moved += moves
        self.parameters += parameters
        self.operations += operations

    def work(self, values: int) -> None:
        """Note that the backward pass of an operation has so many values for itself."""
        self.working = max(self.working, values)


@dataclass(frozen=True)
class ImageModel:
    """An image classifier. `around` is everything outside the blocks: stem, stages' transitions, head.

    The model of a task of a user's own is one too: its `samples` are not called images.
    """

    name: str
    blocks: tuple[ModelBlock, ...]
    around: ModelBlock
    assumed: str = ""
    samples: str = "images"

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.around.parameters + sum(block.parameters for block in self.blocks)

    @property
    def block_parameters(self) -> int:
        """The parameters of all blocks."""
        return self.parameters - self.around.parameters

    @property
    def largest_block(self) -> int:
        """The parameters of the largest block."""
        return max((block.parameters for block in self.blocks), default=0)

    @property
    def linear_layers(self) -> list[Linear]:
        """The linear layers of all blocks: those beside which there can be adapters."""
        return [layer for block in self.blocks for layer in block.linear]


@dataclass(frozen=True)
class Images:
    """What the dataset decides about a model. `assumed` says what of it is not known."""

    height: int = IMAGE_SIZE
    width: int = IMAGE_SIZE
    channels: int = 3
    classes: int = CLASSES
    assumed: str = ""

    @property
    def values(self) -> int:
        """The values of one image."""
        return self.channels * self.height * self.width


def image_model(model_type: str, settings: Mapping[str, Any], images: Images) -> ImageModel:
    """Return a model of a known family; settings are named as in its config.json, others have transformers' defaults.

    UsageError for settings that no model can have.
    """
    defaults = generated_families()["images"][model_type]
    try:
        blocks, around = _BUILDERS[model_type]({**defaults, **settings}, images)
    except (TypeError, ValueError, IndexError, ZeroDivisionError, KeyError) as error:
        raise UsageError(f"a {model_type} cannot have these settings: {error}") from None
    return ImageModel(model_type, tuple(blocks), around, images.assumed)


_Parts = tuple[list[ModelBlock], ModelBlock]


def _convnext(settings: Mapping[str, Any], images: Images) -> _Parts:
    """ConvNeXt (Liu et al. 2022, arXiv:2201.03545): 7 x 7 depthwise, norm, 1 x 1 up, GELU, 1 x 1 down, scale, sum.

    In transformers its blocks are the stages.
    """
    widths, patch = settings["hidden_sizes"], int(settings["patch_size"])
    height, width = images.height // patch, images.width // patch
    around, blocks = ModelBlock(), list[ModelBlock]()
    pixels = height * width
    around.convolve(pixels, images.channels, widths[0], patch, keeps=images.values)
    around.normalize(pixels * widths[0], widths[0])
    for stage in range(settings["num_stages"]):
        wide = widths[stage]
        block = ModelBlock(entering=pixels * widths[max(0, stage - 1)])
        if stage:
            before = pixels * widths[stage - 1]
            height, width = height // 2, width // 2
            pixels = height * width
            block.normalize(before, widths[stage - 1])
            block.convolve(pixels, widths[stage - 1], wide, 2, keeps=before)
        values = pixels * wide
        for _ in range(settings["depths"][stage]):
            block.convolve(pixels, wide, wide, 7, groups=wide, keeps=values)
            block.normalize(values, wide)
            block.multiply(pixels, wide, 4 * wide, keeps=values)
            block.pass_over(4 * values, keeps=4 * values)
            block.multiply(pixels, 4 * wide, wide, keeps=4 * values)
            if settings["layer_scale_init_value"] > 0:
                block.pass_over(values, keeps=values, parameters=wide)
            block.pass_over(values, times=3)
        blocks.append(block)
    around.pass_over(pixels * widths[-1], times=1, keeps=widths[-1], parameters=2 * widths[-1])
    around.multiply(1, widths[-1], images.classes, keeps=widths[-1])
    return blocks, around


def _vit(settings: Mapping[str, Any], images: Images) -> _Parts:
    """Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929): pre-norm attention and MLP over patches."""
    wide, inner, heads = (settings[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads"))
    patch = int(settings["patch_size"])
    patches = images.height // patch * (images.width // patch)
    tokens = patches + 1
    values = tokens * wide
    around = ModelBlock()
    around.convolve(patches, images.channels, wide, patch, keeps=images.values)
    around.pass_over(values, times=5, parameters=wide + values)
    blocks = []
    for _ in range(settings["num_hidden_layers"]):
        block = ModelBlock(entering=values)
        block.normalize(values, wide)
        for projection in range(3):
            block.multiply(tokens, wide, wide, bias=settings["qkv_bias"], keeps=0 if projection else values)
        block.shared += 2 * values
        block.attend(tokens, wide, heads)
        block.multiply(tokens, wide, wide)
        block.pass_over(values, times=3)
        _add_mlp(block, tokens, wide, inner)
        blocks.append(block)
    around.normalize(values, wide)
    around.multiply(1, wide, images.classes, keeps=values)
    return blocks, around


def _resnet(settings: Mapping[str, Any], images: Images) -> _Parts:
    """ResNet (He et al. 2016, arXiv:1512.03385) with batch norm, of bottlenecks (1 x 1, 3 x 3, 1 x 1) or basic layers.

    In transformers its blocks are the stages.
    """
    stem = settings["embedding_size"]
    height, width = _half(images.height), _half(images.width)
    around = ModelBlock()
    _convolve_and_norm(around, height * width, images.channels, stem, 7, keeps=images.values)
    around.pass_over(height * width * stem, keeps=height * width * stem)
    before = height * width * stem
    height, width = _half(height), _half(width)
    # The indices of the largest values are of 64 bits.
    around.pass_over(before, times=1, keeps=2 * height * width * stem)
    channels, stages = stem, []
    is_bottleneck = settings["layer_type"] == "bottleneck"
    for number, (out, depth) in enumerate(zip(settings["hidden_sizes"], settings["depths"], strict=True)):
        stage = ModelBlock(entering=height * width * channels)
        for layer in range(depth):
            strides = layer == 0 and (number > 0 or settings["downsample_in_first_stage"])
            entering, large = height * width * channels, height * width
            if strides:
                height, width = _half(height), _half(width)
            pixels = height * width
            reduced = out // 4 if is_bottleneck else out
            convolutions = [(pixels, channels, out, 3), (pixels, out, out, 3)]
            if is_bottleneck:
                first = pixels if strides and settings["downsample_in_bottleneck"] else large
                convolutions = [(first, channels, reduced, 1), (pixels, reduced, reduced, 3), (pixels, reduced, out, 1)]
            keeps = entering
            for size, into, outward, kernel in convolutions:
                _convolve_and_norm(stage, size, into, outward, kernel, keeps=keeps)
                keeps = size * outward
                stage.pass_over(keeps)
            if channels != out or strides:
                _convolve_and_norm(stage, pixels, channels, out, 1)
            stage.pass_over(pixels * out, times=3)
            channels = out
        stages.append(stage)
    around.pass_over(height * width * channels, times=1, keeps=height * width * channels)
    around.multiply(1, channels, images.classes, keeps=channels)
    return stages, around


def _swin(settings: Mapping[str, Any], images: Images) -> _Parts:
    """Swin Transformer (Liu et al. 2021, arXiv:2103.14030): attention in windows, every other time shifted by a half.

    In transformers its blocks are the stages, each with the merging of patches that ends it. Images whose patches are
    fewer than a window's are refused there.
    """
    patch, side, wide = int(settings["patch_size"]), int(settings["window_size"]), int(settings["embed_dim"])
    height, width = -(-images.height // patch), -(-images.width // patch)
    around, blocks = ModelBlock(), list[ModelBlock]()
    values = height * width * wide
    around.convolve(height * width, images.channels, wide, patch, keeps=images.values)
    around.normalize(values, wide)
    stages = list(zip(settings["depths"], settings["num_heads"], strict=True))
    for stage, (depth, heads) in enumerate(stages):
        if min(height, width) < side:
            raise ValueError(f"a window of {side} x {side} patches on {height} x {width}")
        tokens, values = height * width, height * width * wide
        padded = -(-height // side) * -(-width // side) * side**2
        inner = int(settings["mlp_ratio"] * wide)
        block = ModelBlock(entering=values)
        for layer in range(depth):
            is_shifted = layer % 2 == 1 and min(height, width) > side
            block.normalize(values, wide)
            block.pass_over(padded * wide, times=12 if is_shifted else 8)
            for projection in range(3):
                keeps = 0 if projection else padded * wide
                block.multiply(padded, wide, wide, bias=settings["qkv_bias"], keeps=keeps)
            block.shared += 2 * padded * wide
            block.attend_in_windows(padded, side**2, wide, heads)
            block.multiply(padded, wide, wide)
            block.pass_over(values, times=3)
            _add_mlp(block, tokens, wide, inner)
        if stage < len(stages) - 1:
            height, width = _half(height), _half(width)
            merged = height * width * 4 * wide
            block.pass_over(merged, keeps=merged, parameters=8 * wide)
            block.multiply(height * width, 4 * wide, 2 * wide, bias=False, keeps=merged)
            wide *= 2
        blocks.append(block)
    values = height * width * wide
    around.normalize(values, wide)
    around.pass_over(values, times=1)
    around.multiply(1, wide, images.classes, keeps=wide)
    return blocks, around


def _convolve_and_norm(block: ModelBlock, pixels: int, channels: int, out: int, kernel: int, *, keeps: int = 0) -> None:
    """Add a convolution without bias, and batch norm, which reads its input twice and keeps it."""
    block.convolve(pixels, channels, out, kernel, bias=False, keeps=keeps)
    block.pass_over(pixels * out, times=3, keeps=pixels * out, parameters=2 * out)


def _add_mlp(block: ModelBlock, tokens: int, wide: int, inner: int) -> None:
    """Add the second half of a transformer's layer: norm, up, GELU, down, sum."""
    values = tokens * wide
    block.normalize(values, wide)
    block.multiply(tokens, wide, inner, keeps=values)
    block.pass_over(tokens * inner, keeps=tokens * inner)
    block.multiply(tokens, inner, wide, keeps=tokens * inner)
    block.pass_over(values, times=3)


def _half(side: int) -> int:
    return (side + 1) // 2


_BUILDERS: dict[str, Callable[[Mapping[str, Any], Images], _Parts]] = {
    "convnext": _convnext,
    "vit": _vit,
    "resnet": _resnet,
    "swin": _swin,
}
IMAGE_FAMILIES = frozenset(_BUILDERS)
"""The model types in closed form; tests hold them to the real models."""
