"""Rollout workers and the trainer on one log: what is played, by whom, once; and what happens when somebody is lost."""

import asyncio
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from analysis.conservation import duplicate, missing, num_late
from analysis.index import RunIndex
from schemas import TOPICS
from schemas.events import (
    BatchPlanned,
    GroupClaimed,
    GroupReopened,
    GroupStatus,
    RolloutGroupCompleted,
    RolloutsDropped,
    RunFinished,
    RunOutcome,
    StepCompleted,
    TrajectoryRecorded,
    WeightsSynced,
)
from streams.log.port import LogUnavailable
from tests.trainer.test_loop import new_log as inline_log
from tests.trainer.test_loop import setup_of
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model
from tests.trainer.workers import events_of, new_log, reader_of, trainer_of, worker_config, worker_of, worker_setup
from trainer.loop import train
from trainer.rollouts.episodes import UnplayableTask
from trainer.rollouts.held_weights import WrongWeights
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.staleness import StalePolicy
from trainer.rollouts.worker import RolloutWorker


@contextmanager
def working(*workers):
    """Workers in threads of their own; all must end by themselves."""
    failures = []

    def work(worker):
        try:
            worker.work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """The same run, played by the trainer itself."""
    log = inline_log()
    assert train(setup_of(log, tmp_path_factory.mktemp("inline"), suites=())) is RunOutcome.COMPLETED
    return log


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory):
    """A run whose one worker plays whole batches."""
    log, worker = new_log(), None
    setup = trainer_of(log, tmp_path_factory.mktemp("one"))
    worker = worker_of(log)
    with working(worker):
        assert train(setup) is RunOutcome.COMPLETED
    return log, worker


def digests_of(log):
    return {event.step: event.weights_digest for event in events_of(log, StepCompleted)}


def test_a_worker_that_plays_whole_batches_teaches_the_very_weights_of_the_synchronous_trainer(inline, one_worker):
    assert digests_of(one_worker[0]) == digests_of(inline) and len(digests_of(inline)) == 4


def test_everything_planned_is_claimed_once_and_ends_once_under_its_workers_name(one_worker):
    log, worker = one_worker
    groups = events_of(log, RolloutGroupCompleted)
    assert Counter((g.step, g.task_id) for g in groups) == {
        (plan.step, task_id): 1 for plan in events_of(log, BatchPlanned) for task_id in plan.task_ids
    }
    assert {g.worker for g in groups} == {"w0"} and {g.attempt for g in groups} == {0}
    assert len(events_of(log, GroupClaimed)) == len(groups) == worker.num_groups and worker.num_late == 0
    bodies = {body.trajectory_id: body for body in events_of(log, TrajectoryRecorded)}
    assert sorted(bodies) == sorted(body for g in groups for body in g.trajectory_ids)


def test_a_rollout_says_under_which_weights_format_and_parameters_it_was_sampled(one_worker):
    for body in events_of(one_worker[0], TrajectoryRecorded):
        assert (body.policy_version, body.worker, body.format_hash) == (body.step - 1, "w0", "f")
        assert '"temperature":1.0' in body.sampling_json and '"stop_ids":[]' in body.sampling_json


def test_every_version_is_announced_before_it_is_played_with(one_worker):
    log, _ = one_worker
    assert [e.policy_version for e in events_of(log, WeightsSynced)] == [0, 1, 2, 3, 4]
    started = {0: events_of(log, WeightsSynced)[0].weights_digest}
    assert {e.policy_version: e.weights_digest for e in events_of(log, WeightsSynced)} == {**started, **digests_of(log)}


def test_several_workers_share_the_groups_and_none_is_played_twice(tmp_path):
    log, config = new_log(), worker_config(groups_at_once=1)
    setup = trainer_of(log, tmp_path, config)
    with working(*(worker_of(log, name, config) for name in ("w0", "w1", "w2"))):
        assert train(setup) is RunOutcome.COMPLETED
    groups = events_of(log, RolloutGroupCompleted)
    assert set(Counter((g.step, g.task_id) for g in groups).values()) == {1} and len(groups) == 8
    assert len({body.trajectory_id for body in events_of(log, TrajectoryRecorded)}) == 8 * 3


