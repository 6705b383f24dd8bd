"""Models without a closed form, and those of users' own tasks, counted on torch's meta device: without values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError
from trainyard.plan.estimate.architectures import OTHER_FAMILY, Architecture, Linear
from trainyard.plan.estimate.image_models import ImageModel, Images, ModelBlock, Product
from trainyard.settings.task_fields import TaskError, task_fields
from trainyard.settings.written_settings import value_of_yaml

_BYTES = 4
"""Models are counted in fp32."""

_OF_STEPS = ("training.tasks.chosen", "data.dataset.manifest", "runtime.settings_file")


def architecture_on_meta(model_type: str, settings: Mapping[str, Any], name: str) -> Architecture:
    """Return the shape of a causal language model of transformers, with the parameters that the real model has.

    Takes seconds, since transformers is imported. UsageError for an unknown model type, for one without a language
    model, and where transformers is not installed.
    """
    config, model = _model_on_meta("AutoModelForCausalLM", model_type, settings, name, "a language model")
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


def image_model_on_meta(model_type: str, settings: Mapping[str, Any], images: Images) -> ImageModel:
    """Return an image classifier of transformers with what a forward pass of the real model does.

    Blocks are the elements of its large ModuleLists, as in the training. Errors as in `architecture_on_meta`.
    """
    given = {"num_channels": images.channels, "image_size": images.height, **settings, "num_labels": images.classes}
    kind, what = "AutoModelForImageClassification", "an image classifier"
    config, model = _model_on_meta(kind, model_type, given, model_type, what)
    import torch

    def compute() -> None:
        model(pixel_values=torch.empty(1, images.channels, images.height, images.width))

    blocks, around = count_without_values(model, compute, f"a {config.model_type}")
    return ImageModel(model_type, tuple(blocks), around, images.assumed)


def count_without_values(model: Any, compute: Callable[[], Any], name: str) -> tuple[list[ModelBlock], ModelBlock]:
    """Return what a model from the meta device does within each block, and around them, while `compute` computes.

    UsageError, with the name, for a computation that depends on values.
    """
    import torch._subclasses

    try:
        # On the CPU without values: meta attention is not fused. Made anew: `to_empty` would convert each, and is slow.
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            return _counted(model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu")).train(), compute)
    except (RuntimeError, ValueError, TypeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{name} cannot be counted without values: {first[:160]}") from None


def is_image_type(model_type: str) -> bool:
    """Return whether transformers has an image classifier of this type. It is imported to ask, which takes seconds."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    except ImportError:
        return False
    return model_type in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES


def _model_on_meta(kind: str, model_type: str, settings: Mapping[str, Any], name: str, what: str) -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UsageError(
            f"counting the parameters of a {model_type!r} needs {error.name}: pip install 'trainyard-azureml[train]'"
        ) from None
    try:
        given = {key: value for key, value in settings.items() if key != "model_type"}
        transformers.logging.set_verbosity_error()  # it warns of encoders that are asked for the next token
        config = transformers.AutoConfig.for_model(model_type, **given)
        with torch.device("meta"):
            return config, getattr(transformers, kind).from_config(config, trust_remote_code=False)
    except Exception as error:
        # transformers refuses settings with whatever its own code raises.
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{name}: not {what} of transformers: {first[:160]}") from None


def _blocks_of(model: Any) -> list[Any]:
    """Return the elements of a model's ModuleLists that hold a tenth of its parameters, as the training finds them."""
    import torch

    def size(module: Any) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    def outermost(module: Any) -> Iterator[Any]:
        for child in module.children():
            containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
            if isinstance(child, torch.nn.ModuleList) and not any(isinstance(each, containers) for each in child):
                yield child
            else:
                yield from outermost(child)

    whole = size(model)
    return [block for blocks in outermost(model) if 10 * size(blocks) > whole for block in blocks]


