"""From plan to events, and from recorded events to an update."""

from dataclasses import replace

import numpy as np
import pytest

from schemas import decode, encode, make
from schemas.events import BatchPlanned, FinishReason, GroupStatus, RewardKind
from schemas.packed import unpack_ids, unpack_logprobs, unpack_mask
from streams.pool.boundary import evidence_of
from streams.pool.settings import PoolConfig
from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model, toy_task
from trainer.replay.playing import group_divergence
from trainer.rollouts.episodes import UnplayableTask
from trainer.rollouts.groups import (
    PlayedBy,
    batch_metrics,
    group_status,
    groups_of,
    play_batch,
    rewards_of,
    update_batch_from_events,
)
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import SamplingParams
from trainer.rollouts.staleness import Bound, sorted_out
from trainer.rollouts.vllm_server_sampler import VllmServerSampler

TASKS = {task.task_id: task for task in (toy_task("base_0", 2), toy_task("base_1", 3), toy_task("base_2", 1))}
PARAMS = SamplingParams(seed=5, max_message_tokens=30, max_episode_tokens=120)
K = 4


def plan_of(task_ids=tuple(TASKS), step=3):
    return make(BatchPlanned, "run", step=step, epoch=0, task_ids=task_ids, is_last_of_epoch=False, input_cursor=())


def play(new_episode=ToyEpisode, plan=None):
    return play_batch(plan or plan_of(), TASKS, K, HFSampler(toy_model(), ToyTemplate()), PARAMS, new_episode)


@pytest.fixture(scope="module")
def trajectories():
    return play()


@pytest.fixture(scope="module")
def groups(trajectories):
    return groups_of(plan_of(), trajectories)


def by_id(trajectories):
    return {trajectory.trajectory_id: trajectory for trajectory in trajectories}


def test_a_planned_batch_becomes_k_bodies_a_task_and_one_group_a_task(trajectories, groups):
    assert [(t.task_id, t.rollout_index) for t in trajectories] == [(task_id, k) for task_id in TASKS for k in range(K)]
    assert [group.task_id for group in groups] == list(TASKS)
    assert len(by_id(trajectories)) == 3 * K
    for number, group in enumerate(groups):
        members = trajectories[number * K : (number + 1) * K]
        assert group.trajectory_ids == tuple(member.trajectory_id for member in members)
        assert {member.group_id for member in members} == {group.group_id}
        assert group.rewards == tuple(member.reward for member in members)
        assert group.codes == tuple(tuple(message.code for message in member.messages) for member in members)
        assert {len(verdicts) for verdicts in group.turn_verdicts} == {len(TASKS[group.task_id].turns)}
        assert (group.status, group.num_valid, group.policy_version) == (GroupStatus.COMPLETED, K, 2)


def test_a_rollout_that_spans_an_update_names_both_versions_and_is_as_stale_as_its_oldest_token():
    server = FakeVllm()
    server.label = "4/way"
    num_messages = iter(range(100))
    server.on_completion = lambda body: setattr(server, "label", "4/way" if next(num_messages) < 1 else "5/way")
    sampler = VllmServerSampler(
        "http://fake:1", ToyTemplate(), client=server.client(), transport=server.transport, needs_version=True
    )
    plan = plan_of(("base_1",), step=7)
    bodies = play_batch(plan, TASKS, 2, sampler, replace(PARAMS, max_episode_tokens=200), ToyEpisode, by=PlayedBy(6))
    spanning = next(body for body in bodies if body.version_spans)
    starts = [int(at) + 1 for at in np.flatnonzero(np.diff(unpack_mask(spanning.mask).astype(int)) == 1)]
    assert [span.policy_version for span in spanning.version_spans] == [4, 5]
    assert spanning.version_spans[0].first_token == starts[0] and spanning.version_spans[1].first_token in starts[1:]
    assert spanning.policy_version == 4 and decode(encode(spanning)) == spanning
    (group,) = groups_of(plan, bodies)
    assert group.policy_version == 4
    assert batch_metrics([group], by_id(bodies))["staleness_max"] == 2.0
    assert sorted_out([group], by_id(bodies), Bound(max_staleness=2))[0] == [group]
    kept, (dropped,) = sorted_out([group], by_id(bodies), Bound(max_staleness=1))
    assert kept == [] and (dropped.staleness, dropped.policy_version) == (2, 4)


