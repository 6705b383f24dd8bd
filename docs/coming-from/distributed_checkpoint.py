"""Weights and trainings from and to torch's distributed checkpoints (DCP), as torchtitan and loops of one's own write
them.

    python distributed_checkpoint.py export out/model dcp          a model's folder, as a distributed checkpoint
    python distributed_checkpoint.py import dcp out/model          and back: model.safetensors, to go with a config.json
    python distributed_checkpoint.py import dcp out/model model.   of names that begin so, which the new ones do not

    python distributed_checkpoint.py export-training out/checkpoints/step-00001000 dcp
    python distributed_checkpoint.py import-training dcp out/checkpoints

A training is its weights, AdamW's state and how far it has come. It is imported beside a checkpoint of the training
that is to continue, which says what that training is: start it with `--max-steps 1` to have one.

Names and bits of tensors stay, unless `--adapter FILE.py:NAME` names an object with `to_hf` and `from_hf`, such as
torchtitan's StateDictAdapter. All tensors have to fit into this machine's main memory.

A checkpoint lists its tensors in a pickle, `.metadata`, and a pickle can run code. Nothing is made from it here but the
classes of torch that such a list consists of; tensors and values are read with `weights_only=True`, from files in its
folder only.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import make_names_durable, write_durably
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders, step_folder
from trainyard.steps.training.checkpoints.commit import Commit, SavedFile, read_commit, write_commit
from trainyard.steps.training.checkpoints.restoring import read_share
from trainyard.steps.training.checkpoints.state_files import (
    RANDOM_PREFIX,
    in_file_order,
    pieces_in,
    share_to_write,
    state_file_header,
    state_file_name,
)
from trainyard.steps.training.fragments import AVERAGE_KEY, MODEL_KEY, OPTIMIZER_KEY, Fragment, whole_tensor
from trainyard.steps.training.optimizer import OptimizerSettings, stateless_optimizer
from trainyard.steps.training.samples.plan import Progress

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
}
_STEP, _TOKENS, _LAST_EPOCH = "train_state.step", "train_state.ntokens_seen", "lr_scheduler.last_epoch"
"""torchtitan's names."""
_COMMIT, _RANDOM, _AVERAGE = "trainyard.commit", "trainyard.random.", "trainyard.average."
"""What only a training here reads."""
_NO_WEIGHTS = ("train_state.", "lr_scheduler.", "dataloader.", "trainyard.")
_COMPARED = ("betas", "eps", "weight_decay")
Tensors = dict[str, torch.Tensor]
Translate = Callable[[Tensors], Tensors]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of a list of tensors")
        return super().find_class(module, name)


class SafeReader(FileSystemReader):
    """Reads a distributed checkpoint, which may be a stranger's, without running code from it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the list of tensors. SystemExit if it is not only that."""
        file = Path(self.path) / ".metadata"
        try:
            with file.open("rb") as stream:
                metadata = _Unpickler(stream).load()
        except Exception as failure:  # a damaged pickle can raise any
            sys.exit(f"{file} cannot be read: {failure}")
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            sys.exit(f"{file} is not a list of tensors")
        for stored in metadata.storage_data.values():
            if Path(stored.relative_path).name != stored.relative_path:
                sys.exit(f"{file} names {stored.relative_path}; expected a file in its folder")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        return metadata


def export_weights(model: Path, checkpoint: Path) -> None:
    """Write all weights of a model's folder as a distributed checkpoint."""
    tensors = {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}
    dcp.save(tensors, checkpoint_id=checkpoint, no_dist=True)


def import_weights(checkpoint: Path, model: Path, prefix: str = "") -> None:
    """Write the tensors of a distributed checkpoint whose names begin so, without that, as model.safetensors."""
    reader = SafeReader(checkpoint)
    listed = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in listed.items()
        if name.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
    }
    if not tensors:
        sys.exit(f"{checkpoint} has no tensor whose name begins with {prefix!r}")
    dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
    model.mkdir(parents=True, exist_ok=True)
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    save_file(named, model / "model.safetensors", metadata={"format": "pt"})


