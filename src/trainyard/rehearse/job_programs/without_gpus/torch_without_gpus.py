"""PyTorch as a script for GPUs needs it on a machine without: CUDA devices are the CPU, NCCL is gloo.

`torch.device("cuda")` stays what it is, so that scripts and libraries that ask for it go their way on GPUs; what would
put a tensor there leaves it on the CPU. PyTorch 2.4 or later is needed, whose CPU has autocast and GradScaler.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import linecache
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import torch
import torch.distributed as dist

_CPU = torch.device("cpu")
_SAID = "TRAINYARD_WITHOUT_GPUS_SAID"
_OF_GPUS = re.compile(r"cuda|nccl|nvidia|nvml|gpu|accelerator device", re.IGNORECASE)
# An A100, so that scripts that look for bfloat16 and TF32 find them.
_CAPABILITY = (8, 0)
_CUDA_VERSION = "12.6"

_FACTORIES = (
    *("arange", "as_tensor", "asarray", "empty", "empty_like", "empty_strided", "eye", "frombuffer", "full"),
    *("full_like", "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint"),
    *("randint_like", "randn", "randn_like", "randperm", "scalar_tensor", "sparse_coo_tensor", "tensor"),
    *("tril_indices", "triu_indices", "zeros", "zeros_like"),
)
_METHODS = ("new_tensor", "new_empty", "new_full", "new_ones", "new_zeros")
_NOTHING_TO_DO = (
    *("synchronize", "empty_cache", "ipc_collect", "init", "_lazy_init", "set_stream", "set_sync_debug_mode"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
    *("reset_accumulated_memory_stats", "set_per_process_memory_fraction", "manual_seed", "manual_seed_all"),
)
_ZEROS = (
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached"),
    *("max_memory_cached", "utilization", "temperature", "power_draw", "clock_rate"),
)
_TENSOR_TYPES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


_visible = [1]
"""How many devices the CPU stands in for."""


class InvalidDevice(RuntimeError):
    """A device of a number that its machine would not have: an error with GPUs as well."""


def stand_in_for_cuda(devices: int) -> None:
    """Change PyTorch in this process: `devices` CUDA devices, all of which are the CPU."""
    _visible[0] = devices
    _put_tensors_on_the_cpu()
    _stand_in_for_functions(devices)
    _stand_in_for_streams()
    _stand_in_for_mixed_precision()
    _stand_in_for_nccl()
    sys.excepthook = functools.partial(_name_the_call, sys.excepthook)
    atexit.register(_release_process_groups)
    if _SAID not in os.environ:
        os.environ[_SAID] = "1"  # processes that this one starts need not say it again
        line = f"without GPUs: the CPU stands in for {devices} CUDA devices, gloo for NCCL, and torch.compile is off"
        print(f"trainyard: {line}", flush=True)


def _release_process_groups() -> None:
    """End gloo's threads before Python ends: unlike NCCL's, they abort it while a script's objects hold them."""
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def stand_in_for_fsdp(module: ModuleType) -> None:
    """Have FullyShardedDataParallel take the CPU for its device, and broadcast states there."""

    @_in_place
    def on_the_cpu(begin: Any, /, *arguments: Any, **named: Any) -> None:
        begin(*arguments, **{**named, "device_id": _CPU})

    _replace(module.FullyShardedDataParallel, "__init__", on_the_cpu)
    states = sys.modules["torch.distributed.fsdp._init_utils"]
    _replace(states, "_check_module_states_for_sync_module_states", lambda _: lambda module: None)


def _replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Put in place of what `owner` has under a name what `change` makes of it; nothing where it has none."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, change(original))


