"""Trainings that are killed again and again, and started again each time, until they end."""

from __future__ import annotations

import io
import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from forked_ranks import RankServer, send_signal
from rank_processes import LIMIT_SECONDS, training_arguments
from safetensors.torch import load_file

from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders
from trainyard.steps.training.checkpoints.commit import COMMIT_FILE
from trainyard.steps.training.checkpoints.state_files import state_file_name

STOPPED = 75
_KILLS_OF_ONE_TRAINING = 8
LAUNCHER_PATIENCE_SECONDS = 5.0
"""How long the other ranks have until they are killed too, as a launcher does once a rank has died."""


@dataclass
class Training:
    """One training, as the arguments of its step. Each attempt is the same command."""

    server: RankServer
    step: str
    data: Path
    out: Path
    flags: Sequence[object]
    world_size: int = 2
    task: str = "tiny_task:Slow"
    done: list[str] = field(default_factory=list)
    """How it was killed so far."""

    @property
    def log(self) -> Path:
        """What all attempts said."""
        return self.out.with_suffix(".log")

    @property
    def checkpoints(self) -> Path:
        """Where it saves."""
        return self.out / "checkpoints"

    def attempt(
        self, disturb: Callable[[list[int]], None] | None = None, patience_seconds: float = LIMIT_SECONDS
    ) -> list[int]:
        """Start it, perhaps disturb it, and wait for its end; return the exit codes by rank."""
        batches = ("--global-batch-size", 32 * self.world_size, "--micro-batch-size", 32)
        flags = ("--epochs", 2, "--checkpoint-every-steps", 3, *batches, *self.flags)
        arguments = training_arguments(self.data, self.out, self.task, *flags)
        pids = self.server.start(self.step, arguments, self.world_size, self.log)

        if disturb is not None:
            disturb(pids)
        return self.server.wait(patience_seconds)

    def result(self) -> dict[str, object]:
        """The last commit: it has the digests of all weights, optimizer state and random state."""
        newest = checkpoint_folders(self.checkpoints)[0]
        commit: dict[str, object] = json.loads((newest / COMMIT_FILE).read_text())
        return commit


@dataclass
class LightningTraining(Training):
    """Compares what was learnt. Lightning's counters of its own restarts differ, as they should."""

    def result(self) -> dict[str, object]:
        file = checkpoint_folders(self.checkpoints)[0] / state_file_name(0)
        (blob,) = (value for key, value in load_file(file).items() if key.startswith("lightning/checkpoint"))
        state = torch.load(io.BytesIO(blob.numpy().tobytes()), weights_only=True)
        learnt = {name: state[name] for name in ("global_step", "state_dict", "optimizer_states")}
        return dict(_flat(learnt)) | {"model": (self.out / "model" / "model.safetensors").read_bytes()}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested dictionaries and lists; tensors as their bytes."""
    if isinstance(value, torch.Tensor):
        yield name, value.numpy().tobytes()
    elif isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(each, f"{name}/{key}")
    else:
        yield name, value


def kill_until(
    new_training: Callable[[str], Training],
    kills: int,
    chance: random.Random,
    say: Callable[[str], object],
    *,
    damages: bool = False,
) -> None:
    """Kill trainings so many times in total, and compare the end of each with that of an uninterrupted one.

    If it `damages`, a byte of the newest checkpoint is changed after every second kill.
    """
    whole = new_training("whole")
    seconds = _run_to_its_end(whole)
    done = 0
    for number in itertools.count():
        training = new_training(f"killed_{number}")
        _train_with_kills(training, min(_KILLS_OF_ONE_TRAINING, kills - done), seconds, chance, damages=damages)
        done += sum(" to rank " in what for what in training.done)
        say(f"{done} of {kills}: {'; '.join(training.done) or 'it ended before it was killed'}")
        assert training.result() == whole.result(), (training.done, training.log.read_text())
        if done == kills:
            return
        if not training.done:
            seconds *= 0.7  # the machine is less busy than it was


def _run_to_its_end(training: Training) -> float:
    """Return the seconds it takes."""
    started = time.monotonic()
    exit_codes = training.attempt()
    assert exit_codes == [0] * training.world_size, training.log.read_text()
    return time.monotonic() - started


def _train_with_kills(training: Training, kills: int, seconds: float, chance: random.Random, *, damages: bool) -> None:
    """Kill a training at most so many times, and let it finish. `seconds` is how long it takes uninterrupted.

    SIGKILL or SIGTERM to one rank, at any moment of its time (its start included) or just inside a save.
    """
    for _ in range(kills):
        number = chance.choice((signal.SIGKILL, signal.SIGTERM))
        rank = chance.randrange(training.world_size)
        waits = (_for_a_while(chance.uniform(0, seconds)), _for_a_save(training, chance.randint(1, 3), chance))
        wait = chance.choice(waits)
        when = ""

        def disturb(pids: list[int], number: signal.Signals = number, rank: int = rank, wait: _Wait = wait) -> None:
            nonlocal when
            when = wait(pids)
            send_signal(pids[rank], number)

        # After SIGTERM all end by themselves, however long a busy machine takes to start them.
        patience_seconds = LIMIT_SECONDS if number == signal.SIGTERM else LAUNCHER_PATIENCE_SECONDS
        exit_codes = training.attempt(disturb, patience_seconds)
        if exit_codes == [0] * training.world_size:
            return  # too late
        training.done.append(f"{number.name} to rank {rank} {when}")
        if number == signal.SIGTERM and exit_codes[rank] != -signal.SIGTERM:
            # All stop together, unless the signal came before a handler was installed.
            assert exit_codes == [STOPPED] * training.world_size, (exit_codes, training.log.read_text())
        if damages and sum(" to rank " in what for what in training.done) % 2 == 0:
            training.done += _damage_newest(training, chance)
    _run_to_its_end(training)


def _damage_newest(training: Training, chance: random.Random) -> list[str]:
    """Change a byte of a state file of the newest checkpoint, if there is one. Return what was done, in words."""
    committed = [folder for folder in checkpoint_folders(training.checkpoints) if (folder / COMMIT_FILE).is_file()]
    if not committed:
        return []
    file = chance.choice(sorted(committed[0].glob("*.safetensors")))
    content = bytearray(file.read_bytes())
    place = chance.randrange(len(content))
    content[place] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    return [f"byte {place} of {file.parent.name}/{file.name} changed"]


_Wait = Callable[[list[int]], str]
"""Returns when it is time to disturb the ranks, with a description of that moment."""


def _for_a_while(seconds: float) -> _Wait:
    def wait(pids: list[int]) -> str:
        end = time.monotonic() + seconds
        while _lives(pids[0]) and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
        return f"after {seconds:.2f} s"

    return wait


def _for_a_save(training: Training, nth: int, chance: random.Random) -> _Wait:
    """Wait until the nth folder appears that is not committed yet, and a moment more."""
    delay_seconds = chance.uniform(0, 0.004)

    def wait(pids: list[int]) -> str:
        known = set(checkpoint_folders(training.checkpoints))
        seen: set[Path] = set()
        deadline = time.monotonic() + 10
        while len(seen) < nth and _lives(pids[0]) and time.monotonic() < deadline:
            seen |= {folder for folder in checkpoint_folders(training.checkpoints) if folder not in known}
            time.sleep(0.0005)
        time.sleep(delay_seconds)
        uncommitted = [folder.name for folder in seen if folder.is_dir() and not (folder / COMMIT_FILE).exists()]
        return f"inside the save of {uncommitted[0]}" if uncommitted else "just after a save"

    return wait


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
