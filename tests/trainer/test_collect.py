"""The trainer's deadline of a group: opened to others, then closed with what is there; nothing else ends it."""

from dataclasses import replace
from threading import Thread

import pytest

from schemas import make
from schemas.events import (
    BatchPlanned,
    DropReason,
    GroupClaimed,
    GroupReopened,
    GroupStatus,
    RolloutGroupCompleted,
    RolloutsDropped,
    RunOutcome,
    StepCompleted,
    TrajectoryRecorded,
)
from tests.trainer.test_loop import RUN
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model
from tests.trainer.workers import events_of, new_log, reader_of, trainer_of, worker_config, worker_of
from trainer.learning import left_in
from trainer.loop import sync_weights, train
from trainer.rollouts.collect import CLOSING, Signs, collect, overdue
from trainer.rollouts.groups import PlayedBy, group_of, requests_for, trajectory_of
from trainer.rollouts.hf_sampler import HFSampler
from trainer.setup import NothingCame
from trainer.view import LIVE_TOPICS, RunView

DEADLINE_S = 100.0
CONFIG = worker_config(group_deadline_s=DEADLINE_S, max_attempts=2)


class Situation:
    """A trainer that waits for step 1, and what workers have written so far."""

    def __init__(self, folder, config=CONFIG):
        self.log = new_log()
        self.setup = trainer_of(self.log, folder, config, patience_s=1000.0)
        self.view, self.signs = RunView(), Signs()
        self.hear()
        self.plan = self.view.plans[1]

    def hear(self, *events):
        self.log.append(list(events))
        self.view.hear(self.setup.reader.catch_up())

    def claim(self, task_id, worker="w0", attempt=0):
        self.hear(make(GroupClaimed, RUN, step=1, task_id=task_id, attempt=attempt, worker=worker, policy_version=0))

    def play(self, task_id, num_rollouts, attempt=0, worker="w0"):
        """Some bodies of a group."""
        requests, _ = requests_for(self.plan, [task_id], self.view.tasks, num_rollouts, ToyEpisode)
        played = HFSampler(toy_model(), ToyTemplate()).rollout(requests, self.setup.sampling)
        bodies = [
            trajectory_of(self.plan, rollout, PlayedBy(0, attempt, worker, "f", self.setup.sampling.as_json()))
            for rollout in played
        ]
        self.hear(*bodies)
        return bodies

    def at(self, now_s):
        """What the trainer says at a time; it is written and heard."""
        events = overdue(self.setup, self.view, self.plan, self.signs, now_s)
        self.hear(*events)
        return events


@pytest.fixture
def situation(tmp_path):
    return Situation(tmp_path)


def test_a_claimed_group_is_opened_to_others_once_nothing_was_heard_of_it_for_the_deadline(situation):
    for task_id in situation.plan.task_ids:
        situation.claim(task_id)
    assert situation.at(0.0) == [] and situation.at(DEADLINE_S) == []
    events = situation.at(DEADLINE_S + 1)
    assert [(type(e), e.task_id, e.attempt) for e in events] == [
        (GroupReopened, task_id, 1) for task_id in situation.plan.task_ids
    ]
    assert "attempt 0 of w0 was silent for 101 s with 0 rollouts" in events[0].detail
    assert situation.at(DEADLINE_S + 2) == []


def test_every_rollout_that_comes_is_a_sign_of_life(situation):
    task_id = situation.plan.task_ids[0]
    situation.claim(task_id)
    situation.at(0.0)
    situation.play(task_id, 1)
    assert situation.at(DEADLINE_S + 1) == []
    assert situation.at(2 * DEADLINE_S + 1) == []
    assert len(situation.at(2 * DEADLINE_S + 2)) == 1


@pytest.mark.parametrize(
    ("num_come", "status"), [(2, GroupStatus.PARTIAL), (1, GroupStatus.FAILED), (0, GroupStatus.FAILED)]
)
def test_after_the_last_attempt_a_straggler_closes_the_group_as_it_is(situation, num_come, status):
    task_id = situation.plan.task_ids[0]
    situation.claim(task_id)
    situation.at(0.0)
    situation.at(DEADLINE_S + 1)
    situation.claim(task_id, "w1", 1)
    bodies = situation.play(task_id, num_come, 1, "w1")
    situation.at(200.0)
    events = situation.at(200.0 + DEADLINE_S + 1)
    group = events[-1]
    assert (group.status, group.num_valid, group.num_rollouts, group.attempt) == (status, num_come, 3, CLOSING)
    assert group.trajectory_ids[:num_come] == tuple(b.trajectory_id for b in bodies)
    missing = [e for e in events if isinstance(e, TrajectoryRecorded)]
    assert len(missing) == 3 - num_come and all(e.reward is None and "silent for" in e.detail for e in missing)
    assert situation.view.groups[1, task_id] == replace(group, occurred_at_ms=1)


