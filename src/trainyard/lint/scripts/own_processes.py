"""Whether a script starts processes of its own, or uses all GPUs of its machine in one process."""

from __future__ import annotations

import ast

from trainyard.lint.scripts.syntax import Syntax, constant, dotted, keyword
from trainyard.spec.shell_words import LAUNCHER_MODULES, LAUNCHERS

_STARTS = frozenset(
    {
        *("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes", "torch.multiprocessing.Process"),
        *("torch.multiprocessing.spawn.spawn", "multiprocessing.Process", "accelerate.notebook_launcher"),
        *("accelerate.launchers.notebook_launcher", "torch.distributed.launcher.api.elastic_launch"),
    }
)
_ALL_GPUS_IN_ONE_PROCESS = frozenset(
    {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel"}
    | {"tensorflow.distribute.MirroredStrategy"}
)
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
_LIGHTNING_STARTS = frozenset({"Trainer", "LightningCLI", "Fabric"})


def uses_all_gpus(syntax: Syntax) -> bool:
    """Return whether one process of a script is enough for all GPUs of its machine, whatever starts it."""
    if any(isinstance(constant(node), str) and _names_launcher(str(node.value)) for node in syntax.of(ast.Constant)):
        return True
    return any(
        dotted(call.func, syntax.imported) in _STARTS | _ALL_GPUS_IN_ONE_PROCESS
        or constant(keyword(call, "device_map")) is not None
        for call in syntax.calls
    )


def lightning_starts_processes(syntax: Syntax) -> bool:
    """Return whether a script has a Trainer of Lightning for more than one GPU.

    It starts a process for each GPU where LOCAL_RANK is not set, as under MPI; else the launcher is expected to:
    https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html
    """
    for call in syntax.calls:
        path = dotted(call.func, syntax.imported)
        if path.partition(".")[0] in _LIGHTNING and path.rpartition(".")[2] in _LIGHTNING_STARTS:
            return constant(keyword(call, "devices")) != 1
    return False


def _names_launcher(text: str) -> bool:
    """Whether a text, such as a command for `subprocess`, starts with a launcher or names a launcher's module."""
    words = text.split()
    return bool(words) and (
        words[0] in LAUNCHERS - {"accelerate", "deepspeed"} or not LAUNCHER_MODULES.isdisjoint(words)
    )