def _in_place(call: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return what makes of a function one that is called in its place: `call` gets the function, and its arguments."""

    def change(function: Any) -> Any:
        @functools.wraps(function)
        def changed(*arguments: Any, **named: Any) -> Any:
            return call(function, *arguments, **named)

        return changed

    return change


def _visible_index(device: Any) -> int | None:
    """Return a device's number, None for no or an unknown one; raise InvalidDevice if its machine would not have it."""
    index = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
    if not isinstance(index, int) or index < 0:
        return None
    if index >= _visible[0]:
        raise InvalidDevice(
            f"CUDA error: invalid device ordinal: {index} of {_visible[0]} (as many as processes per machine)"
        )
    return index


def _on_the_cpu(value: object) -> Any:
    """Return the CPU for a CUDA device or the name of one; anything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        _visible_index(value)
        return _CPU
    if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value):
        _visible_index(value)
        return "cpu"
    return value


def _changing(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what wraps a function so that these keyword arguments are changed when they are given."""

    @_in_place
    def changed(function: Any, /, *arguments: Any, **named: Any) -> Any:
        for name, change in changes.items():
            if named.get(name) is not None:
                named[name] = change(named[name])
        return function(*arguments, **named)

    return changed


def _call_on_the_cpu(function: Any, /, *arguments: Any, **named: Any) -> Any:
    if isinstance(named.get("device"), int):
        named["device"] = torch.device("cuda", named["device"])
    given = {name: _on_the_cpu(value) for name, value in named.items()}
    return function(*map(_on_the_cpu, arguments), **given)


_with_devices_as_cpu = _in_place(_call_on_the_cpu)


def _put_tensors_on_the_cpu() -> None:
    for name in _FACTORIES:
        _replace(torch, name, _with_devices_as_cpu)
    for name in _METHODS:
        _replace(torch.Tensor, name, _with_devices_as_cpu)
    torch.Tensor.cuda = _stay  # type: ignore[assignment]
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    for owner in (torch.Tensor, torch.nn.Module):
        _replace(owner, "to", _moving)
    _replace(torch, "load", _loading)
    _replace(torch.utils.data.DataLoader, "__init__", _changing(pin_memory=lambda _: False))
    from torch.utils import _device  # of `torch.set_default_device` and `with torch.device(...)`

    _replace(_device.DeviceContext, "__init__", _with_devices_as_cpu)
    for kind in _TENSOR_TYPES:
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def _stay(tensor: torch.Tensor, device: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    _visible_index(device)
    return tensor


@_in_place
def _moving(to: Any, /, self: Any, *arguments: Any, **named: Any) -> Any:
    # A number alone is that of a GPU.
    if arguments and isinstance(arguments[0], int):
        arguments = (torch.device("cuda", arguments[0]), *arguments[1:])
    return _call_on_the_cpu(to, self, *arguments, **named)


@_in_place
def _loading(load: Any, /, file: Any, map_location: Any = None, *arguments: Any, **named: Any) -> Any:
    # A table of devices, a function or None may lead to a GPU: all tensors are the CPU's.
    keeps = isinstance(map_location, (str, torch.device))
    return load(file, _on_the_cpu(map_location) if keeps else _CPU, *arguments, **named)


def _stand_in_for_functions(devices: int) -> None:
    current = [0]

    def set_device(device: Any = None) -> None:
        index = _visible_index(device)
        current[0] = current[0] if index is None else index

    @contextlib.contextmanager
    def device(index: Any) -> Iterator[None]:
        before = current[0]
        set_device(index)
        yield
        current[0] = before

    def memory() -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def properties(device: Any = None) -> SimpleNamespace:
        major, minor = _CAPABILITY
        name = torch.cuda.get_device_name()
        return SimpleNamespace(
            name=name, major=major, minor=minor, total_memory=memory(), multi_processor_count=1, warp_size=32
        )

    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "is_initialized": lambda: True,
        "device_count": lambda: devices,
        "current_device": lambda: current[0],
        "set_device": set_device,
        "device": device,
        "get_device_name": lambda device=None: "the CPU, in place of a GPU",
        "get_device_capability": lambda device=None: _CAPABILITY,
        "get_device_properties": properties,
        "get_arch_list": lambda: ["sm_80"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "mem_get_info": lambda device=None: (memory(), memory()),
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda device=None, abbreviated=False: "no GPU memory is used",
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "get_rng_state_all": lambda: [torch.get_rng_state()] * devices,
        "set_rng_state_all": lambda states: None,
        "seed": lambda: None,
        "initial_seed": torch.initial_seed,
        **{name: lambda *_, **__: None for name in _NOTHING_TO_DO},
        **{name: lambda *_, **__: 0 for name in _ZEROS},
    }
    of_accelerators = {
        "is_available": lambda: True,
        "device_count": lambda: devices,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: current[0],
        "set_device_index": set_device,
        "set_device_idx": set_device,
        "current_device_idx": lambda: current[0],
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
    }
    no_ranges = dict.fromkeys(("range_push", "range_pop", "mark"), lambda *_: 0)
    versions = {"version": lambda: (2, 21, 5), "is_available": lambda tensors=(): True}
    tables = [(torch.cuda, functions), (getattr(torch, "accelerator", None), of_accelerators)]
    tables += [(torch.cuda.nvtx, no_ranges), (torch.cuda.nccl, versions), (torch.version, {"cuda": _CUDA_VERSION})]
    tables += [(torch.nn.parallel.data_parallel, {"_get_available_device_type": lambda: None})]
    for owner, table in tables:
        for name, value in table.items():
            if owner is not None:
                setattr(owner, name, value)


class Stream:
    """A stream, in which everything is done at once, or an event of one: a moment of the CPU's clock."""

    cuda_stream = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._moment = time.perf_counter()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Take the moment."""
        self._moment = time.perf_counter()

    def elapsed_time(self, end: Stream) -> float:
        """Return the milliseconds until another event."""
        return (end._moment - self._moment) * 1000

    def query(self) -> bool:
        """Return True: all has been done."""
        return True

    def record_event(self, event: Stream | None = None) -> Stream:
        """Return an event of now."""
        return event or Stream()

    def wait(self, *others: Any) -> None:
        """Wait for nothing."""

    def is_capturing(self) -> bool:
        """Return False: there are no graphs."""
        return False

    synchronize = wait_stream = wait_event = wait


def _stand_in_for_streams() -> None:
    one = Stream()
    streams: dict[str, Any] = {
        "Event": Stream,
        "Stream": Stream,
        "stream": contextlib.nullcontext,
        "current_stream": lambda device=None: one,
        "default_stream": lambda device=None: one,
    }
    for name, value in streams.items():
        setattr(torch.cuda, name, value)
    _replace(getattr(torch, "accelerator", None), "current_stream", lambda _: lambda device=None: one)
    _replace(torch.Tensor, "record_stream", lambda _: lambda tensor, stream: None)


def _stand_in_for_mixed_precision() -> None:
    @_in_place
    def autocast(
        begin: Any,
        /,
        self: Any,
        device_type: Any,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: Any = None,
    ) -> None:
        if _on_the_cpu(device_type) != device_type:
            # The CPU has few operations in float16.
            device_type, dtype = "cpu", torch.bfloat16 if dtype == torch.float16 else dtype
        begin(self, device_type, dtype, enabled, cache_enabled)

    _replace(torch.amp.autocast_mode.autocast, "__init__", autocast)
    _replace(torch.amp.grad_scaler.GradScaler, "__init__", _with_devices_as_cpu)


def _stand_in_for_nccl() -> None:
    no_gpu = _changing(device_ids=lambda _: None)

    @_in_place
    def group(function: Any, /, *arguments: Any, **named: Any) -> Any:
        given = ["gloo" if isinstance(each, str) and "nccl" in each else each for each in arguments]
        if "nccl" in str(named.get("backend", "")):
            named["backend"] = "gloo"
        return function(*given, **{name: named[name] for name in named if name not in ("device_id", "pg_options")})

    @_in_place
    def reduction(function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Average by the sum, since gloo has no average."""
        given = [_sum_for_average(each) for each in arguments]
        by_name = {name: _sum_for_average(value) for name, value in named.items()}
        waiting = function(*given, **by_name)
        if any(map(_is_average, (*arguments, *named.values()))):
            if waiting is not None:
                waiting.wait()
            result: Any = given[0] if given else by_name.get("tensor", by_name.get("output"))
            result.div_(dist.get_world_size(named.get("group")))
        return waiting

    @_in_place
    @torch.no_grad()
    def gathering(function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Gather flat and without gradients: gloo copies into views of the result, and compares shapes."""
        return function(*map(_flat, arguments), **{name: _flat(value) for name, value in named.items()})

    changes: dict[str, Callable[[Any], Any]] = {
        "init_process_group": group,
        "new_group": group,
        "barrier": no_gpu,
        "is_nccl_available": lambda _: lambda: True,
        **dict.fromkeys(("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"), reduction),
        "all_gather": torch.no_grad(),
        **dict.fromkeys(("all_gather_single", "all_gather_into_tensor"), gathering),
        **dict.fromkeys(("broadcast_object_list", "scatter_object_list"), _with_devices_as_cpu),
    }
    for name, change in changes.items():
        _replace(dist.distributed_c10d, name, change)
        setattr(dist, name, getattr(dist.distributed_c10d, name))
    _replace(torch.nn.parallel.DistributedDataParallel, "__init__", _without_devices)
    # Only GPUs have synchronized batch normalization: each process normalizes by its own samples.
    _replace(torch.nn.SyncBatchNorm, "forward", lambda _: torch.nn.modules.batchnorm._BatchNorm.forward)
    _replace(
        torch.nn.parallel.DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda _: lambda self, module: None
    )
    _replace(dist.device_mesh.DeviceMesh, "__init__", _with_devices_as_cpu)


@_in_place
def _without_devices(
    begin: Any,
    /,
    self: Any,
    module: Any,
    device_ids: Any = None,
    output_device: Any = None,
    *arguments: Any,
    **named: Any,
) -> None:
    begin(self, module, None, None, *arguments, **named)


def _flat(value: Any) -> Any:
    return value.contiguous().view(-1) if isinstance(value, torch.Tensor) else value


def _is_average(value: object) -> bool:
    return isinstance(value, dist.ReduceOp.RedOpType) and value == dist.ReduceOp.AVG


def _sum_for_average(value: Any) -> Any:
    return dist.ReduceOp.SUM if _is_average(value) else value


def _name_the_call(
    before: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Report an error as before; then, where GPUs are its subject, the script's line that calls for one."""
    before(kind, error, trace)
    text = "".join(traceback.format_exception_only(kind, error)).strip()
    own = [frame for frame in traceback.extract_tb(trace) if _is_of_the_script(frame.filename)]
    if not own or not _OF_GPUS.search(text):
        return
    file, line = own[-1].filename, own[-1].lineno or 0
    called = linecache.getline(file, line).strip()
    if not called.startswith(("assert ", "raise ")):  # those are the script's own words
        where = f"{os.path.basename(file)}: error: line {line}, `{called}`"
        as_on_gpus = issubclass(kind, InvalidDevice)
        said = "with GPUs this fails as well" if as_on_gpus else "--without-gpus has no stand-in for this"
        print(f"{where}: {said}: {text.splitlines()[-1]}", file=sys.stderr)


def _is_of_the_script(file: str) -> bool:
    is_installed = "site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix)
    return not (is_installed or os.path.dirname(file) == os.path.dirname(__file__) or file.startswith("<"))
