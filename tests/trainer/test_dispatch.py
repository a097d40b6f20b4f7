"""Who plays what, folded from the log: claims, attempts, and which batches are within reach."""

import random

from schemas import make
from schemas.events import BatchPlanned, EpochPlanned, GroupClaimed, GroupReopened, WeightsSynced
from trainer.rollouts.dispatch import Dispatch, foreseen, upcoming
from trainer.rollouts.staleness import Bound, StalePolicy

ORDER = ("a", "b", "c", "d", "e")


def claim(worker, attempt=0, task_id="a", step=3):
    return make(
        GroupClaimed, "run", step=step, task_id=task_id, attempt=attempt, worker=worker, policy_version=step - 1
    )


def reopened(attempt, task_id="a", step=3):
    return make(GroupReopened, "run", step=step, task_id=task_id, attempt=attempt, detail="")


def folded(*events):
    dispatch = Dispatch()
    for event in events:
        dispatch.hear(event)
    return dispatch


def test_the_first_claim_of_an_attempt_in_the_log_has_it():
    dispatch = folded(claim("w2"), claim("w1"))
    assert dispatch.claim_of((3, "a")).worker == "w2"
    assert dispatch.held_by("w2") == [(3, "a")] and dispatch.held_by("w1") == []


def test_a_reopened_group_is_free_again_and_the_old_claim_has_nothing():
    dispatch = folded(claim("w1"), reopened(1))
    assert dispatch.attempt_of((3, "a")) == 1 and dispatch.claim_of((3, "a")) is None
    dispatch.hear(claim("w2", attempt=1))
    assert dispatch.claim_of((3, "a")).worker == "w2" and dispatch.held_by("w1") == []


def test_claims_heard_twice_or_late_change_nothing():
    events = [claim("w1"), reopened(1), claim("w2", attempt=1), claim("w3", attempt=1)]
    dispatch = folded(*events, *events, reopened(1), claim("w9", attempt=0))
    assert dispatch.claim_of((3, "a")).worker == "w2"


def test_after_a_restart_the_same_groups_are_taken_as_before_and_nothing_leaks():
    events = [claim("w1", task_id=t) for t in ORDER[:3]] + [reopened(1, "b"), claim("w2", 1, "b"), claim("w1", step=4)]
    before, after = folded(*events), folded(*events, *events)
    keys = [(step, task_id) for step in (3, 4) for task_id in ORDER]
    assert [after.claim_of(key) for key in keys] == [before.claim_of(key) for key in keys]
    after.forget_before(4)
    assert [key for key in keys if after.claim_of(key)] == [(4, "a")]


def test_the_newest_version_of_each_target_is_known_in_whatever_order_it_is_heard():
    events = [
        make(WeightsSynced, "run", policy_version=version, target=target, transport="folder", weights_digest="")
        for target in ("x", "y")
        for version in range(4)
    ]
    for seed in range(5):
        random.Random(seed).shuffle(events)
        assert {t: e.policy_version for t, e in folded(*events).synced.items()} == {"x": 3, "y": 3}


def epoch(first_step=4):
    return make(
        EpochPlanned,
        "run",
        epoch=1,
        stage="full",
        first_step=first_step,
        num_steps=3,
        injected=(),
        retired=(),
        order=ORDER,
        num_human=5,
        num_generated=0,
        num_queued=0,
        input_cursor=(),
    )


def batch(step, task_ids, is_last=False):
    return make(BatchPlanned, "run", step=step, epoch=1, task_ids=task_ids, is_last_of_epoch=is_last, input_cursor=())


def test_batches_of_an_epoch_are_foreseen_exactly_as_they_will_be_said():
    plans = {4: batch(4, ("a", "b"))}
    said = [batch(4, ("a", "b")), batch(5, ("c", "d")), batch(6, ("e",), True)]
    assert [foreseen(step, plans, {1: epoch()}) for step in (4, 5, 6)] == said
    assert foreseen(7, plans, {1: epoch()}) is None


def test_nothing_is_foreseen_before_the_epoch_has_its_first_batch():
    assert foreseen(5, {}, {1: epoch()}) is None


def test_a_worker_looks_ahead_as_far_as_the_bound_lets_it_and_never_beyond_the_epoch():
    plans, epochs = {4: batch(4, ("a", "b"))}, {1: epoch()}

    def steps(version, bound):
        return [plan.step for plan in upcoming(4, version, bound, plans, epochs)]

    assert steps(3, Bound(0)) == [4]
    assert steps(3, Bound(1)) == [4, 5]
    assert steps(2, Bound(0)) == []
    assert steps(3, Bound(9)) == [4, 5, 6]
    assert steps(0, Bound(0, StalePolicy.DROP)) == [4, 5, 6]