@dataclass(frozen=True)
class SavedTraining:
    """A checkpoint of a training here, all ranks' files together."""

    commit: Commit
    tensors: Tensors
    """By key: `model/<name>`, `optimizer/<name>/exp_avg` and so on, `average/<name>`."""
    random: dict[str, Tensors]
    """The states of each rank's random number generators, by its file."""

    @classmethod
    def read(cls, folder: Path) -> SavedTraining:
        """Return a checkpoint, each file compared with its digest. StepError if it is not as it was saved."""
        commit = read_commit(folder)
        tensors: Tensors = {}
        random: dict[str, Tensors] = {}
        for file in commit.files:
            pieces, random[file], share = pieces_in(folder / file), {}, []
            for piece in pieces:
                held = random[file] if piece.key.startswith(RANDOM_PREFIX) else tensors
                shape = tuple(map(int, filter(None, piece.shape.split(","))))
                if piece.key not in held:
                    held[piece.key] = torch.empty(shape, dtype=piece.dtype)
                values = held[piece.key].view(-1)[piece.start : piece.stop]
                share.append(Fragment(piece.key, shape, piece.start, values))
            read_share(folder, commit, share, {file: pieces}, ())
        return cls(commit, tensors, random)

    def write(self, folder: Path) -> None:
        """Write it as a checkpoint, divided into files as its ranks would."""
        folder.mkdir(parents=True)
        fragments, ranks, files = [whole_tensor(*each) for each in self.tensors.items()], self.commit.world_size, {}
        for rank in range(ranks):
            file = folder / state_file_name(rank)
            random = [whole_tensor(*each) for each in self.random.get(file.name, {}).items()]
            pieces = in_file_order([*share_to_write(fragments, rank, ranks), *random])
            contents = [piece.values.view(torch.uint8).numpy().data for piece in pieces]
            files[file.name] = SavedFile(*write_durably(file, [state_file_header(pieces), *contents]))
        make_names_durable(folder)
        write_commit(folder, replace(self.commit, files=files))

    def beneath(self, prefix: str) -> Tensors:
        """Return the tensors whose keys begin so, by the rest of their keys."""
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}

    def moments(self) -> dict[str, Tensors]:
        """Return the optimizer's state: by `exp_avg`, `exp_avg_sq` and `step`, that of each parameter."""
        found: dict[str, Tensors] = {}
        for key, value in self.beneath(OPTIMIZER_KEY).items():
            name, kind = key.split("/")
            found.setdefault(kind, {})[name] = value
        return found


def adamw_groups(settings: Mapping[str, Any], parameters: Tensors) -> list[dict[str, Any]]:
    """Return AdamW's parameter groups with a training's settings; their `params` are names."""
    by_decay = [[name for name, each in parameters.items() if (each.dim() >= 2) == decays] for decays in (True, False)]
    betas, rate = (settings["adam_beta1"], settings["adam_beta2"]), settings["learning_rate"]
    optimizer = stateless_optimizer(
        *([torch.nn.Parameter(parameters[name]) for name in names] for names in by_decay),
        OptimizerSettings(settings["weight_decay"], betas, settings["adam_epsilon"]),
    )
    found = zip(optimizer.state_dict()["param_groups"], filter(None, by_decay), strict=True)
    return [group | {"params": names, "lr": rate, "initial_lr": rate} for group, names in found]


def translated(moments: Mapping[str, Tensors], translate: Translate) -> dict[str, Tensors]:
    """Return AdamW's state with other names, and in the layout that goes with them."""
    found = {kind: dict(translate(dict(values))) for kind, values in moments.items() if kind != "step"}
    step = max(moments["step"].values(), key=torch.Tensor.item)
    return found | {"step": dict.fromkeys(found["exp_avg"], step)}


