"""The watchdog names the one condition a silent run waits for."""

from __future__ import annotations

import pytest

from analysis.watchdog import Watchdog, wait_of
from schemas import Event
from schemas.events import BatchPlanned, BoundaryDetected, EpochPlanned, RolloutGroupCompleted, StepCompleted
from streams.pool.decide import decide
from streams.pool.pool import Pool, apply, initial
from tests.streams.building import constant_group, opening, run_finished, run_started, stage_started, step_completed

SETTINGS = {"batch_size": 2, "cooldown": 0, "await_synthesis": True}


def folded(events: list[Event]) -> Pool:
    pool = initial()
    for event in events:
        pool = apply(pool, event)
    return pool


def planned(num_epochs: int = 2) -> list[Event]:
    """A run up to its first batch."""
    opened = opening(2, num_epochs, SETTINGS)
    return [*opened, *decide(folded(opened))]


def batch_in(events: list[Event]) -> BatchPlanned:
    return next(event for event in reversed(events) if isinstance(event, BatchPlanned))


def played(events: list[Event], mean: float) -> list[Event]:
    """The run after its last batch was played and learned from."""
    batch = batch_in(events)
    return [*events, *(constant_group(task, batch.step, mean) for task in batch.task_ids), step_completed(batch)]


def text(events: list[Event]) -> str:
    return wait_of(folded(events)).text


def test_before_the_first_plan_the_trainer_owes_start_stage_and_seeds() -> None:
    opened = opening(2, 1, SETTINGS)
    assert text([]) == "waiting for RunStarted from the trainer"
    assert text([run_started(SETTINGS)]) == "waiting for StageStarted of epoch 1 from the trainer"
    assert (
        text([run_started(SETTINGS), stage_started(1, ["a", "b"])]) == "waiting for TaskSeeded of a, b from the trainer"
    )
    assert text(opened) == "waiting for EpochPlanned of epoch 1 from the pool worker"
    epoch_only = [*opened, *(e for e in decide(folded(opened)) if isinstance(e, EpochPlanned))]
    assert text(epoch_only) == "waiting for BatchPlanned of step 1 from the pool worker"


def test_missing_groups_are_named_then_the_step() -> None:
    events = planned()
    first, second = batch_in(events).task_ids
    assert text(events) == f"waiting for groups {first}, {second} of step 1 from the trainer"
    events.append(constant_group(first, 1, 0.5))
    assert text(events) == f"waiting for groups {second} of step 1 from the trainer"
    events.append(constant_group(second, 1, 0.5))
    assert text(events) == "waiting for StepCompleted of step 1 from the trainer"


def test_open_signals_are_owed_by_the_synthesizer_and_counted() -> None:
    events = played(planned(), 0.5)
    events += decide(folded(events))
    num = sum(isinstance(event, BoundaryDetected) for event in events)
    assert num == 2
    assert text(events) == "waiting for outcomes of 2 signals from the synthesizer"


def test_after_the_last_epoch_the_end_is_owed() -> None:
    events = played(planned(1), 0.5)
    assert text(events) == "waiting for RunFinished or StageStarted of epoch 2 from the trainer"
    assert wait_of(folded([*events, run_finished(1, 0)])) is None


def test_a_plan_that_is_due_is_owed_by_the_worker() -> None:
    assert text(played(planned(2), 0.0)) == "waiting for EpochPlanned of epoch 2 from the pool worker"


@pytest.mark.parametrize(
    "kinds", [(RolloutGroupCompleted,), (StepCompleted,), (BatchPlanned,), (EpochPlanned, BatchPlanned)]
)
def test_every_unfinished_run_waits_for_something(kinds: tuple[type, ...]) -> None:
    events = played(planned(2), 0.5)
    assert wait_of(folded([event for event in events if not isinstance(event, kinds)])) is not None


def test_the_watchdog_is_silent_until_its_time_and_then_speaks() -> None:
    pool = folded(planned())
    dog = Watchdog(silence_s=60.0, heard_at_s=100.0)
    assert dog.complaint(pool, 159.0) == ""
    assert dog.complaint(pool, 161.0).startswith("nothing came for 61 s: waiting for groups ")
    assert dog.complaint(apply(pool, run_finished(1, 0)), 1000.0) == ""
