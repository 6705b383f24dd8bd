"""Trained weights on their way to safetensors files, each written by one rank, whichever ranks hold the values.

Rank 0 saves the model as its task does, but without values, which only notes what each file is to hold. The files are
then divided among all ranks. Whoever holds a part of a tensor sends it to the rank that writes it, one tensor of each
writer at a time: beside its own part of the model, no rank ever holds more than the largest tensor, and a node's first
rank one for each rank of the node that writes.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.settings.files import describe_os_error
from trainyard.settings.quantities import memory
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import write_durably
from trainyard.steps.runtime.imports import replaced
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.engines.shared_model import without_memory
from trainyard.steps.training.fragments import MODEL_KEY, Fragment, tensors_of
from trainyard.steps.training.models_without_weights import DTYPES_IN_FILES, Weight, WeightReader
from trainyard.steps.training.new_weights import storage_id

_TYPE_NAMES = {dtype: name for name, dtype in DTYPES_IN_FILES.items()}
_LENGTH_BYTES, _ALIGNMENT_BYTES = 8, 8
_METADATA = {"format": "pt"}
Build = Callable[[], torch.nn.Module]
Save = Callable[[torch.nn.Module], None]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that a file is to hold."""

    name: str
    """In the file."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    source: str
    """The name of the model's tensor that has its elements, one after another."""
    start: int = 0
    """The index of the first of them there."""


@dataclass(frozen=True)
class PlannedFile:
    """A file that is to be written, with its tensors in their order there."""

    path: Path
    tensors: tuple[PlannedTensor, ...]


@dataclass(frozen=True)
class Combined:
    """What a tensor in a file is made of, where the ranks hold it in another form."""

    parts: Mapping[str, tuple[int, ...] | Weight]
    """The tensors of the ranks' model with their shapes, and those that are read from files."""
    combine: Callable[[Sequence[torch.Tensor]], torch.Tensor]
    """Returns the tensor, given the values of the parts."""


class Wanted(NamedTuple):
    """A tensor of the ranks' model, or a range of it, that one of them needs, in some type."""

    name: str
    elements: int
    dtype: torch.dtype
    start: int = 0


# A range of what a rank writes, and the hops that bring it there.
_Part = tuple[int, Wanted, int, int, list[tuple[int, int, dist.ProcessGroup | None]]]
_planning: ContextVar[_Plan | None] = ContextVar("planning", default=None)


