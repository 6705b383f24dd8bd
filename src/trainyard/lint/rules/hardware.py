"""What the hardware of a machine supports: images, precisions, and variables that slow it down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.placements import Placement
from trainyard.lint.rules.vm_sizes import machine_related
from trainyard.project_files import names_in, read_text, text_or_empty
from trainyard.settings.quantities import counted
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.distributions import Mpi
from trainyard.spec.findings import FALSE_WORDS, TRUE_WORDS
from trainyard.spec.model import Environment
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import simple_commands, words_with_values
from trainyard.spec.shell_words import settings_port

if TYPE_CHECKING:
    from trainyard.catalogue.skus import Sku

_PRECISION_NAME = regex(r"(mixed_)?precision|(torch_)?dtype|amp_dtype", re.IGNORECASE)
_BF16_VALUE = regex(r"bf16(-mixed|-true)?|bfloat16", re.IGNORECASE)
_MENTIONS_BF16 = regex("bf16|bfloat16", re.IGNORECASE)
_ARG = regex(r"ARG\s+(\w+)=[\"']?([^\s\"']+)", re.IGNORECASE)
_FROM = regex(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_VARIABLE = regex(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")
_CUDA_OF_IMAGE = regex(r"(?:nvidia/cuda:|cuda-?)(\d{2})(?:\.(\d{1,2}))?(?![\d])")
# The first CUDA that supports a generation of GPUs, and the first that does not any more.
_CUDA_OF_GENERATION: dict[str, list[list[int]]] = known_words("cuda_of_generations")
_ASSIGNED_IN_COMMAND = regex(r"\b([A-Z][A-Z0-9_]+)=([^\s;&|]+)")


IMAGE_AGAINST_MACHINE = Rule("AML606", "image-against-machine", "warning").explained(
    summary="The image does not run on this machine.",
    why="CUDA images find no GPU on AMD machines, nor ROCm images on NVIDIA machines; x86 images do not start on ARM "
    "machines (GB200, GB300). Each generation of GPUs needs a CUDA that knows it: 11.8 for H100, 12.8 for B200; 13 "
    "does not know V100 and older. What a Dockerfile builds on (`FROM`) is read too.",
)


@check("placement")
def _image_against_machine(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku, environment = placement.sku, placement.component.environment
    if sku is None or not sku.gpu_count or environment is None:
        return
    written, span = _image_of(environment, context)
    text = written.lower()
    message = _against_generation(text, sku)
    if sku.gpu_vendor == "AMD" and re.search(r"cuda|\bacpt\b", text):
        message = f"a CUDA image on {sku.name}, which has AMD GPUs"
    elif sku.gpu_vendor == "NVIDIA" and "rocm" in text:
        message = f"a ROCm image on {sku.name}, which has NVIDIA GPUs"
    elif sku.cpu_architecture == "arm64" and re.search(r"registries/azureml/|mcr\.microsoft\.com/(azureml|aifx)", text):
        message = f"an x86 image on {sku.name}, which is an ARM machine"
    if message:
        hint = "Build an environment for this machine, or use another machine."
        yield IMAGE_AGAINST_MACHINE.at(span, message, hint, machine_related(placement))


def _image_of(environment: Environment, context: LintContext) -> tuple[str, Span]:
    """The image that an environment is, or that its Dockerfile builds on, and where that is written."""
    if environment.build_path is None or environment.dockerfile is None:
        return environment.reference or environment.image or "", environment.span
    dockerfile = environment.build_path / environment.dockerfile
    return context.cached(("FROM", dockerfile), lambda: _base_image(dockerfile)) or ("", environment.span)


# https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu#mpi
_HAS_NO_MPI = regex(
    r"(?:docker\.io/)?(?:library/)?(?:python|ubuntu|debian|pytorch/pytorch|nvidia/cuda|tensorflow/tensorflow|"
    r"continuumio/(?:mini|ana)conda3)(?:[:@].*)?",
    re.IGNORECASE,
)
# What may install it, though it does not say so.
_MAY_BRING_MPI = regex(r"mpi|horovod|\.sh\b|\bmake\b|curl|wget|conda|mamba", re.IGNORECASE)


IMAGE_WITHOUT_MPI = Rule("AML625", "image-without-mpi", "error", is_let_pass=True).explained(
    summary="The processes are started with MPI, and the image has none.",
    why="Azure ML starts them with the `mpirun` of the image. Its own base images have Open MPI, such as "
    "`mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04`; plain images of Python, Ubuntu, PyTorch and CUDA do not. Not "
    "reported if the Dockerfile, the conda file or a list of packages beside it may install it.",
)


@check("placement")
def _image_without_mpi(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    environment, nodes, processes = placement.component.environment, placement.nodes, placement.processes_per_node
    if environment is None or not isinstance(placement.distribution, Mpi) or (nodes or 1) * (processes or 1) < 2:
        return
    image, span = _image_of(environment, context)
    folder, name = environment.build_path, environment.dockerfile
    files = [environment.conda_file, folder / name if folder is not None and name is not None else None]
    texts = [str(environment.conda and environment.conda.data), *map(text_or_empty, filter(None, files))]
    folders = [file.parent for file in files if file is not None]
    lists = [each / listed for each in folders for listed in names_in(each) if listed.endswith(".txt")]
    texts += [text_or_empty(file) for file in lists if any(file.name in text for text in texts)]
    if _HAS_NO_MPI.fullmatch(image) and not any(map(_MAY_BRING_MPI.search, texts)):
        message = f"the image {image} has no MPI, which is to start the processes"
        hint = "Use mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04 or one like it, or `type: pytorch`."
        yield IMAGE_WITHOUT_MPI.at(span, message, hint, [Related(placement.distribution.span, "MPI is chosen here")])


def _against_generation(image: str, sku: Sku) -> str:
    """What is wrong between the CUDA of an image and a machine's GPUs, or nothing."""
    match = _CUDA_OF_IMAGE.search(image)
    bounds = _CUDA_OF_GENERATION.get(sku.gpu_architecture or "")
    if match is None or bounds is None or sku.gpu_vendor != "NVIDIA":
        return ""
    # Where an image's name has no minor version, it may be any.
    oldest = [int(match[1]), int(match[2] or 0)]
    newest = [int(match[1]), int(match[2] or 99)]
    version = f"CUDA {match[1]}" + (f".{match[2]}" if match[2] else "")
    if newest < bounds[0]:
        needed = ".".join(map(str, bounds[0]))
        return f"{version} is too old for the {sku.gpu_model} of {sku.name}, which needs {needed} or newer"
    if oldest >= bounds[1]:
        return f"{version} no longer supports the {sku.gpu_model} of {sku.name}"
    return ""


