"""Direct preference optimization (DPO, Rafailov et al., arXiv 2305.18290): of two answers, the chosen one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional

from trainyard.settings.steps.tasks import PreferencesSettings
from trainyard.steps.data.dataset.manifest import Manifest, TokenText
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.language_modeling import LanguageModeling, dropout_settings
from trainyard.steps.training.tasks.token_rows import rows_of

REFERENCE_ARRAY = "reference"
"""The reference model's log-probability of each token of an answer, given those before it; 0 elsewhere."""
REFERENCE_MODEL = "reference_model_sha256"
"""In a manifest's source: the digest of the model that they come from."""
_FIRST_LOSS = math.log(2)
"""Before its first update the model is the reference: all margins are 0, with label smoothing too."""
_FIRST_LOSS_TOLERANCE, _ROUNDED_TOLERANCE = 1e-3, 0.05
"""How far from it a first loss may be in fp32, and where the model and the reference may have been rounded apart."""
_LEAST_TOKENS_OF_PAIR = 4
"""Each of its documents has a token to begin with and one to predict."""


class _Rewards(NamedTuple):
    """Of each pair that a row has room for, [rows, pairs]; 0 where the row has fewer."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    is_pair: torch.Tensor
    reference_margins: torch.Tensor
    """How much likelier the chosen answer is to the reference model, in nats."""

    @property
    def margins(self) -> torch.Tensor:
        return self.chosen - self.rejected


class Preferences(LanguageModeling):
    """The loss of a pair is -log sigmoid(margin): how much more the model prefers the chosen answer than the reference.

    A row holds whole pairs as documents: chosen answers have odd numbers, rejected ones the even number that follows.
    An answer's reward is beta times the log-ratio of the model to the reference model, whose log-probabilities come
    with the dataset; a margin is the difference of two rewards. Rewards and margins are in nats.
    """

    Settings = PreferencesSettings
    settings: PreferencesSettings
    best_is: Mapping[str, Literal["lowest", "highest"]] = MappingProxyType(
        {"loss": "lowest", "reward_accuracy": "highest", "reward_margin": "highest"}
    )

    untrained_is = "base model"

    _starts_as_reference = False
    """Whether nothing but its weights decides the first loss of a model."""

    def base_model_problem(self, sha256: str | None) -> str | None:
        """Return why not, unless the dataset has the log-probabilities of this model."""
        if sha256 is None:
            return "the task preferences starts from a model that answers already; name it by --base-model"
        if REFERENCE_ARRAY not in self.manifest.arrays:
            return (
                f"the dataset in {self.manifest.folder} has no log-probabilities of a reference model; run "
                "compute_reference on it, and train on what that writes"
            )
        if self.manifest.source.get(REFERENCE_MODEL) != sha256:
            return (
                f"the log-probabilities in {self.manifest.folder} are not those of the model that "
                "training starts from: their SHA-256 differ; run compute_reference with the same --base-model"
            )
        return None

    def new_model(self) -> torch.nn.Module:
        """Return the model to tune, which answers as the reference does until its first update."""
        model = super().new_model()
        config: Any = model.config
        self._starts_as_reference = not dropout_settings(config) and self._router_loss_factor == 0
        return model

    def first_loss_problem(self, loss: float, *, is_exact: bool) -> str | None:
        """Return that the reference is another model, if the loss is not log 2.

        Nothing can be said with dropout or a router's loss, which change it.
        """
        tolerance = _FIRST_LOSS_TOLERANCE if is_exact else _ROUNDED_TOLERANCE
        if not self._starts_as_reference or abs(loss - _FIRST_LOSS) <= tolerance:
            return None
        return (
            f"the first loss is {loss:.4f}; it is {_FIRST_LOSS:.4f} (log 2) where training starts from the reference "
            f"model. The log-probabilities in {self.manifest.folder} are of another model, or were computed in another "
            "way: run compute_reference again with the same --base-model and --precision"
        )

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the sum of the pairs' losses; of a mixture of experts, with its routers' loss for each."""
        rewards, outputs = self._rewards(model, batch)
        return self._with_router_loss(self._losses(rewards).sum(), outputs, batch)

    def loss_terms(self, batch: Tensors) -> int:
        """Return the number of pairs."""
        return int(_pairs_of_rows(batch).sum())

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """Return sums over pairs: of the loss, of both rewards, of how often the chosen answer's is higher, and of how
        often that answer is likelier, to the model and to the reference."""
        rewards, _ = self._rewards(model, batch)
        return {
            "loss_sum": self._losses(rewards).double().sum(),
            "higher": (rewards.margins > 0).double().sum(),
            "preferred": (rewards.reference_margins + rewards.margins / self.settings.beta > 0).double().sum(),
            "reference_preferred": (rewards.reference_margins > 0).double().sum(),
            "chosen_reward_sum": rewards.chosen.double().sum(),
            "rejected_reward_sum": rewards.rejected.double().sum(),
            "pairs": rewards.is_pair.double().sum(),
            "samples": torch.tensor(len(batch["tokens"]), dtype=torch.float64, device=batch["tokens"].device),
        }

    def summarise(self, sums: Mapping[str, torch.Tensor], split: str = "validation") -> dict[str, float]:
        """Return the mean loss of a pair, the shares of pairs whose chosen answer has the higher reward and of those
        whose chosen answer is likelier, and mean rewards and margin."""
        pairs = float(sums["pairs"])
        chosen, rejected = (float(sums[f"{answer}_reward_sum"]) / pairs for answer in ("chosen", "rejected"))
        return {
            "loss": float(sums["loss_sum"]) / pairs,
            "reward_accuracy": float(sums["higher"]) / pairs,
            "preference_accuracy": float(sums["preferred"]) / pairs,
            "reward_margin": chosen - rejected,
            "chosen_reward": chosen,
            "rejected_reward": rejected,
        }

    def untrained_figures(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return those of the reference model. Rewards are relative to it: it has none, and can only guess by them."""
        preferred = float(sums["reference_preferred"]) / float(sums["pairs"])
        return {"loss": _FIRST_LOSS, "reward_accuracy": 0.5, "preference_accuracy": preferred}

    def log_probabilities(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return what the model gives each token of an answer, given those before it; 0 elsewhere. [rows, length]"""
        predicted, _ = self._predicted(model, batch)
        return torch.cat([torch.zeros_like(predicted[:, :1]), predicted[:, :-1]], dim=1)

    def _predicted(self, model: torch.nn.Module, batch: Tensors, **options: Any) -> tuple[torch.Tensor, Any]:
        """Return the log-probability of the token after each, where that is of an answer, and the model's outputs."""
        rows = rows_of(batch, self._text)
        losses, outputs = self._cross_entropy(model, rows, "none", **options)
        return -losses.view_as(rows.labels), outputs

    def _rewards(self, model: torch.nn.Module, batch: Tensors) -> tuple[_Rewards, Any]:
        predicted, outputs = self._predicted(model, batch, **self._router_options(batch))
        # Token by token: the difference of two sums of hundreds of nats would lose the digits that matter.
        reference, numbers = batch[REFERENCE_ARRAY][:, 1:], batch["documents"][:, 1:].long()
        of_documents = self._sums_of_documents(predicted[:, :-1] - reference, numbers)
        rewards = self.settings.beta * of_documents.unflatten(1, (-1, 2))
        is_pair = torch.arange(rewards.shape[1], device=rewards.device) < _pairs_of_rows(batch)[:, None]
        to_reference = self._sums_of_documents(reference, numbers).unflatten(1, (-1, 2))
        return _Rewards(rewards[..., 0], rewards[..., 1], is_pair, to_reference[..., 0] - to_reference[..., 1]), outputs

    def _sums_of_documents(self, values: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Return the sums of each document's values, [rows, documents]; of as many as a row may have."""
        most = 2 * (self._length // _LEAST_TOKENS_OF_PAIR)
        rows = torch.arange(len(values), device=values.device)[:, None]
        # index_add has a deterministic backward and forward pass on GPUs too, which scatter_add lacks.
        sums = values.new_zeros(len(values) * (most + 1))
        sums = sums.index_add(0, (rows * (most + 1) + documents).flatten(), values.flatten())
        return sums.view(len(values), most + 1)[:, 1:]

    def _losses(self, rewards: _Rewards) -> torch.Tensor:
        """Return each pair's loss, with label smoothing that of Mitchell's conservative DPO, 2023; 0 without a pair."""
        margins, flipped = rewards.margins, self.settings.label_smoothing
        losses = -(1 - flipped) * functional.logsigmoid(margins)
        if flipped > 0:
            losses = losses - flipped * functional.logsigmoid(-margins)
        return losses * rewards.is_pair

    def _require_content(self, manifest: Manifest) -> TokenText:
        if manifest.text is None or manifest.content != "preferences":
            raise StepError(
                f"the task preferences needs pairs of answers; this dataset holds {manifest.content} (prepare_chat "
                "--preferences true writes pairs)"
            )
        return manifest.text


def _pairs_of_rows(batch: Tensors) -> torch.Tensor:
    return batch["documents"].long().amax(dim=1) // 2