class _Plan(TorchDispatchMode):
    """Notes what files are to hold while a model is saved. Tensors are told apart by their storages.

    What would be copied is noted too, and not copied: transformers cuts the experts that it holds together.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        TorchDispatchMode.__init__(self)
        tensors = tensors_of(model)
        self.files: list[PlannedFile] = []
        self._origins: dict[int, tuple[torch.Tensor, str | torch.Tensor]] = {
            storage_id(tensor): (tensor, name) for name, tensor in tensors.items()
        }
        """By storage: the tensor that fills it, and its name in the model or what it is a copy of."""
        self.is_complete = len(self._origins) == len(tensors)

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked for, except copying. What is changed is no longer what the ranks hold."""
        self.is_complete = self.is_complete and not function._schema.is_mutable
        if function is not torch.ops.aten.clone.default:
            return function(*args, **(kwargs or {}))
        copy = torch.empty_like(args[0], device="meta", **(kwargs or {}))
        self._origins[storage_id(copy)] = copy, args[0]
        return copy

    def add(self, file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        found = []
        for name, tensor in tensors.items():
            if (source := self._source(tensor, 0, tensor.numel())) is None:
                self.is_complete = False
                return
            found.append(PlannedTensor(name, tuple(tensor.shape), tensor.dtype, *source))
        types = list(DTYPES_IN_FILES.values())
        found.sort(key=lambda tensor: (types.index(tensor.dtype), tensor.name))  # as safetensors does
        self.files.append(PlannedFile(file, tuple(found)))

    def _source(self, tensor: torch.Tensor, start: int, stop: int) -> tuple[str, int] | None:
        """Return which of the model's tensors has a range of another one's elements, in their order, and from where."""
        whole, origin = self._origins.get(storage_id(tensor), (tensor, None))
        if origin is None or tensor.dtype != whole.dtype or not whole.is_contiguous():
            return None
        if not tensor.is_contiguous():
            strides = tensor.stride()
            ends = [numpy.dot(numpy.unravel_index(at, tensor.shape), strides) for at in (start, stop - 1)]
            # With strides in this order, each element is behind the one before.
            if list(strides) != sorted(strides, reverse=True) or ends[1] - ends[0] != stop - 1 - start:
                return None
            start, stop = int(ends[0]), int(ends[1]) + 1
        offset = int(tensor.storage_offset() - whole.storage_offset())
        start, stop = offset + start, offset + stop
        return (origin, start) if isinstance(origin, str) else self._source(origin, start, stop)


def write_tensors(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    """Write tensors, or note them while files are planned. Those that share memory are copied.

    StepError if the disk is full.
    """
    if (plan := _planning.get()) is not None:
        plan.add(file, tensors)
        return
    seen: set[int] = set()
    independent = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        independent[name] = tensor.detach().clone() if storage in seen else tensor.detach().contiguous()
        seen.add(storage)
    try:
        save_file(independent, file, metadata=_METADATA)
    except SafetensorError as failure:
        raise StepError(f"cannot write {file}: {failure}") from None


class Saving:
    """Saves an engine's weights. Every rank calls every method; what goes wrong on one is raised on all."""

    def __init__(self, engine: Engine, still_at_work: Callable[[], None]) -> None:
        self._engine, self._world, self._still_at_work = engine, engine.world, still_at_work
        self._failures: list[Exception] = []
        """Of this rank, until it is raised."""

    def in_parts(
        self, build: Build, save: Save, dtype: torch.dtype, combined: Mapping[str, Combined] | None = None
    ) -> bool:
        """Save as `save` does a model that `build` returns, with weights in a type, but by all ranks together.

        Return False if that cannot be: a file would hold values other than the model's. `combined` says of which of the
        engine's tensors those of the model consist that the engine does not have.
        """
        plans: list[list[PlannedFile] | None] = []

        def without_values() -> torch.nn.Module:
            own, model = self._engine.model, self._engine.replica
            if model is None or combined is not None:
                own, model = own if model is None else model, without_memory(build)
                # What transformers renamed and cut as it read the weights, it joins again as it saves them.
                if hasattr(own, "_weight_conversions"):
                    vars(model)["_weight_conversions"] = own._weight_conversions
            return model

        self.by_main(without_values, lambda model: plans.append(planned_files(model, save)), dtype)
        files = self._world.broadcast(plans[0] if plans else None)
        if files is not None:
            self._write(files, combined or {})
        return files is not None

    def whole(self, build: Build, save: Save, dtype: torch.dtype) -> None:
        """Let rank 0 save a whole model as `build` returns it: in a format of which only `save` knows what it holds."""
        models = [] if self._engine.replica is None else [self._engine.replica]
        if not models:
            self.log_whole_model(build)
            self.by_main(build, models.append, torch.float32)
            tensors = list(tensors_of(models[0]).items()) if models else []
            wanted = self._world.broadcast([Wanted(name, each.numel(), each.dtype) for name, each in tensors])
            others: list[list[Wanted]] = [[]] * (self._world.size - 1)
            for values, (_, tensor) in zip(self._exchanged([wanted, *others]), tensors, strict=True):
                tensor.data.copy_(values.view_as(tensor))
            self._raise_on_all()
        self.by_main(lambda: models[0], save, dtype)

    def by_main(self, build: Build, save: Save, dtype: torch.dtype) -> None:
        """Let rank 0 build a model and save it, for as long as it takes."""

        def build_and_save() -> None:
            try:
                model = build()
                with _in_dtype(model, dtype):
                    save(model)
            except Exception as failure:
                self._failures.append(failure)

        self._world.let_some_work(build_and_save, self._still_at_work, works=self._world.is_main)
        self._raise_on_all()

    def log_whole_model(self, build: Build) -> None:
        """Log, before rank 0 does so, that it holds a whole model as `build` returns it, and how large that is."""

        def log(model: torch.nn.Module) -> None:
            size = memory(sum(tensor.nbytes for tensor in tensors_of(model).values()))
            self._world.log(f"warning: rank 0 holds the whole model while it writes it alone: {size} of main memory")

        self.by_main(lambda: without_memory(build), log, torch.float32)

    def _write(self, files: Sequence[PlannedFile], combined: Mapping[str, Combined]) -> None:
        """Write the files, divided among the ranks."""
        by_rank = divided(files, self._world.size)
        arriving = self._exchanged([wanted_tensors(own, combined) for own in by_rank])
        for file in by_rank[self._world.rank]:
            try:
                file.path.unlink(missing_ok=True)  # not in place: others may have an earlier model's file mapped
                write_durably(file.path, _contents(file, combined, arriving))
            except (OSError, StepError) as failure:
                what = f"cannot write {describe_os_error(failure)}" if isinstance(failure, OSError) else str(failure)
                self._failures.append(StepError(what))
                file.path.unlink(missing_ok=True)
                break
        collections.deque(arriving, maxlen=0)  # after a failure too, the other ranks wait for what this one holds
        self._raise_on_all()

    def _exchanged(self, wanted: Sequence[Sequence[Wanted]]) -> Iterator[torch.Tensor]:
        """Yield the tensors that this rank wants, flat and in main memory. Every rank iterates to the end.

        Over gloo: NCCL would make a communicator, with buffers on the GPUs, for every two ranks.
        """
        world, weights = self._world, self._engine.weights()
        own = {fragment.key.removeprefix(MODEL_KEY): fragment for fragment in weights}
        mine, before = wanted[world.rank], [0, *itertools.accumulate(map(len, wanted))]
        ranges = itertools.chain.from_iterable(held_ranges(wanted, weights, world.rank))
        held = torch.stack(world.gather(torch.tensor(list(ranges))), dim=1)
        for turn in range(max(map(len, wanted))):
            self._still_at_work()
            parts = [
                (writer, tensors[turn], start, stop, world.host.route(holder, writer))
                for writer, tensors in enumerate(wanted)
                for holder, (start, stop) in enumerate(
                    held[before[writer] + turn].tolist() if turn < len(tensors) else ()
                )
                if start < stop
            ]
            whole = torch.zeros(mine[turn].elements, dtype=mine[turn].dtype) if turn < len(mine) else torch.empty(0)
            here = {number: whole[part[2] : part[3]] for number, part in enumerate(parts) if part[0] == world.rank}
            for number, (_, tensor, start, stop, route) in enumerate(parts):
                if route[0][0] == world.rank:
                    values = self._rounded_range(own[tensor.name], tensor.start + start, stop - start, tensor.dtype)
                    here[number] = here[number].copy_(values) if number in here else values
            for hop in range(3):
                self._pass_on(hop, parts, here)
            if turn < len(mine):
                yield whole

    def _rounded_range(self, fragment: Fragment, start: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        values = fragment.values[start - fragment.start :][:elements]
        try:
            return _rounded(values, dtype).cpu()
        except StepError as failure:  # raised at the end: others wait for the values
            self._failures.append(failure)
            return values.to(dtype).cpu()

    def _pass_on(self, hop: int, parts: Sequence[_Part], here: dict[int, torch.Tensor]) -> None:
        """Exchange, for one hop of their routes, the parts that are here, by their numbers."""
        exchange = []
        for number, (_, tensor, start, stop, route) in enumerate(parts):
            source, target, group = route[hop]
            if source == self._world.rank != target:
                exchange.append(dist.P2POp(dist.isend, here.pop(number), target, group, number))
            elif target == self._world.rank != source:
                values = here.setdefault(number, torch.empty(stop - start, dtype=tensor.dtype))
                exchange.append(dist.P2POp(dist.irecv, values, source, group, number))
        for request in dist.batch_isend_irecv(exchange) if exchange else ():
            request.wait()

    def _raise_on_all(self) -> None:
        """Raise this rank's first failure, or another rank's as a StepError."""
        texts = self._world.gather(str(self._failures[0]) if self._failures else None)
        if self._failures:
            raise self._failures[0]
        if found := [text for text in texts if text is not None]:
            raise StepError(found[0])


def file_header(
    metadata: Mapping[str, str], tensors: Iterable[tuple[str, torch.dtype, Sequence[int]]], alignment_bytes: int
) -> bytes:
    """Return what precedes the bytes of the tensors, which follow in this order. StepError for an unknown type."""
    entries: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, dtype, shape in tensors:
        assert name not in entries, f"{name} occurs twice in a file"
        if dtype not in _TYPE_NAMES:
            raise StepError(f"{name} has the type {dtype}, which is not supported in files")
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    # The format allows spaces; with these, the tensors begin at a boundary.
    header += b" " * (-(_LENGTH_BYTES + len(header)) % alignment_bytes)
    return struct.pack("<Q", len(header)) + header


@contextmanager
def _in_dtype(model: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Round a model's weights for as long as they are written. A checkpoint may follow, of the exact ones."""
    exact = {
        tensor: tensor.data
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.is_floating_point() and tensor.dtype != dtype
    }
    try:
        for tensor, values in exact.items():
            tensor.data = _rounded(values, dtype)
        yield
    finally:
        for tensor, values in exact.items():
            tensor.data = values


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    found = values.to(dtype)
    if dtype == torch.float16 and not found.is_meta and not found.isfinite().all() and values.isfinite().all():
        raise StepError("--save-dtype fp16: the model has weights beyond the range of fp16; use bf16")
    return found


def planned_files(model: torch.nn.Module, save: Save) -> list[PlannedFile] | None:
    """Return the files that `save` would write of a model's tensors. None if they would hold anything else."""
    from huggingface_hub.serialization import _torch

    plan = _Plan(model)
    token = _planning.set(plan)
    try:
        # By itself transformers takes all tensors on the meta device for separate ones, however they share storages.
        with plan, replaced(_torch, "get_torch_storage_id", storage_id):
            save(model)
    finally:
        _planning.reset(token)
    return plan.files if plan.is_complete else None


def divided(files: Sequence[PlannedFile], ranks: int) -> list[list[PlannedFile]]:
    """Return the files that each rank writes: evenly spread, so that all nodes write."""
    by_rank: list[list[PlannedFile]] = [[] for _ in range(ranks)]
    for number, file in enumerate(files):
        by_rank[number * ranks // len(files)].append(file)
    return by_rank


def wanted_tensors(files: Sequence[PlannedFile], combined: Mapping[str, Combined]) -> list[Wanted]:
    """Return what a rank needs in order to write these files, in the order in which it does."""
    wanted = []
    for tensor in (tensor for file in files for tensor in file.tensors):
        if (source := combined.get(tensor.source)) is not None:
            parts = source.parts.items()
            wanted += [Wanted(name, math.prod(part), torch.float32) for name, part in parts if isinstance(part, tuple)]
        else:
            wanted.append(Wanted(tensor.source, math.prod(tensor.shape), tensor.dtype, tensor.start))
    return wanted


def _contents(
    file: PlannedFile, combined: Mapping[str, Combined], arriving: Iterator[torch.Tensor]
) -> Iterator[bytes | memoryview]:
    reader, tensors = WeightReader(), [(tensor.name, tensor.dtype, tensor.shape) for tensor in file.tensors]
    yield file_header(_METADATA, tensors, _ALIGNMENT_BYTES)
    for tensor in file.tensors:
        if (source := combined.get(tensor.source)) is None:
            values = next(arriving)
        else:
            parts = [
                next(arriving).view(part) if isinstance(part, tuple) else reader.elements(part).view(part.shape)
                for part in source.parts.values()
            ]
            whole = source.combine(parts)
            own = whole.contiguous().view(-1)[tensor.start : tensor.start + math.prod(tensor.shape)]
            values = _rounded(own, tensor.dtype)
        yield values.view(torch.uint8).numpy().data


def held_ranges(
    wanted: Sequence[Sequence[Wanted]], weights: Sequence[Fragment], rank: int
) -> list[list[tuple[int, int]]]:
    """Return which range of each tensor that each rank wants is this rank's to send: an empty one of most."""
    own = {fragment.key.removeprefix(MODEL_KEY): fragment for fragment in weights}

    def held(tensor: Wanted, by: int) -> tuple[int, int]:
        fragment = own.get(tensor.name)
        # Of what all ranks hold, each takes its own; of replicas, the first sends.
        if fragment is None or (by != rank if fragment.is_replicated else fragment.copy > 0):
            return 0, 0
        start, stop = (min(max(end - tensor.start, 0), tensor.elements) for end in (fragment.start, fragment.stop))
        return (start, stop) if start < stop else (0, 0)

    return [[held(tensor, by) for tensor in tensors] for by, tensors in enumerate(wanted)]
