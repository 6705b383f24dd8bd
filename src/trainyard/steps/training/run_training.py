"""From settings to a trained model: the ranks meet, train, and save the model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from trainyard.settings.steps.training import Training
from trainyard.steps.runtime.errors import STOPPED_EXIT_CODE
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.rank_variables import read_rank_variables
from trainyard.steps.runtime.world import World, banner, join_world, lost_connections_explained, set_gpu_defaults
from trainyard.steps.training.adapters import save_trained_model
from trainyard.steps.training.building import build_training
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.loop import TrainingRun, save_last_checkpoint, train
from trainyard.steps.training.observing.hang_watch import HangWatch, late_ranks_named
from trainyard.steps.training.observing.observer import memory_summary
from trainyard.steps.training.randomness import random_state, restore_random_state
from trainyard.steps.training.request import CheckedRequest, check_request, require_same_settings
from trainyard.steps.training.stopping import ScheduledEvents, StopRequest, choose_url
from trainyard.steps.training.tasks.task import require_loss

_COLLECTIVES_FOLDER = "collectives"
"""Within `metrics`: what each rank's last collectives were when the training hung."""


def run_training(
    given: GivenSettings[Training],
    step_name: str,
    engine_class: type[Engine],
    stop_request: StopRequest,
    train_to_the_end: Callable[[TrainingRun], bool] = train,
    check: Callable[..., CheckedRequest] = check_request,
) -> int:
    """Train and save the model. Return the step's exit code: 0, or STOPPED_EXIT_CODE.

    `train_to_the_end` takes every step that is left; it returns False if the training was asked to stop before its end.
    StepError for whatever the user can fix; what can be checked without the other ranks is checked before they meet.
    """
    settings = given.step
    events_url = choose_url(settings.scheduled_events_url, os.environ)
    with ranks_met(given, step_name, engine_class, check) as (request, world, hang_watch):
        with ExitStack() as opened:
            if events_url is not None and world.local_rank == 0:
                opened.callback(ScheduledEvents(events_url, stop_request.ask).close)
            world.log(str(request.used))
            request = request.base_model_read(world, hang_watch)
            run = build_training(request, world, stop_request, hang_watch, opened)
            started, steps_before = time.monotonic(), run.progress.step
            is_complete = _train_and_save(run, request, train_to_the_end)
        seconds, steps = time.monotonic() - started, run.progress.step - steps_before
        if steps:
            world.log(f"at the end: {memory_summary(world)}; {run.observer.measures.summary(seconds)}")
        if not is_complete:
            return _log_stop(run, steps)
        validation = run.observer.recorder.last_validation
        figures = "".join(f", validation {name} {value:.4f}" for name, value in validation.items())
        world.log(f"trained {steps} steps in {seconds:.1f} s{figures}; {settings.model}")
        return 0


@contextmanager
def ranks_met(
    given: GivenSettings[Training],
    step_name: str,
    engine_class: type[Engine],
    check: Callable[..., CheckedRequest] = check_request,
) -> Iterator[tuple[CheckedRequest, World, HangWatch]]:
    """Check the request, and yield it with the ranks that met and agree on it, and the watch over them."""
    settings = given.step
    variables = read_rank_variables(os.environ)
    request = check(given, step_name, engine_class, variables.world_size)
    require_writable((settings.model, settings.checkpoints, settings.metrics), variables.rank)
    if torch.cuda.is_available():
        set_gpu_defaults(os.environ, deterministic=settings.deterministic)
    hang_watch = HangWatch(
        variables,
        settings.process_group_timeout_seconds,
        ends_before_timeout=torch.cuda.is_available(),
        collectives_folder=settings.metrics / _COLLECTIVES_FOLDER,
    )
    with (
        late_ranks_named(hang_watch),
        lost_connections_explained(variables.rank),
        join_world(settings.process_group_timeout_seconds) as world,
    ):
        world.log(banner(world.device, world.variables))
        hang_watch.start()
        require_same_settings(request, world)
        yield request, world, hang_watch


def _train_and_save(run: TrainingRun, request: CheckedRequest, train_to_the_end: Callable[[TrainingRun], bool]) -> bool:
    """Return whether the training has come to its end."""
    warm_up(run)
    if not train_to_the_end(run):
        return False
    if run.validation.ends(run.progress):
        run.world.log(run.validation.why_it_ends(run.progress))
    failures: list[Exception] = []

    def save() -> None:
        try:
            save_trained_model(run.task, model, run.settings)
            request.chosen_task.write(run.settings.model, request.base_digest)
        except Exception as failure:  # raised below: whatever is wrong with the model, its training is kept
            failures.append(failure)

    # Engines build a new model to put the weights into, which draws random numbers that no step may miss.
    state = random_state(run.world.device)
    with run.engine.averaged():
        with run.observer.long_work("saving the model"):
            run.engine.align_ranks()
            model = run.engine.whole_model()
        run.world.let_main_work(save, run.observer.still_at_work)
    restore_random_state(state, run.world.device)
    save_last_checkpoint(run)
    if failures:
        raise failures[0]
    run.observer.recorder.complete()
    return True


def warm_up(run: TrainingRun) -> None:
    """Let the engine settle on one sample, the same on every rank. Random generators are left as they were."""
    run.observer.begins("warming up")
    sample = run.batches.first_sample()
    state = random_state(run.world.device)

    def loss() -> torch.Tensor:
        with run.precision.autocast():
            return require_loss(run.task.loss(run.engine.model, sample)) * 0.0

    run.engine.warm_up(loss)
    restore_random_state(state, run.world.device)


def _log_stop(run: TrainingRun, steps: int) -> int:
    reasons = " and ".join(sorted({reason for reason in run.world.gather(run.stop_request.reason) if reason}))
    if steps:
        run.world.log(
            f"stopped after step {run.progress.step} of {run.plan.total_steps} because of {reasons}; its checkpoint is "
            "committed: run the same command again to continue from it"
        )
    else:
        run.world.log(f"stopped before the first step because of {reasons}; run the same command again to start")
    return STOPPED_EXIT_CODE
