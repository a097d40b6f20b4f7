"""Forks and rescoring of a recorded run."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from analysis.conservation import duplicate, missing
from analysis.fork import ForkMode, NothingToFork, renamed, shared_past
from analysis.index import RunIndex
from analysis.lineage import learned
from analysis.rescore import reread
from schemas import BY_NAME, decode, event_id, make
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    DropReason,
    GroupClaimed,
    GroupReopened,
    RolloutGroupCompleted,
    RolloutsDropped,
    StepCompleted,
    TaskSynthesized,
    WeightsSynced,
)
from schemas.identity import identity_of
from streams.pool.decide import decide
from streams.pool.pool import Pool, apply, initial
from streams.pool.settings import PoolConfig
from tests.golden.make import samples
from tests.streams.building import RUN, run_started
from tests.streams.scripted import of, play
from tests.streams.test_fold import SETTINGS, mean_of


def recorded() -> tuple[Pool, list]:
    return play(7, 5, SETTINGS, mean_of, fails=lambda t: t.endswith("3"))


def test_a_fork_takes_over_the_past_up_to_its_step_and_nothing_later() -> None:
    _, events = recorded()
    past = shared_past(events, 4, ForkMode.CONTINUE)
    assert max(e.step for e in of(past, BatchPlanned)) == max(e.step for e in of(past, StepCompleted)) == 4
    assert {s.signal_id for s in of(past, TaskSynthesized)} <= {s.signal_id for s in of(past, BoundaryDetected)}
    assert missing(RunIndex().add(past)) == []


def test_every_id_in_the_fork_is_the_one_it_would_have_had_there() -> None:
    _, events = recorded()
    copied = renamed(shared_past(events, 6, ForkMode.CONTINUE), "other")
    ids = {event.event_id for event in copied}
    for event in copied:
        assert event.run_id == "other"
        assert event.event_id == event_id("other", type(event).__name__, *identity_of(event))
    for event in of(copied, TaskSynthesized):
        assert event.signal_id in ids and event.caused_by in ids
    assert not ids & {event.event_id for event in events}


def test_a_fork_with_the_same_settings_goes_on_as_its_parent_did() -> None:
    _, events = recorded()
    pool = initial()
    for event in [run_started(SETTINGS, "other"), *renamed(shared_past(events, 5, ForkMode.CONTINUE), "other")]:
        pool = apply(pool, event)
    following = next(e for e in events if isinstance(e, BatchPlanned) and e.step == 6)
    due = decide(pool)
    assert [e.task_ids for e in due if isinstance(e, BatchPlanned)] == [following.task_ids]


def test_a_fork_with_other_settings_decides_differently_from_there_on() -> None:
    _, events = recorded()
    at = next(e.step for e in of(events, BatchPlanned) if e.is_last_of_epoch)
    pool = initial()
    for event in [
        run_started({**SETTINGS, "static_pool": True}, "o"),
        *renamed(shared_past(events, at, ForkMode.CONTINUE), "o"),
    ]:
        pool = apply(pool, event)
    plan = next(e for e in decide(pool) if type(e).__name__ == "EpochPlanned")
    assert plan.injected == ()


def dispatched(events: list) -> list:
    """The run with a group of step 2 that was claimed, reopened and played twice, one of step 3 that was dropped, and
    weights handed over."""
    first, second = ([e for e in of(events, RolloutGroupCompleted) if e.step == step][0] for step in (2, 3))
    again = make(
        RolloutGroupCompleted,
        RUN,
        **{n: getattr(first, n) for n in first.__slots__ if n not in ("event_id", "run_id", "group_id", "attempt")},
        attempt=1,
    )
    return [
        *events,
        again,
        make(GroupClaimed, RUN, step=2, task_id=first.task_id, attempt=0, worker="w", policy_version=1),
        make(GroupReopened, RUN, step=2, task_id=first.task_id, attempt=1, detail="w was silent"),
        make(GroupReopened, RUN, step=6, task_id="later", attempt=1, detail="w was silent"),
        make(
            RolloutsDropped,
            RUN,
            caused_by=second.event_id,
            step=3,
            task_id=second.task_id,
            group_id=second.group_id,
            reason=DropReason.STALE,
            num_rollouts=4,
            policy_version=0,
            staleness=2,
        ),
        make(
            WeightsSynced,
            RUN,
            policy_version=2,
            target="/parent",
            transport="folder",
            weights_digest="w",
            probe_gap=None,
        ),
    ]


def test_a_reopened_group_is_no_duplicate_in_the_fork_and_a_dropped_one_stays_dropped() -> None:
    _, events = recorded()
    copied = renamed(shared_past(dispatched(events), 4, ForkMode.CONTINUE), "other")
    assert duplicate(RunIndex().add(copied)) == [] == missing(RunIndex().add(copied))
    (drop,), (opened,) = of(copied, RolloutsDropped), of(copied, GroupReopened)
    groups = {group.group_id: group for group in of(copied, RolloutGroupCompleted)}
    assert groups[drop.group_id].task_id == drop.task_id and drop.caused_by == drop.group_id
    assert drop.event_id == event_id("other", "RolloutsDropped", drop.group_id)
    assert (opened.step, opened.attempt) == (2, 1) and len(of(copied, GroupClaimed)) == 1
    (link,) = learned(RunIndex(whole=True).add(copied), groups[drop.group_id])
    assert link.kind == "drop"


def test_what_a_fork_learns_again_it_drops_again_and_foreign_weights_are_not_its_own() -> None:
    _, events = recorded()
    again = shared_past(dispatched(events), 4, ForkMode.RETRAIN)
    assert not of(again, RolloutsDropped) and len(of(again, GroupReopened)) == 1
    assert not of(again, WeightsSynced) and not of(shared_past(dispatched(events), 4, ForkMode.CONTINUE), WeightsSynced)


@pytest.mark.parametrize("mode", ForkMode)
def test_of_every_event_type_it_is_said_whether_a_fork_shares_it(mode: ForkMode) -> None:
    _, events = recorded()
    everything = [decode(base64.b64decode(sample["bytes"])) for sample in samples().values()]
    assert {type(event).__name__ for event in everything} == set(BY_NAME)
    shared_past([*events, *everything], 4, mode)

    class Unheard:
        step = 1

    with pytest.raises(TypeError, match="Unheard"):
        shared_past([*events, Unheard()], 4, mode)


def test_retraining_keeps_the_rollouts_and_forgets_that_the_steps_were_learned() -> None:
    _, events = recorded()
    past = shared_past(events, 4, ForkMode.RETRAIN)
    assert not of(past, StepCompleted)
    assert len({e.step for e in of(past, RolloutGroupCompleted)}) == 4


def test_a_step_the_run_never_reached_is_refused_with_what_there_is() -> None:
    _, events = recorded()
    with pytest.raises(NothingToFork, match="steps 1 to"):
        shared_past(events, 999, ForkMode.CONTINUE)


def test_rescoring_with_nothing_changed_finds_what_was_recorded() -> None:
    pool, events = recorded()
    again = reread(events, lambda group: group)
    assert again.signals == {(s.step, s.task_id) for s in pool.signals.values()}
    assert again.injected == {number: plan.injected for number, plan in pool.epochs.items()}
    assert again.retired == {task_id: event.reason.value for task_id, event in pool.retired.items()}


def test_rescoring_with_other_rewards_or_thresholds_finds_other_seeds() -> None:
    _, events = recorded()
    zero = reread(events, lambda group: replace(group, rewards=tuple(0.0 for _ in group.rewards)))
    assert zero.signals == set() and set(zero.zones) == {"hard"}
    wide = reread(events, lambda group: group, PoolConfig(**{**SETTINGS, "alpha_low": 0.01, "alpha_high": 0.94}))
    assert wide.zones["boundary"] > reread(events, lambda group: group).zones["boundary"]