def export_training(folder: Path, checkpoint: Path, adapter: Any, tokens_per_sample: int) -> None:
    """Write a checkpoint of a training as torchtitan writes its own, which `get_state_dict` of torch reads as well."""
    training = SavedTraining.read(folder)
    weights, moments, progress = training.beneath(MODEL_KEY), training.moments(), training.commit.progress
    if moments.keys() != {"exp_avg", "exp_avg_sq", "step"}:
        raise StepError(f"{folder} has an optimizer's {', '.join(moments) or 'nothing'}; expected AdamW's state")
    if adapter is not None:
        weights, moments = dict(adapter.from_hf(weights)), translated(moments, adapter.from_hf)
    state: dict[str, Any] = weights | {
        f"optimizer.state.{name}.{kind}": value for kind, values in moments.items() for name, value in values.items()
    }
    parameters = {name: weights[name] for name in moments["step"]}
    for number, group in enumerate(adamw_groups(training.commit.settings, parameters)):
        # In both of torch's notations: by number, and by parameter (flatten_optimizer_state_dict).
        for place in (number, *group["params"]):
            state |= {f"optimizer.param_groups.{place}.{key}": value for key, value in group.items()}
    state |= {_STEP: progress.step, _LAST_EPOCH: progress.step}
    state |= {_TOKENS: progress.samples_consumed * tokens_per_sample, _COMMIT: json.dumps(asdict(training.commit))}
    state |= {_AVERAGE + name: value for name, value in training.beneath(AVERAGE_KEY).items()}
    for file, states in training.random.items():
        state |= {f"{_RANDOM}{file}:{key}": values for key, values in states.items()}
    dcp.save(state, checkpoint_id=checkpoint, no_dist=True)
    print(f"{checkpoint}: step {progress.step}, {len(weights)} weights, AdamW's state of {len(parameters)}")