def test_every_event_names_its_plan_as_cause_and_survives_the_wire(trajectories, groups):
    for event in (*trajectories, *groups):
        assert event.caused_by == plan_of().event_id
        assert decode(encode(event)) == event


def test_playing_again_gives_the_same_events(trajectories):
    assert play() == trajectories


def test_another_step_plays_other_rollouts_under_other_ids(trajectories):
    others = play(plan=plan_of(step=4))
    assert not by_id(others).keys() & by_id(trajectories).keys()
    assert [t.token_ids for t in others] != [t.token_ids for t in trajectories]


def test_packed_bodies_hold_ids_logprobs_and_mask_of_one_length(trajectories):
    for trajectory in trajectories:
        ids_T, logprobs_T = unpack_ids(trajectory.token_ids), unpack_logprobs(trajectory.logprobs)
        mask_T = unpack_mask(trajectory.mask)
        assert len(ids_T) == len(logprobs_T) == len(mask_T)
        assert (logprobs_T[mask_T == 1] < 0).all() and (logprobs_T[mask_T == 0] == 0).all()


class NoReward(ToyEpisode):
    reward = format_reward = float("nan")


class OneBreaks(ToyEpisode):
    num_made = 0

    def __init__(self, task):
        super().__init__(task)
        OneBreaks.num_made += 1
        self.is_broken = OneBreaks.num_made == 2

    def step(self, text):
        if self.is_broken:
            raise RuntimeError("the tool broke")
        return super().step(text)


def test_a_reward_that_is_not_finite_is_null_and_the_group_failed():
    groups = groups_of(plan_of(), play(NoReward))
    assert {group.status for group in groups} == {GroupStatus.FAILED}
    assert groups[0].rewards == groups[0].format_rewards == (None,) * K
    batch = update_batch_from_events(3, groups, by_id(play(NoReward)), RewardKind.PROGRESS)
    assert batch.sequences == () and batch.num_groups == 3


def test_a_rollout_that_breaks_makes_its_group_partial_and_is_not_learned_from():
    OneBreaks.num_made = 0
    trajectories = play(OneBreaks)
    assert trajectories[1].finish_reason is FinishReason.ERROR and "the tool broke" in trajectories[1].detail
    groups = groups_of(plan_of(), trajectories)
    assert [group.status for group in groups] == [GroupStatus.PARTIAL, GroupStatus.COMPLETED, GroupStatus.COMPLETED]
    assert groups[0].num_valid == K - 1 and "the tool broke" in groups[0].detail
    batch = update_batch_from_events(3, groups, by_id(trajectories), RewardKind.PROGRESS)
    assert len(batch.sequences) == 3 * K - 1


def test_a_task_that_cannot_start_ends_in_a_failed_group_and_the_others_are_played(trajectories):
    def new_episode(task):
        if task.task_id == "base_1":
            raise UnplayableTask("task base_1: cannot start")
        return ToyEpisode(task)

    played = play(new_episode)
    groups = groups_of(plan_of(), played)
    assert [group.status for group in groups] == [GroupStatus.COMPLETED, GroupStatus.FAILED, GroupStatus.COMPLETED]
    assert groups[1].detail == "task base_1: cannot start" and groups[1].num_rollouts == K
    assert [t.token_ids for t in played[:K]] == [t.token_ids for t in trajectories[:K]]
    assert decode(encode(groups[1])) == groups[1]


@pytest.mark.parametrize(
    ("num_valid", "status"),
    [
        (4, GroupStatus.COMPLETED),
        (3, GroupStatus.PARTIAL),
        (2, GroupStatus.PARTIAL),
        (1, GroupStatus.FAILED),
        (0, GroupStatus.FAILED),
    ],
)
def test_a_group_with_fewer_than_half_of_its_rollouts_valid_is_no_observation(num_valid, status):
    assert group_status(num_valid, 4) is status


