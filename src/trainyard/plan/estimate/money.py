"""What machines cost: dated prices of the catalogue, and what a spot machine's preemptions add to them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.catalogue.prices import KINDS, Price, price_of
from trainyard.plan.estimate.training import Machines

PREEMPTIONS_PER_NODE_HOUR = 0.05
"""How often a spot machine is taken away, an hour: Azure's lowest published class of eviction rates ends at 5 %
(https://learn.microsoft.com/azure/virtual-machines/spot-vms#pricing-and-eviction-history). Assumed, not measured."""

RESTART_SECONDS = 600.0
"""From a start, or a preemption, to the first step: a node allocated, its image and data fetched. Assumed."""

LEAST_CHECKPOINT_SECONDS = 300.0
"""Of a model that is written in no time, checkpoints that are closer lose hardly less work, and fill the storage."""

CHECKPOINT_BYTES_PER_PARAMETER = 12
"""What a checkpoint holds of a parameter: itself and AdamW's two moments in fp32."""

STORAGE_GBIT_PER_SECOND = 60.0
"""What one storage account takes in (https://learn.microsoft.com/azure/storage/common/scalability-targets-standard-account)."""


@dataclass(frozen=True)
class Preemptions:
    """What preemptions cost on spot machines, when checkpoints are written at the best interval."""

    seconds_between: float
    checkpoint_seconds: float
    checkpoint_interval_seconds: float
    lost_share: float


@dataclass(frozen=True)
class Money:
    """Prices of a training's machines. Spot's are None where the catalogue has none; `preemptions` are of spot."""

    on_demand: Price | None
    spot: Price | None
    preemptions: Preemptions


@dataclass(frozen=True)
class WholeTraining:
    """How long all steps of a training take, and what they cost in US dollars; None where there is no price.

    On spot machines they take longer, by what preemptions lose; None too where nothing is left between these.
    """

    steps: int
    seconds: float
    on_demand_usd: float | None
    spot_seconds: float | None
    spot_usd: float | None


def whole_training_of(money: Money, steps: int, seconds: float) -> WholeTraining:
    """Return what so many steps cost, which take so many seconds without a preemption."""
    useful = 1 - money.preemptions.lost_share
    spot_seconds = seconds / useful if money.spot and useful > 0 else None
    return WholeTraining(
        steps,
        seconds,
        on_demand_usd=money.on_demand.usd_per_hour * seconds / 3600 if money.on_demand else None,
        spot_seconds=spot_seconds,
        spot_usd=money.spot.usd_per_hour * spot_seconds / 3600 if money.spot and spot_seconds is not None else None,
    )


def money_of(parameters: int, machines: Machines) -> Money:
    """Return the prices of a training of a model of so many parameters."""
    on_demand, spot = (price_of(machines.sku, kind, machines.nodes) for kind in KINDS)
    return Money(on_demand, spot, preemptions_of(parameters, machines))


def preemptions_of(parameters: int, machines: Machines) -> Preemptions:
    """Return what preemptions take of a training's time.

    The first of all nodes to be taken away stops the training, so the time between preemptions shrinks with their
    number. Of each such time, a share C/W goes into checkpoints and, on average, W/2 of work and the restart are lost.
    """
    between = 3600.0 / PREEMPTIONS_PER_NODE_HOUR / machines.nodes
    writes = CHECKPOINT_BYTES_PER_PARAMETER * parameters / (STORAGE_GBIT_PER_SECOND / 8 * 1e9)
    interval = max(LEAST_CHECKPOINT_SECONDS, young_daly_interval(writes, between))
    lost = min(1.0, writes / interval + (interval / 2 + RESTART_SECONDS) / between)
    return Preemptions(between, writes, interval, lost)


def young_daly_interval(checkpoint_seconds: float, seconds_between_failures: float) -> float:
    """Return the time between checkpoints that loses least: sqrt(2 C M).

    Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher order estimate of
    the optimum checkpoint interval for restart dumps", equation 9.
    """
    return math.sqrt(2 * checkpoint_seconds * seconds_between_failures)


def usd_per_billion(usd_per_hour: float, rate: float) -> float:
    """Return what a billion tokens or samples cost at a rate a second of all GPUs together."""
    return usd_per_hour / 3600 * 1e9 / rate