class _ValueReader(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.original_state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def read_entries(checkpoint: Path) -> dict[str, Any]:
    """Return all tensors of a distributed checkpoint, and the values that are known, by their names."""
    reader = SafeReader(checkpoint)
    entries: dict[str, Any] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            entries[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
        elif name in (_STEP, _TOKENS, _COMMIT) or "param_groups." in name:
            entries[name] = None
    try:
        dcp.load(entries, storage_reader=reader, planner=_ValueReader(), no_dist=True)
    except dcp.api.CheckpointException as failure:
        raise StepError(f"{checkpoint} cannot be read: {failure}") from None
    return entries


def training_in(
    entries: Mapping[str, Any], checkpoint: Path
) -> tuple[Tensors, dict[str, Tensors], list[dict[str, Any]]]:
    """Return the weights, AdamW's state and the values of its parameter groups, whatever precedes their names."""
    first = next((name for name in entries if name.endswith(".exp_avg")), None)
    if first is None:
        raise StepError(f"{checkpoint} has no AdamW state: no name in it ends with .exp_avg")
    before, _, parameter = first.removesuffix(".exp_avg").partition("state.")
    before_weights = min(
        (name.removesuffix(parameter) for name in entries if name.endswith(f".{parameter}") or name == parameter),
        key=len,
    )
    weights, moments, groups = {}, {}, {}
    for name, value in entries.items():
        if name.startswith(f"{before}state."):
            parameter, _, kind = name.removeprefix(f"{before}state.").rpartition(".")
            moments.setdefault(kind, {})[parameter] = value
        elif name.startswith(f"{before}param_groups."):
            place, _, key = name.removeprefix(f"{before}param_groups.").rpartition(".")
            groups.setdefault(place, {})[key] = value
        elif name.startswith(before_weights) and not name.startswith(_NO_WEIGHTS) and isinstance(value, torch.Tensor):
            weights[name.removeprefix(before_weights)] = value
    return weights, moments, list(groups.values())


def import_training(checkpoint: Path, folder: Path, adapter: Any, step: int | None) -> None:
    """Write a distributed checkpoint of a training as one that the training with these checkpoints continues from."""
    like = next(iter(checkpoint_folders(folder)), None)
    if like is None:
        raise StepError(f"{folder} has no checkpoint; start the training that is to continue with --max-steps 1 first")
    template, entries = SavedTraining.read(like), read_entries(checkpoint)
    weights, moments, groups = training_in(entries, checkpoint)
    if adapter is not None:
        weights, moments = dict(adapter.to_hf(weights)), translated(moments, adapter.to_hf)
    found = {MODEL_KEY + name: value for name, value in weights.items()}
    found |= {f"{OPTIMIZER_KEY}{name}/{kind}": value for kind, each in moments.items() for name, value in each.items()}
    average = {AVERAGE_KEY + name: entries.get(_AVERAGE + name, value) for name, value in weights.items()}
    tensors = {}
    for key, expected in template.tensors.items():
        value = found.get(key, average.get(key))
        if value is None:
            raise StepError(f"{checkpoint} has nothing for {key}, which {like} has")
        if value.shape != expected.shape:
            raise StepError(f"{checkpoint}: {key} has the shape {list(value.shape)}; {like} has {list(expected.shape)}")
        tensors[key] = value.to(expected.dtype)
    if unused := sorted(found.keys() - tensors.keys()):
        print(f"warning: {like} has nothing for {', '.join(unused)}: not used")
    random: dict[str, Tensors] = {}
    for name in (name for name in entries if name.startswith(_RANDOM)):
        file, _, key = name.removeprefix(_RANDOM).partition(":")
        random.setdefault(file, {})[key] = entries[name]
    commit = replace(
        template.commit, **_progress(entries, moments, template.commit, step), best_figure=None, is_best=False
    )
    _warn_of_other_settings(groups, adamw_groups(commit.settings, {name: weights[name] for name in moments["step"]}))
    target = step_folder(folder, commit.progress.step)
    if target <= like:
        raise StepError(
            f"{folder} has {like.name}, which is no earlier; a training continues from the last: move it away"
        )
    SavedTraining(commit, tensors, random).write(target)
    progress, tokens = commit.progress, entries.get(_TOKENS) or "unknown"
    print(f"{target}: step {progress.step}, {progress.samples_consumed} samples; tokens seen: {tokens}")


def _progress(
    entries: Mapping[str, Any], moments: Mapping[str, Tensors], like: Commit, step: int | None
) -> dict[str, Any]:
    """Return how far a training has come, as fields of a commit: its own, or as torchtitan or AdamW counts."""
    if _COMMIT in entries:
        own = json.loads(entries[_COMMIT])
        return {name: own[name] for name in ("scalars", "world_size")} | {"progress": Progress(**own["progress"])}
    done = step or int(entries.get(_STEP) or max(int(value) for value in moments["step"].values()))
    return {"progress": Progress(done, samples_consumed=done * like.identity["global_batch_size"])}


def _warn_of_other_settings(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    there, here = (
        sorted({str({key: group.get(key) for key in _COMPARED}) for group in groups}) for groups in (theirs, ours)
    )
    if there != here:
        print(f"warning: AdamW had {' and '.join(there)}; the training here continues with {' and '.join(here)}")


def main() -> None:
    """Run a command of the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("export", "import", "export-training", "import-training"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("prefix", nargs="?", default="", help="import: of weights' names")
    parser.add_argument("--adapter", help="FILE.py:NAME of an object with to_hf and from_hf")
    parser.add_argument(
        "--step", type=int, help="import-training: the last step, where the checkpoint does not have it"
    )
    parser.add_argument("--tokens-per-sample", type=int, default=0, help="export-training: for ntokens_seen")
    given = parser.parse_args()
    file, _, name = (given.adapter or "").partition(":")
    adapter = runpy.run_path(file)[name] if file else None
    try:
        if given.what == "export":
            export_weights(given.source, given.target)
        elif given.what == "import":
            import_weights(given.source, given.target, given.prefix)
        elif given.what == "export-training":
            export_training(given.source, given.target, adapter, given.tokens_per_sample)
        else:
            import_training(given.source, given.target, adapter, given.step)
    except StepError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