def test_with_a_bound_above_zero_workers_play_ahead_and_nothing_older_than_the_bound_is_learned_from(tmp_path):
    log, config = new_log(), worker_config(max_staleness=1)
    setup = trainer_of(log, tmp_path, config)
    with working(worker_of(log, config=config)):
        assert train(setup) is RunOutcome.COMPLETED
    ages = {(g.step - 1 - g.policy_version) for g in events_of(log, RolloutGroupCompleted)}
    assert ages == {0, 1} and events_of(log, RolloutsDropped) == []
    assert max(step.metrics["staleness_max"] for step in events_of(log, StepCompleted)) == 1


def test_workers_that_never_wait_lose_what_is_too_old_with_an_event_and_the_run_goes_on(tmp_path):
    log = new_log()
    config = worker_config().model_copy(update={"stale_policy": StalePolicy.DROP})
    setup = trainer_of(log, tmp_path, config)
    with working(worker_of(log, config=config)):
        assert train(setup) is RunOutcome.COMPLETED
    dropped = events_of(log, RolloutsDropped)
    learned = {group for step in events_of(log, StepCompleted) for group in step.group_ids}
    groups = {g.group_id: g for g in events_of(log, RolloutGroupCompleted)}
    assert {d.group_id for d in dropped} == groups.keys() - learned and dropped
    assert all(groups[d.group_id].policy_version < d.step - 1 and d.staleness > 0 for d in dropped)
    assert [step.step for step in events_of(log, StepCompleted)] == [1, 2, 3, 4]
    assert sum(step.metrics["num_left_out_groups"] for step in events_of(log, StepCompleted)) == len(dropped)


class Killed(BaseException):
    """The worker dies here."""


class DyingLog:
    """Passes everything on until a number of bodies were written, then the process is gone."""

    def __init__(self, log, num_bodies):
        self._log, self.left = log, num_bodies
        self.read, self.end_offsets = log.read, log.end_offsets

    def append(self, events):
        if any(isinstance(event, TrajectoryRecorded) for event in events):
            if self.left == 0:
                raise Killed
            self.left -= 1
        self._log.append(events)


@pytest.mark.parametrize("num_bodies", [0, 1, 2, 4])
def test_a_worker_killed_in_the_middle_of_a_group_and_started_again_loses_nothing(tmp_path, num_bodies):
    log = new_log()
    first, again = RolloutWorker(replace(worker_setup(log), log=DyingLog(log, num_bodies))), worker_of(log)
    setup = trainer_of(log, tmp_path)

    class Restarted:
        def work(self):
            with pytest.raises(Killed):
                first.work()
            again.work()

    with working(Restarted()):
        assert train(setup) is RunOutcome.COMPLETED
    groups = events_of(log, RolloutGroupCompleted)
    assert set(Counter((g.step, g.task_id) for g in groups).values()) == {1} and len(groups) == 8
    assert {g.status for g in groups} == {GroupStatus.COMPLETED}
    taken = {(e.step, e.task_id): e.attempt for e in events_of(log, GroupReopened)}
    assert taken and all(g.attempt == taken.get((g.step, g.task_id), 0) for g in groups)


class CrashingWriter:
    """Passes a number of events on to a log that others write too, then its process is gone: at once, or at the next event."""

    def __init__(self, log, left, is_at_once):
        self._log, self.left, self._is_at_once = log, left, is_at_once
        self.read, self.end_offsets = log.read, log.end_offsets

    def append(self, events):
        for event in events:
            if self.left == 0:
                raise Killed
            self._log.append([event])
            self.left -= 1
            if self.left == 0 and self._is_at_once:
                raise Killed


NUM_OWN_EVENTS = 5 + 4 + 1
"""What a trainer writes whose rollouts others play: versions of the weights, steps, the end."""


@pytest.mark.parametrize("is_at_once", [False, True])
@pytest.mark.parametrize("dies_at", range(NUM_OWN_EVENTS))
def test_wherever_the_trainer_dies_while_a_worker_plays_it_resumes_to_the_same_weights(
    inline, tmp_path, dies_at, is_at_once
):
    log = new_log()
    first, again = trainer_of(log, tmp_path), trainer_of(log, tmp_path)
    with working(worker_of(log)):
        with pytest.raises(Killed):
            train(replace(first, log=CrashingWriter(log, dies_at + is_at_once, is_at_once)))
        assert train(again) is RunOutcome.COMPLETED
    assert digests_of(log) == digests_of(inline)
    ledger = RunIndex().add(reader_of(log, TOPICS).catch_up())
    assert missing(ledger) == duplicate(ledger) == [] and num_late(ledger) == 0
    versions = [event.policy_version for event in events_of(log, WeightsSynced)]
    assert versions == sorted(versions)