def test_the_attempt_that_came_furthest_is_kept_when_a_group_is_closed(situation):
    task_id = situation.plan.task_ids[0]
    situation.claim(task_id)
    first = situation.play(task_id, 2, 0)
    situation.at(0.0)
    situation.at(DEADLINE_S + 1)
    situation.claim(task_id, "w1", 1)
    situation.play(task_id, 1, 1, "w1")
    situation.at(200.0)
    group = situation.at(200.0 + DEADLINE_S + 1)[-1]
    assert group.trajectory_ids[:2] == tuple(body.trajectory_id for body in first)


def test_with_one_attempt_a_silent_group_is_closed_at_once(tmp_path):
    situation = Situation(tmp_path, worker_config(group_deadline_s=DEADLINE_S, max_attempts=1))
    situation.claim(situation.plan.task_ids[0])
    situation.at(0.0)
    assert isinstance(situation.at(DEADLINE_S + 1)[-1], RolloutGroupCompleted)


def test_a_group_that_a_worker_ends_before_the_trainer_closes_it_is_the_workers_for_everyone(situation):
    """Both write; the first in the log counts, also for the trainer that wrote the second."""
    task_id = situation.plan.task_ids[0]
    situation.claim(task_id)
    situation.at(0.0)
    situation.at(DEADLINE_S + 1)
    situation.claim(task_id, "w1", 1)
    situation.at(200.0)
    closing = overdue(situation.setup, situation.view, situation.plan, situation.signs, 200.0 + DEADLINE_S + 1)
    bodies = situation.play(task_id, 3, 0)
    late_first = group_of(situation.plan, task_id, bodies, 0, "w0")
    situation.hear(late_first, *closing)
    assert situation.view.groups[1, task_id].worker == "w0" and situation.view.num_late_groups == 1
    fresh = RunView()
    fresh.hear(reader_of(situation.log, LIVE_TOPICS).catch_up())
    assert fresh.groups[1, task_id].event_id == late_first.event_id


def test_without_any_worker_the_trainer_says_what_is_missing(situation):
    situation.at(0.0)
    with pytest.raises(
        NothingCame, match="no worker claimed the group of base_0 at step 1 within 1000 s.*rods rollout"
    ):
        situation.at(1001.0)


def test_a_group_that_has_ended_is_not_silent_while_another_one_is_played(tmp_path):
    """The last group of a batch may take longer than the patience."""
    situation = Situation(tmp_path, worker_config(group_deadline_s=5000.0))
    ended, played = situation.plan.task_ids
    situation.hear(group_of(situation.plan, ended, situation.play(ended, 3), 0, "w0"))
    situation.claim(played, "w1")
    assert [situation.at(now_s) for now_s in (0.0, 1001.0, 4999.0)] == [[], [], []]
    assert isinstance(situation.at(5001.0)[-1], GroupReopened)


def test_a_group_that_no_worker_has_claimed_waits_while_the_only_worker_plays_others(tmp_path):
    situation = Situation(tmp_path, worker_config(group_deadline_s=2000.0))
    free, played = situation.plan.task_ids
    situation.claim(played)
    assert [situation.at(now_s) for now_s in (0.0, 1001.0, 1999.0)] == [[], [], []]
    situation.hear(group_of(situation.plan, played, situation.play(played, 3), 0, "w0"))
    assert situation.at(2000.0) == [] and situation.at(3000.0) == []
    with pytest.raises(NothingCame, match=f"no worker claimed the group of {free}"):
        situation.at(3001.0)


def test_rollouts_of_a_later_step_are_a_sign_of_life_for_a_group_nobody_has_claimed(situation):
    situation.at(0.0)
    situation.hear(make(GroupClaimed, RUN, step=2, task_id="base_2", attempt=0, worker="w0", policy_version=0))
    assert situation.at(1001.0) == []