def _counted(model: Any, compute: Callable[[], Any]) -> tuple[list[ModelBlock], ModelBlock]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    modules = _blocks_of(model)
    blocks, around = [ModelBlock() for _ in modules], ModelBlock()
    current = [around]
    parameters = list(model.parameters())
    # Storages are known by their address, which must not be used again while they are counted.
    seen = {parameter.untyped_storage()._cdata: parameter for parameter in parameters}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen[storage._cdata] = tensor
            current[-1].kept += storage.nbytes() // _BYTES
        return tensor

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            _count(function, args, result, current[-1])
            return result

    def entering(block: ModelBlock) -> Any:
        def enter(_module: Any, args: Any) -> None:
            block.entering = sum(each.numel() for each in args[:1] if isinstance(each, torch.Tensor))
            current.append(block)

        return enter

    def multiply(layer: Any, args: Any, _result: Any) -> None:
        rows = args[0].numel() // layer.in_features
        current[-1].linear.append(Linear(rows, layer.in_features, layer.out_features))

    def leave(_module: Any, _args: Any, _result: Any) -> None:
        current.pop()

    for module, block in zip(modules, blocks, strict=True):
        module.register_forward_pre_hook(entering(block))
        module.register_forward_hook(leave)
        block.parameters = sum(parameter.numel() for parameter in module.parameters())
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(multiply)
    counting: Any = Count
    with counting(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    around.parameters = sum(each.numel() for each in parameters) - sum(block.parameters for block in blocks)
    return blocks, around


def _count(function: Any, args: Any, result: Any, block: ModelBlock) -> None:
    name = function.overloadpacket.__name__
    outputs = [each for each in (result if isinstance(result, (tuple, list)) else [result]) if _is_values(each)]
    inputs = [each for each in args if _is_values(each)]
    if not outputs or not inputs or function.is_view or name == "_unsafe_view":
        return
    block.operations += 1
    block.work(_working(name, inputs, outputs[0]))
    if name == "convolution":
        weight = inputs[1]
        inner = weight.numel() // weight.shape[0]
        stride, _, dilation, is_transposed, _, groups = args[3:]
        flops = 2.0 * outputs[0].numel() * inner
        is_3_by_3 = weight.shape[2:] == (3, 3) and {*stride, *dilation} == {1} and not is_transposed and groups == 1
        is_depthwise = groups > 1 and weight.shape[1] == 1
        block.products.append(Product(flops, inner, is_depthwise=is_depthwise, is_3_by_3=is_3_by_3))
    elif name in ("mm", "addmm", "bmm", "baddbmm"):
        inner = inputs[-1].shape[-2]
        block.products.append(Product(2.0 * outputs[0].numel() * inner, inner))
    elif name.startswith("_scaled_dot_product"):
        query, key = inputs[:2]
        tokens, size = key.shape[-2:]
        block.products += [Product(2.0 * query.numel() * tokens, inner, attends=True) for inner in (size, tokens)]
        block.moved += sum(each.numel() for each in (*inputs[:3], outputs[0]))
    else:
        block.moved += sum(each.numel() for each in (*inputs, outputs[0]))


def _working(name: str, inputs: Any, output: Any) -> int:
    """Return what an operation's backward pass has for itself; weights are not counted, as they are of no image."""
    if name == "convolution":
        return int(2 * (inputs[0].numel() + output.numel()))
    if name in ("bmm", "baddbmm"):
        return int(sum(each.numel() for each in inputs) + output.numel())
    values = inputs[1] if name == "addmm" else inputs[0]
    return int(values.numel() + output.numel())


def _is_values(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def model_of_task(task: str, dataset: Path, folder: Path) -> ImageModel:
    """Return the model of a task as its loss computes it for one sample of a dataset.

    `task` is `package.module:Class`, or a settings file with a key `task`, whose settings the task then has. The task's
    code is imported and runs; its modules are looked for in `folder` first. UsageError for what is missing or wrong.
    """
    sys.path.insert(0, str(folder))
    try:
        # A task's own code needs the steps, so here they are imported: nothing else outside of a job does that.
        tasks, datasets, files = (import_module(f"trainyard.steps.{module}") for module in _OF_STEPS)
        name, settings = (task, {}) if ":" in task else _from_settings_file(files, Path(task))
        chosen = tasks.choose_task(name, settings).on(datasets.read_manifest(dataset))
        return _of_one_sample(chosen, name)
    except ImportError as error:
        extra = "those of the steps: pip install 'trainyard-azureml[train]'"
        raise UsageError(f"--task {task}: the package {error.name} is missing; {extra}") from None
    except (TaskError, ValueError) as error:
        raise UsageError(f"--task {task}: {error}") from None


def _from_settings_file(files: Any, file: Path) -> tuple[str, dict[str, Any]]:
    written: Mapping[str, Any] = files.read_settings_file(file)
    if "task" not in written:
        raise UsageError(f"{file} names no task; expected the key `task`, or --task package.module:Class")
    name = str(written["task"].text)
    keys = {field.name: field for field in task_fields(name)}
    given = {key: value_of_yaml(keys[key], each.data, each.text) for key, each in written.items() if key in keys}
    return name, {key: value for key, value in given.items() if value is not None}


def _of_one_sample(task: Any, name: str) -> ImageModel:
    import torch

    def sample() -> dict[str, Any]:
        batch: dict[str, Any] = {
            name: torch.zeros((1, *array.shape), dtype=getattr(torch, array.dtype))
            for name, array in task.manifest.arrays.items()
        }
        if task.needs_sample_draws:
            batch["sample_draws"] = torch.zeros(1, dtype=torch.int64)
        batch |= task.prepare(batch)
        return batch

    with torch.device("meta"):
        model = task.new_model()
    blocks, around = count_without_values(model, lambda: task.loss(model, sample()), name)
    return ImageModel(name, tuple(blocks), around, samples="samples")