@pytest.mark.parametrize("num_bodies", [1, 4, 8, 13, 20])
def test_a_trainer_that_dies_while_it_waits_in_the_middle_of_a_batch_finds_what_came_meanwhile(
    inline, tmp_path, num_bodies
):
    log = new_log()

    def dies() -> bool:
        if len(events_of(log, TrajectoryRecorded)) >= num_bodies:
            raise Killed
        return False

    first, again = trainer_of(log, tmp_path, should_stop=dies), trainer_of(log, tmp_path)
    with working(worker_of(log)):
        with pytest.raises(Killed):
            train(first)
        assert train(again) is RunOutcome.COMPLETED
    assert digests_of(log) == digests_of(inline)
    assert len(events_of(log, TrajectoryRecorded)) == 4 * 2 * 3


class StandingLog:
    """Holds its writer up where it is about to end its first group, until another attempt has ended that group."""

    def __init__(self, log):
        self._log, self.held = log, None
        self.read, self.end_offsets = log.read, log.end_offsets

    def append(self, events):
        events = list(events)
        ended = next((event for event in events if isinstance(event, RolloutGroupCompleted)), None)
        if ended is not None and self.held is None:
            self.held = ended
            give_up_s = time.monotonic() + 60.0
            while not any(
                (g.step, g.task_id) == (ended.step, ended.task_id) for g in events_of(self._log, RolloutGroupCompleted)
            ):
                assert time.monotonic() < give_up_s, "no other attempt ended the group"
                time.sleep(0.05)
        self._log.append(events)


def test_a_late_first_attempt_behind_the_second_is_counted_and_changes_nothing(tmp_path):
    log, config = new_log(), worker_config(groups_at_once=1, group_deadline_s=3.0)
    standing = StandingLog(log)
    slow, quick = (
        RolloutWorker(replace(worker_setup(log, "slow", config), log=standing)),
        worker_of(log, "quick", config),
    )

    class Later:
        def work(self):
            while standing.held is None:
                time.sleep(0.01)
            quick.work()

    with working(slow, Later()):
        assert train(trainer_of(log, tmp_path, config)) is RunOutcome.COMPLETED
    first = standing.held
    both = [g for g in events_of(log, RolloutGroupCompleted) if (g.step, g.task_id) == (first.step, first.task_id)]
    assert [(g.attempt, g.worker) for g in both] == [(1, "quick"), (0, "slow")] and both[1].group_id == first.group_id
    learned = {group for step in events_of(log, StepCompleted) for group in step.group_ids}
    assert both[0].group_id in learned and first.group_id not in learned and len(learned) == 8
    assert events_of(log, StepCompleted)[-1].metrics["num_late_groups"] == 1
    ledger = RunIndex().add(reader_of(log, TOPICS).catch_up())
    assert (missing(ledger), duplicate(ledger), num_late(ledger)) == ([], [], 1)
    without = new_log(
        [
            e
            for e in reader_of(log, TOPICS).catch_up()
            if e.event_id != first.event_id and not isinstance(e, RunFinished)
        ]
    )
    assert train(trainer_of(without, tmp_path / "again", config)) is RunOutcome.COMPLETED
    assert digests_of(without) == digests_of(log)


class SideBySide(HFSampler):
    """Hands rollouts on from tasks that run side by side, as samplers that speak to a server do."""

    def rollout(self, requests, params, on_progress=None, on_rollout=None):
        async def hand_on(rollouts):
            async def one(rollout):
                on_rollout(rollout)

            async with asyncio.TaskGroup() as tasks:
                for rollout in rollouts:
                    tasks.create_task(one(rollout))

        rollouts = super().rollout(requests, params)
        asyncio.run(hand_on(rollouts))
        return rollouts


class FullLog(DyingLog):
    """Cannot take the bodies of rollouts any more."""

    def append(self, events):
        if any(isinstance(event, TrajectoryRecorded) for event in events):
            raise LogUnavailable("broker 127.0.0.1:1 is gone")
        self._log.append(events)