def _base_image(dockerfile: Path) -> tuple[str, Span] | None:
    """The image at the bottom of a Dockerfile's last stage, and where it is written; None if it cannot be read."""
    try:
        lines = read_text(dockerfile, errors="replace").splitlines()
    except OSError:
        return None
    arguments: dict[str, str] = {}
    stages: dict[str, tuple[str, Span]] = {}
    last: tuple[str, Span] | None = None
    for number, line in enumerate(lines, start=1):
        if (argument := _ARG.match(line.strip())) is not None and last is None:
            arguments[argument[1]] = argument[2]
        elif (match := _FROM.match(line)) is not None:
            image = _VARIABLE.sub(lambda found: arguments.get(found[1] or found[3], found[2] or found[0]), match[1])
            span = Span(dockerfile, number, match.start(1) + 1, number, match.end(1) + 1)
            last = stages.get(image.lower(), (image, span))
            if match[2]:
                stages[match[2].lower()] = last
    return last


BF16_WITHOUT_HARDWARE = Rule("AML607", "bf16-without-hardware", "warning").explained(
    summary="bf16 on GPUs that do not support it: V100, T4 and older.",
    why="Torch emulates it, which is slower than fp32, or fails. Use fp16 or fp32 there.",
)


@check("placement")
def _bf16_without_hardware(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku = placement.sku
    if sku is not None and sku.gpu_count and not sku.bf16:
        message = f"{sku.gpu_model} GPUs of {sku.name} do not support bf16"
        for span in (*_bf16_in_command(placement, context), *_bf16_inputs(placement), *_bf16_settings(placement)):
            yield BF16_WITHOUT_HARDWARE.at(span, message, "Use fp16 or fp32 here.", machine_related(placement))


def _bf16_in_command(placement: Placement, context: LintContext) -> Iterator[Span]:
    """Where the command itself requests bf16."""
    command = context.command_of(placement.component)
    requests = command is not None and _MENTIONS_BF16.search(command.text) is not None
    for words in simple_commands(command.text) if command is not None and requests else ():
        for name, word, value in words_with_values(words):
            given = value.text if value is not None else ""
            is_flag = name.lower() == "--bf16" and given.lower() not in FALSE_WORDS
            is_precision = _PRECISION_NAME.fullmatch(name.lstrip("-").replace("-", "_")) is not None
            if is_flag or (is_precision and _BF16_VALUE.fullmatch(given)):
                assert command is not None
                yield command.span(word.start, word.end)


def _bf16_inputs(placement: Placement) -> Iterator[Span]:
    for name in placement.component.inputs:
        is_precision, is_switch = _PRECISION_NAME.fullmatch(name) is not None, name.lower() == "bf16"
        value = placement.input(name) if is_precision or is_switch else None
        if value is None:
            continue
        if (is_precision and _BF16_VALUE.fullmatch(value.text)) or (is_switch and value.text.lower() in TRUE_WORDS):
            yield placement.inputs[name].span if name in placement.inputs else value.span


def _bf16_settings(placement: Placement) -> Iterator[Span]:
    """Where a settings file or overrides request bf16."""
    has_file = settings_port(placement.component) is not None
    settings = placement.use.step_settings if has_file else None
    layer = settings.layer_of("precision") if settings is not None else None
    if layer is not None and layer.entries["precision"].value.text == "bf16":
        yield layer.value("precision").span


INFINIBAND_OFF = Rule("AML614", "infiniband-off", "warning").explained(
    summary="`NCCL_IB_DISABLE=1` on machines with InfiniBand.",
    why="NCCL silently falls back to sockets, and training on several machines slows to a crawl.",
)


CUDA_LAUNCH_BLOCKING = Rule("AML615", "cuda-launch-blocking", "warning").explained(
    summary="`CUDA_LAUNCH_BLOCKING=1` makes each kernel wait for the previous one.",
    why="It is meant for debugging; training with it is many times slower.",
)


@check("placement")
def _slowed_down(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku = placement.sku
    if sku is not None and sku.rdma:
        for span in _switched_on("NCCL_IB_DISABLE", placement, context):
            message = f"this disables the InfiniBand of {sku.name}"
            yield INFINIBAND_OFF.at(span, message, "Remove it.", machine_related(placement))
    for span in _switched_on("CUDA_LAUNCH_BLOCKING", placement, context):
        message = "each kernel waits for the previous one: this is for debugging, and slows training down"
        yield CUDA_LAUNCH_BLOCKING.at(span, message, "Remove it.")


def _switched_on(variable: str, placement: Placement, context: LintContext) -> Iterator[Span]:
    """Where a variable is set to true: under `environment_variables`, or in the command itself."""
    for name, entry in placement.node.entries_of("environment_variables").items():
        if name == variable and entry.value.text.lower() in TRUE_WORDS:
            yield entry.key.span
    command = context.command_of(placement.component)
    for match in _ASSIGNED_IN_COMMAND.finditer(command.text) if command is not None else ():
        if match[1] == variable and match[2].lower() in TRUE_WORDS:
            assert command is not None
            yield command.span(*match.span())


# Environments whose packages cannot use a GPU: scikit-learn's among Azure's curated ones, and Microsoft's base images
# for CPUs (azureml-docs, concept-environments: the images for GPUs have cuda in their names).
_NO_GPU_ENVIRONMENT = regex(r"environments/sklearn-|\bazureml/openmpi[\d.]+-ubuntu[\d.]+(?![\w-]*cuda)|[-_/]cpu\b")
# Trainyard's own steps that compute on CPUs only.
_NO_GPU_MODULE = regex(r"\bpython3? -m trainyard\.steps\.(prepare_\w+|export_model)\b")


UNNEEDED_GPUS = Rule("AML620", "unneeded-gpus", "warning", suppressed_by_errors=True).explained(
    summary="A job that uses no GPU runs on machines with GPUs.",
    why="Its environment has no packages that use a GPU, or its step computes on CPUs only. An hour of "
    "eight A100s costs 70 times as much as one of eight CPUs, and no training can use them meanwhile. Give the job a "
    "`compute:` of its own; in a profile of Trainyard, set `clusters.prepare`.",
)


@check("placement")
def _unneeded_gpus(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku, distribution = placement.sku, placement.distribution
    if sku is None or not sku.gpu_count or distribution is not None:
        return
    environment = placement.component.environment
    named = (environment.reference or environment.image or "") if environment is not None else ""
    if _NO_GPU_ENVIRONMENT.search(named):
        reason = f"the environment {named.rpartition('environments/')[2].partition('/')[0]} has nothing that uses a GPU"
    elif _NO_GPU_MODULE.search(str(placement.component.command.data)):
        reason = "this step uses no GPU"
    else:
        return
    from trainyard.catalogue.prices import price_of

    found = price_of(sku, "on demand")
    price = f" at ${found.usd_per_hour:.2f} an hour" if found else ""
    message = f"{reason}, but {sku.name} has {counted(sku.gpu_count, 'GPU')}{price}"
    hint = "Run it on a cluster without GPUs; Standard_D8s_v5, for example, has 8 vCPUs."
    resources = placement.resources
    chosen = resources.instance_type if resources is not None else None
    span = chosen.span if chosen is not None else placement.head
    yield UNNEEDED_GPUS.at(span, message, hint, [] if chosen is not None else machine_related(placement))
