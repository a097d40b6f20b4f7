"""How old rollouts may be: one definition, at consumption, and what becomes of those that are older."""

from dataclasses import replace
from itertools import permutations

import pytest

from schemas import make
from schemas.events import DropReason, FinishReason, GroupStatus, RewardKind, RolloutGroupCompleted, TrajectoryRecorded
from schemas.packed import pack_ids, pack_logprobs, pack_mask
from streams.pool.boundary import Candidate, evidence_of, selected
from streams.pool.settings import PoolConfig
from trainer.rollouts.groups import update_batch_from_events
from trainer.rollouts.staleness import Bound, StalePolicy, may_begin, sorted_out, staleness, why_dropped
from trainer.update.minibatches import minibatches

STEP = 7


def body(task_id, index, policy_version=STEP - 1, reward=0.5, format_hash="f"):
    return make(
        TrajectoryRecorded,
        "run",
        group_id="g",
        task_id=task_id,
        step=STEP,
        rollout_index=index,
        policy_version=policy_version,
        token_ids=pack_ids([1, 2]),
        logprobs=pack_logprobs([0, -1]),
        mask=pack_mask([0, 1]),
        messages=(),
        turn_verdicts=(1,),
        reward=reward,
        format_reward=1.0,
        finish_reason=FinishReason.FINISHED,
        format_hash=format_hash,
    )


def group(task_id, versions, rewards=None, format_hash="f"):
    """A group whose rollouts were sampled under given versions, and its bodies by id."""
    rewards = rewards or [0.1 * number for number in range(len(versions))]
    bodies = [body(task_id, k, v, r, format_hash) for k, (v, r) in enumerate(zip(versions, rewards, strict=True))]
    event = make(
        RolloutGroupCompleted,
        "run",
        task_id=task_id,
        step=STEP,
        epoch=0,
        status=GroupStatus.COMPLETED,
        policy_version=min(versions),
        num_rollouts=len(bodies),
        num_valid=len(bodies),
        rewards=tuple(rewards),
        format_rewards=(1.0,) * len(bodies),
        turn_verdicts=((1,),) * len(bodies),
        codes=((1,),) * len(bodies),
        trajectory_ids=tuple(b.trajectory_id for b in bodies),
    )
    return event, {b.trajectory_id: b for b in bodies}


def batch_of(*groups):
    return [g for g, _ in groups], {key: value for _, bodies in groups for key, value in bodies.items()}


def test_a_rollout_of_the_weights_that_the_step_learns_on_top_of_is_fresh():
    assert [staleness(STEP, version) for version in (6, 5, 0)] == [0, 1, 6]


@pytest.mark.parametrize(("bound", "kept"), [(0, ["a"]), (1, ["a", "b"]), (3, ["a", "b", "c"])])
def test_what_is_older_than_the_bound_stays_out_and_every_such_group_is_an_event(bound, kept):
    groups, bodies = batch_of(group("a", [6, 6]), group("b", [5, 5]), group("c", [3, 3]))
    left, dropped = sorted_out(groups, bodies, Bound(bound))
    assert [g.task_id for g in left] == kept
    assert [(d.task_id, d.reason, d.staleness, d.num_rollouts) for d in dropped] == [
        (g.task_id, DropReason.STALE, staleness(STEP, g.policy_version), 2) for g in groups if g.task_id not in kept
    ]


def test_one_old_rollout_makes_its_group_old_for_a_group_is_learned_whole():
    event, bodies = group("a", [6, 6, 4])
    assert event.policy_version == 4
    assert why_dropped(event, bodies, Bound(1)) is DropReason.STALE
    assert why_dropped(event, bodies, Bound(2)) is None


def test_one_rejected_group_does_not_starve_the_step():
    groups, bodies = batch_of(group("a", [6, 6]), group("b", [1, 1]), group("c", [6, 6]))
    left, _ = sorted_out(groups, bodies, Bound(0))
    batch = update_batch_from_events(STEP, left, bodies, RewardKind.PROGRESS)
    assert batch.num_groups == 2 and len(batch.sequences) == 4
    assert {s.group for s in batch.sequences} == {0, 1}


def test_a_step_all_of_whose_groups_are_too_old_is_an_empty_update_and_not_an_endless_wait():
    groups, bodies = batch_of(group("a", [0, 0]), group("b", [1, 1]))
    left, dropped = sorted_out(groups, bodies, Bound(2))
    assert left == [] and len(dropped) == 2
    assert update_batch_from_events(STEP, left, bodies, RewardKind.PROGRESS).sequences == ()


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("abcd")])
def test_groups_of_equal_scores_and_ages_keep_the_order_of_the_batch_all_the_way_into_the_update(order):
    groups, bodies = batch_of(*(group(name, [5, 5], rewards=[0.5, 0.5]) for name in order))
    left, _ = sorted_out(groups, bodies, Bound(1))
    assert [g.task_id for g in left] == list(order)
    batch = update_batch_from_events(STEP, left, bodies, RewardKind.PROGRESS)
    assert [s.group for s in batch.sequences] == [0, 0, 1, 1, 2, 2, 3, 3]
    cut = minibatches(batch.sequences, 2)
    assert [[s.group for s in part] for part in cut] == [[0, 0, 1, 1], [2, 2, 3, 3]]


class Unordered(Candidate):
    """A candidate that must not be asked which of two is less."""

    def __lt__(self, other):
        raise AssertionError("equal scores were settled by comparing what is ranked")

    __gt__ = __le__ = __ge__ = __lt__


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("abcd")])
def test_equal_scores_of_tasks_that_wait_for_a_place_are_settled_by_the_task_id_alone(order):
    evidence = evidence_of(group("a", [6] * 4, rewards=[1.0, 0.0, 1.0, 0.0])[0], PoolConfig())
    waiting = [Unordered(name, "base", evidence, rested=True) for name in order]
    chosen = selected(waiting, PoolConfig(quota={"base": 3}), "draw")
    assert [(candidate.task_id, rank) for candidate, rank in chosen] == [("a", 0), ("b", 1), ("c", 2)]


@pytest.mark.parametrize("name", ["format_hash", "sampling_json"])
def test_rollouts_sampled_otherwise_than_the_run_says_are_refused_whatever_their_age(name):
    event, bodies = group("a", [6, 6])
    same = {key: replace(body, **{name: "ours"}) for key, body in bodies.items()}
    bound = Bound(5, **{name: "ours"})
    assert why_dropped(event, same, bound) is None
    first = next(iter(bodies))
    for value in ("other", ""):
        assert (
            why_dropped(event, {**same, first: replace(same[first], **{name: value})}, bound)
            is DropReason.FORMAT_MISMATCH
        )
        assert why_dropped(event, {**same, first: replace(same[first], **{name: value})}, Bound(5)) is None


def test_a_waiting_worker_begins_exactly_what_will_be_fresh_enough_when_it_is_consumed():
    for bound in range(4):
        for version in range(4):
            for step in range(version + 1, version + 8):
                waits = not may_begin(step, version, Bound(bound))
                assert waits == (staleness(step, version) > bound)
                assert may_begin(step, version, Bound(bound, StalePolicy.DROP))