def test_a_log_that_cannot_be_written_is_named_also_by_a_sampler_that_plays_side_by_side(tmp_path):
    log = new_log()
    assert train(trainer_of(log, tmp_path, should_stop=lambda: True)) is RunOutcome.INTERRUPTED
    setup = worker_setup(log)
    setup.weights.sampler = SideBySide(toy_model(seed=5), ToyTemplate())
    with pytest.raises(LogUnavailable, match="is gone"):
        RolloutWorker(replace(setup, log=FullLog(log, 0))).work()


def test_a_task_that_cannot_start_is_a_failed_group_of_its_worker(tmp_path):
    def new_episode(task):
        if task.task_id == "base_1":
            raise UnplayableTask("task base_1: cannot start")
        return ToyEpisode(task)

    log = new_log()
    setup = trainer_of(log, tmp_path)
    with working(worker_of(log, new_episode=new_episode)):
        assert train(setup) is RunOutcome.COMPLETED
    status = {g.task_id: g.status for g in events_of(log, RolloutGroupCompleted)}
    assert status == {
        "base_0": GroupStatus.COMPLETED,
        "base_1": GroupStatus.FAILED,
        "base_2": GroupStatus.COMPLETED,
        "base_3": GroupStatus.COMPLETED,
    }


def test_a_worker_of_another_format_is_left_out_and_said_so(tmp_path):
    log = new_log()
    setup = trainer_of(log, tmp_path)
    with working(worker_of(log, format_hash="another")):
        assert train(setup) is RunOutcome.COMPLETED
    assert {d.reason.value for d in events_of(log, RolloutsDropped)} == {"format_mismatch"}
    assert len(set(digests_of(log).values())) == 1


@pytest.mark.parametrize("differs", ["temperature", "stop_ids", "seed"])
def test_a_worker_that_samples_with_other_parameters_is_left_out_and_said_so(tmp_path, differs):
    log, config = new_log(), worker_config()
    values = {
        "temperature": {"config": config.model_copy(update={"temperature": 0.5})},
        "stop_ids": {"stop_ids": frozenset({1})},
        "seed": {"seed": 12},
    }
    with working(worker_of(log, **values[differs])):
        assert train(trainer_of(log, tmp_path, config)) is RunOutcome.COMPLETED
    assert {d.reason.value for d in events_of(log, RolloutsDropped)} == {"format_mismatch"}
    assert len(events_of(log, RolloutsDropped)) == 8 and len(set(digests_of(log).values())) == 1


def test_weights_that_are_not_the_announced_ones_are_refused(tmp_path):
    log = new_log()
    setup = trainer_of(log, tmp_path, should_stop=lambda: True)
    train(setup)
    event = events_of(log, WeightsSynced)[0]
    with pytest.raises(WrongWeights, match="announced"):
        worker_setup(log).weights.follow([replace(event, weights_digest="0" * 64)])


def test_what_was_played_ahead_is_used_after_a_restart_and_nothing_is_played_twice(tmp_path):
    """The reader of a trainer may be ahead of what it has trained; the log, not the reader, says what is left."""
    log, config = new_log(), worker_config(max_staleness=1)
    setup, again = (
        trainer_of(log, tmp_path, config, should_stop=lambda: 1 in digests_of(log)),
        trainer_of(log, tmp_path, config),
    )
    with working(worker_of(log, config=config)):
        assert train(setup) is RunOutcome.INTERRUPTED
        ahead = {g.event_id for g in events_of(log, RolloutGroupCompleted) if g.step > max(digests_of(log))}
        assert train(again) is RunOutcome.COMPLETED
    groups = events_of(log, RolloutGroupCompleted)
    learned = [group for step in events_of(log, StepCompleted) for group in step.group_ids]
    assert ahead <= set(learned) and len(learned) == len(set(learned)) == len(groups) == 8


def test_a_sampler_of_other_weights_raises_the_alarm_and_a_faithful_one_does_not(inline, tmp_path):
    assert {step.metrics["logprob_gap_alarm"] for step in events_of(inline, StepCompleted)} == {0.0}
    log = inline_log()
    train(setup_of(log, tmp_path, HFSampler(toy_model(seed=3), ToyTemplate()), suites=()))
    steps = events_of(log, StepCompleted)
    assert all(s.metrics["logprob_gap_alarm"] == 1.0 and s.metrics["logprob_gap_mean"] > 0.1 for s in steps)
    assert all(s.metrics["logprob_gap_max"] >= s.metrics["logprob_gap_mean"] for s in steps)
    assert all(s.metrics["logprob_gap_kl"] > 0 for s in steps)