def test_the_update_is_made_of_recorded_values_alone(trajectories, groups):
    wire = [decode(encode(trajectory)) for trajectory in trajectories]
    batch = update_batch_from_events(3, [decode(encode(g)) for g in groups], by_id(wire), RewardKind.PROGRESS)
    assert (batch.step, batch.num_groups) == (3, 3)
    for number, group in enumerate(groups):
        advantages_G = np.array([s.advantage for s in batch.sequences if s.group == number])
        rewards_G = np.array(group.rewards)
        expected_G = (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(advantages_G, expected_G, atol=1e-9)
    assert batch.num_trained_tokens == sum(int(unpack_mask(t.mask).sum()) for t in trajectories)


def test_a_group_without_variance_stays_with_zero_advantage_and_is_counted(trajectories, groups):
    flat = [replace(groups[0], rewards=(0.5,) * K), *groups[1:]]
    batch = update_batch_from_events(3, flat, by_id(trajectories), RewardKind.PROGRESS)
    assert [s.advantage for s in batch.sequences if s.group == 0] == [0.0] * K
    signal_free = sum(len(set(group.rewards)) == 1 for group in flat)
    assert batch.num_zero_variance == signal_free >= 1


def test_the_three_rewards_come_from_the_same_group(groups):
    group = replace(
        groups[0],
        rewards=(0.5, 1.0, None, 0.0),
        format_rewards=(1.5, 2.0, 1.0, 0.0),
        turn_verdicts=((1, 0), (1, 1), (1, 1), (0, 0)),
    )
    np.testing.assert_array_equal(rewards_of(group, RewardKind.PROGRESS), [0.5, 1, np.nan, 0])
    np.testing.assert_array_equal(rewards_of(group, RewardKind.FORMAT), [1.5, 2, np.nan, 0])
    np.testing.assert_array_equal(rewards_of(group, RewardKind.BINARY), [0, 1, np.nan, 0])


def test_metrics_of_the_batch_are_finite_means_over_its_rollouts(trajectories, groups):
    metrics = batch_metrics(groups, by_id(trajectories))
    assert metrics["reward_mean"] == pytest.approx(np.mean([t.reward for t in trajectories]))
    assert metrics["valid_frac"] == 1
    assert metrics["episode_tokens_max"] == max(len(t.mask) for t in trajectories)
    assert all(np.isfinite(value) for value in batch_metrics([], {}).values())


def test_a_rollout_that_no_record_can_hold_is_invalid_and_the_others_stay():
    class Wordy(ToyEpisode):
        def step(self, text):
            done = super().step(text)
            if self.task.task_id == "base_1":
                self.messages = tuple(replace(m, results=("x" * 1_000_000,) * 8) for m in self.messages)
            return done

    bodies = play(Wordy)
    large = [body for body in bodies if body.task_id == "base_1"]
    assert all(body.reward is None and not body.messages for body in large)
    assert all(body.finish_reason is FinishReason.ERROR and "a record holds" in body.detail for body in large)
    assert all(len(encode(body)) < 8_000_000 for body in bodies)
    assert [body.reward for body in bodies if body.task_id != "base_1"] == [
        body.reward for body in play() if body.task_id != "base_1"
    ]


@pytest.mark.parametrize(
    ("frac", "status"), [(0.25, GroupStatus.PARTIAL), (0.5, GroupStatus.FAILED), (0.3, GroupStatus.FAILED)]
)
def test_how_much_of_a_group_must_be_valid_is_what_the_pool_says(trajectories, frac, status):
    plan = plan_of(("base_0",))
    members = [t if t.rollout_index == 0 else replace(t, reward=None) for t in trajectories if t.task_id == "base_0"]
    (group,) = groups_of(plan, members, frac)
    assert group.status is status is group_status(1, 4, frac)
    is_observation = evidence_of(group, PoolConfig(min_valid_frac=frac)) is not None
    assert is_observation is (status is GroupStatus.PARTIAL)
    assert group_divergence(group, by_id(members), frac) is None
