"""What Lightning asks its surroundings for: ranks, and where a checkpoint is."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins import ClusterEnvironment
from lightning.pytorch.plugins import CheckpointIO

from trainyard.steps.runtime.rank_variables import RankVariables


class KnownRanks(ClusterEnvironment):
    """The ranks that this process already knows, whatever started it."""

    def __init__(self, variables: RankVariables) -> None:
        super().__init__()
        self._variables = variables

    @property
    def creates_processes_externally(self) -> bool:
        """Lightning starts no processes."""
        return True

    @property
    def main_address(self) -> str:
        """Where the ranks have met."""
        return self._variables.master_address or "127.0.0.1"

    @property
    def main_port(self) -> int:
        """The port there."""
        return self._variables.master_port

    @staticmethod
    def detect() -> bool:
        """Never found by itself: it is given to the Trainer."""
        return False

    def world_size(self) -> int:
        """The number of ranks."""
        return self._variables.world_size

    def set_world_size(self, size: int) -> None:
        """Check what Lightning has computed: with another number, rank 0 would train alone in silence."""
        assert size == self._variables.world_size, f"Lightning counts {size} ranks of {self._variables.world_size}"

    def global_rank(self) -> int:
        """This rank."""
        return self._variables.rank

    def set_global_rank(self, rank: int) -> None:
        """Check what Lightning has computed from the node's rank."""
        assert rank == self._variables.rank, f"Lightning takes rank {self._variables.rank} for {rank}"

    def local_rank(self) -> int:
        """This rank within its node."""
        return self._variables.local_rank

    def node_rank(self) -> int:
        """The node."""
        return self._variables.node_rank


class CheckpointInMemory(CheckpointIO):
    """Hands Lightning's checkpoints over to the ones with a commit marker, which lie in folders, and back."""

    def __init__(self) -> None:
        self.checkpoint: dict[str, Any] | None = None
        """What Lightning saved last, on rank 0; or what it is to load, on every rank."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Keep it for whoever writes it."""
        self.checkpoint = checkpoint

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Return what was read."""
        assert self.checkpoint is not None
        return self.checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Remove nothing: old checkpoints are removed by who wrote them."""
