"""Environment variables of NCCL, CUDA and the like: misspelt names and unknown levels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.settings.suggestions import one_slip_from, only_close
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Entry, Node, shorten
from trainyard.spec.rule import Rule

# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html,
# https://docs.pytorch.org/docs/stable/torch_environment_variables.html
_NAMES = frozenset(
    (
        *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
        *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_TOPO_FILE", "NCCL_ASYNC_ERROR_HANDLING"),
        *("NCCL_BLOCKING_WAIT", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_TIMEOUT", "NCCL_NET_GDR_LEVEL", "NCCL_ALGO"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG"),
        *("PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"),
        *("TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "PYTHONUNBUFFERED", "PYTHONHASHSEED"),
        *("AZUREML_COMPUTE_USE_COMMON_RUNTIME", "MLFLOW_TRACKING_URI", "CUBLAS_WORKSPACE_CONFIG"),
    )
)
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS")
_COUNT = re.compile(r"\s*[0-9]+(?:\s*,\s*[0-9]+)*\s*")
# https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
_ALLOCATOR = (
    *("backend", "max_split_size_mb", "roundup_power2_divisions", "max_non_split_rounding_mb", "expandable_segments"),
    *("garbage_collection_threshold", "pinned_use_cuda_host_register", "pinned_num_register_threads"),
    *("pinned_use_background_threads", "release_lock_on_cudamalloc", "roundup_bypass_threshold_mb"),
)
_LONG_NAME = 9
_LEVELS = {
    "NCCL_DEBUG": ("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO", "DETAIL"),
}


MISSPELT_VARIABLE = Rule("AML560", "misspelt-variable", "warning").explained(
    summary="A variable differs by a typo from one of NCCL's, CUDA's or Python's, or has an unknown level.",
    why="Nothing reads a variable of that name, and nothing says so.",
    example="""\
type: command
command: python train.py
environment: azureml:torch:3
compute: azureml:gpus
environment_variables:
  ‹NCCL_DEUBG⇒NCCL_DEBUG›: INFO
""",
)


@check("file")
def _misspelt_variable(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    root = file.document.root
    for holder in (root, *(entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)):
        for name, entry in holder.entries_of("environment_variables").items():
            yield from _variable(name, entry)


def _allocator(value: Node) -> Iterator[Diagnostic]:
    """`expandable_segment:True`, at which PyTorch stops."""
    for part in value.text.split(","):
        name = part.partition(":")[0].strip()
        meant = only_close(name, _ALLOCATOR) if name not in _ALLOCATOR else None
        if meant is not None:
            message = f"PyTorch's allocator has no setting '{shorten(name)}'"
            yield MISSPELT_VARIABLE.at(value.span, message, f"Did you mean '{meant}'?")


def _variable(name: str, entry: Entry) -> Iterator[Diagnostic]:
    levels, value = _LEVELS.get(name, ()), entry.value
    if name in _COUNTS and value.is_text and "$" not in value.text and not _COUNT.fullmatch(value.text):
        yield MISSPELT_VARIABLE.at(value.span, f"{name} is a whole number, not '{shorten(value.text)}', and is ignored")
    if name == "PYTORCH_CUDA_ALLOC_CONF" and value.is_text:
        yield from _allocator(value)
    if levels and value.is_text and "$" not in value.text and value.text.upper() not in levels:
        message = f"{name} is {', '.join(levels[:-1])} or {levels[-1]}, not '{value.text}'"
        yield MISSPELT_VARIABLE.at(value.span, message)
    elif len(name) >= _LONG_NAME and name not in _NAMES:
        meant = one_slip_from(name, _NAMES)
        if meant is not None:
            message = f"nothing reads a variable '{name}'"
            yield MISSPELT_VARIABLE.at(entry.key.span, message, f"Did you mean '{meant}'?", replacement=meant)