def test_a_lone_worker_that_hangs_costs_its_group_and_not_the_run(situation):
    """Its group is opened to others; where nobody takes it within the deadline it is closed as failed."""
    hung, ended = situation.plan.task_ids
    situation.hear(group_of(situation.plan, ended, situation.play(ended, 3), 0, "w0"))
    situation.claim(hung)
    situation.play(hung, 1)
    situation.at(0.0)
    assert [type(event) for event in situation.at(DEADLINE_S + 1)] == [GroupReopened]
    assert situation.at(DEADLINE_S + 2) == [] and situation.at(2 * DEADLINE_S) == []
    group = situation.at(2 * DEADLINE_S + 3)[-1]
    assert (group.status, group.attempt, group.num_valid) == (GroupStatus.FAILED, CLOSING, 1)
    assert "no worker took attempt 1 within 101 s" in group.detail
    assert [g.task_id for g in collect(situation.setup, situation.view, situation.plan)] == [hung, ended]


def test_an_attempt_that_is_open_to_others_waits_for_a_worker_that_is_busy(situation):
    hung, played = situation.plan.task_ids
    situation.claim(hung)
    situation.claim(played, "w1")
    situation.at(0.0)
    situation.play(played, 1, worker="w1")
    situation.at(60.0)
    assert [event.task_id for event in situation.at(DEADLINE_S + 1)] == [hung]
    situation.play(played, 2, worker="w1")
    situation.at(150.0)
    assert situation.at(240.0) == []
    situation.hear(group_of(situation.plan, played, situation.play(played, 3, worker="w1"), 0, "w1"))
    assert situation.at(245.0) == []
    situation.claim(hung, "w1", 1)
    assert situation.at(DEADLINE_S + 240.0) == []


def test_a_group_whose_body_never_comes_is_named(situation):
    task_id = situation.plan.task_ids[0]
    bodies = situation.play(task_id, 3)
    group = group_of(situation.plan, task_id, bodies, 0, "w0")
    situation.hear(replace(group, trajectory_ids=(*group.trajectory_ids[:2], "gone")))
    other = situation.plan.task_ids[1]
    situation.hear(group_of(situation.plan, other, situation.play(other, 3), 0, "w0"))
    situation.at(0.0)
    with pytest.raises(NothingCame, match="its rollout gone did not come"):
        situation.at(1001.0)


def test_dropped_groups_do_not_pin_the_frontier(tmp_path):
    """All groups of step 1 are too old: they leave their step, the trainer completes it without them, and workers go on."""
    situation = Situation(tmp_path)
    for task_id in situation.plan.task_ids:
        bodies = [replace(body, policy_version=-3) for body in situation.play(task_id, 3)]
        situation.hear(*bodies, replace(group_of(situation.plan, task_id, bodies), policy_version=-3))
    setup, worker = trainer_of(situation.log, tmp_path, CONFIG), worker_of(situation.log, config=CONFIG)
    started = setup.engine.digest()
    playing = Thread(target=worker.work, daemon=True)
    playing.start()
    assert train(setup) is RunOutcome.COMPLETED
    playing.join(30.0)
    assert not playing.is_alive() and worker.num_groups == 3 * 2
    steps = events_of(situation.log, StepCompleted)
    assert [(step.step, step.num_groups) for step in steps] == [(1, 0), (2, 2), (3, 2), (4, 2)]
    assert (
        steps[0].group_ids == () and steps[0].metrics["num_left_out_groups"] == 2 and steps[0].weights_digest == started
    )
    dropped = events_of(situation.log, RolloutsDropped)
    assert [(event.step, event.task_id, event.reason) for event in dropped] == [
        (1, task_id, DropReason.STALE) for task_id in situation.plan.task_ids
    ]


def test_a_drop_is_said_once_however_often_its_step_is_learned(tmp_path):
    situation = Situation(tmp_path)
    for task_id in situation.plan.task_ids:
        bodies = [replace(body, policy_version=-3) for body in situation.play(task_id, 3)]
        situation.hear(replace(group_of(situation.plan, task_id, bodies), policy_version=-3))
    groups = collect(situation.setup, situation.view, situation.plan)
    for _ in range(2):
        assert left_in(situation.setup, situation.view, situation.plan, groups) == []
    assert len(events_of(situation.log, RolloutsDropped)) == 2


def test_weights_are_laid_again_after_a_restart_under_the_same_event(tmp_path):
    situation = Situation(tmp_path)
    for _ in range(2):
        sync_weights(situation.setup, situation.view, 0)
    events = list(situation.view.dispatch.synced.values())
    assert [(e.policy_version, e.transport, e.weights_digest) for e in events] == [
        (0, "folder", situation.setup.engine.digest())
    ]


def test_asked_to_stop_the_trainer_stops_waiting(tmp_path):
    situation = Situation(tmp_path)
    setup = replace(situation.setup, should_stop=lambda: True)
    assert collect(setup, situation.view, situation.plan) is None
    assert events_of(situation.log, BatchPlanned)
