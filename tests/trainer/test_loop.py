"""The trainer's loop over a log in memory: it finishes, it resumes from any crash, it refuses to diverge."""

from collections import Counter
from dataclasses import replace
from itertools import accumulate

import pytest

from analysis.conservation import duplicate, missing
from analysis.index import RunIndex
from schemas import BY_NAME, TOPICS, make
from schemas.events import (
    BatchPlanned,
    EpochPlanned,
    EvaluationCompleted,
    RewardKind,
    RolloutGroupCompleted,
    RunFinished,
    RunOutcome,
    RunStarted,
    StageStarted,
    StepCompleted,
    TaskSeeded,
    TrajectoryRecorded,
)
from streams.log.port import LogGap, MemoryLog, partition_counts
from streams.log.reader import EventReader
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model, toy_task
from trainer.config import TrainerConfig
from trainer.evaluation import Suite
from trainer.loop import train
from trainer.rollouts.hf_sampler import HFSampler
from trainer.setup import DigestMismatch, NothingCame, TrainerSetup
from trainer.update.torch_engine import TorchEngine
from trainer.view import TOPICS as FOLLOWED
from trainer.weights.checkpoint import complete_checkpoints, latest_complete
from trainer.weights.digest import weights_digest

RUN = "run-1"
PARTITIONS = partition_counts(TOPICS, 1, 3)
CONFIG = TrainerConfig(
    group_size=3,
    learning_rate=1e-2,
    warmup_steps=2,
    num_minibatches=2,
    max_message_tokens=12,
    max_episode_tokens=60,
    checkpoint_every_steps=3,
    eval_every_steps=2,
    keep_checkpoints=2,
)
SUITE = Suite("held-out", (toy_task("base_8"), toy_task("base_9")), 2)
EPOCHS = (("base_0", "base_1", "base_2", "base_3"), ("base_3", "base_1", "base_0", "base_2"))


class Crash(BaseException):
    """The process dies here."""


class CrashingLog(MemoryLog):
    """A log in memory whose writer dies behind a chosen number of events, also in the middle of an append.

    Attributes:
        left: Events it still takes; ``None``: all.
        is_at_once: Whether the writer dies right behind the last of them, or only when it brings one more.
    """

    def __init__(self):
        super().__init__(PARTITIONS, clock=lambda: 1)
        self.left, self.is_at_once = None, False

    def append(self, events):
        events = list(events)
        super().append(events[: self.left])
        if self.left is not None:
            is_cut = len(events) > self.left
            self.left = max(0, self.left - len(events))
            if is_cut or (self.is_at_once and not self.left):
                raise Crash


def planned_events(epochs=EPOCHS):
    """What seeder and pool write for two tasks a step."""
    tasks = sorted({task_id for order in epochs for task_id in order})
    yield make(
        StageStarted,
        RUN,
        stage="full",
        ordinal=0,
        reward=RewardKind.PROGRESS,
        synthesis=False,
        first_step=1,
        first_epoch=0,
        num_epochs=len(epochs),
    )
    for position, task_id in enumerate(tasks):
        yield make(TaskSeeded, RUN, task=toy_task(task_id, 1 + position % 3), position=position)
    step = 1
    for epoch, order in enumerate(epochs):
        num_steps = len(order) // 2
        yield make(
            EpochPlanned,
            RUN,
            epoch=epoch,
            stage="full",
            first_step=step,
            num_steps=num_steps,
            injected=(),
            retired=(),
            order=order,
            num_human=len(order),
            num_generated=0,
            num_queued=0,
            input_cursor=(),
        )
        for number in range(num_steps):
            yield make(
                BatchPlanned,
                RUN,
                step=step,
                epoch=epoch,
                task_ids=order[2 * number : 2 * number + 2],
                is_last_of_epoch=number == num_steps - 1,
                input_cursor=(),
            )
            step += 1


def new_log(events=None):
    log = CrashingLog()
    log.append(list(planned_events()) if events is None else events)
    return log


def reader_of(log, topics=FOLLOWED):
    return EventReader(log, topics, PARTITIONS, RUN, "trainer")


def setup_of(log, folder, sampler=None, **values):
    model = toy_model()
    return TrainerSetup(
        **{
            "run_id": RUN,
            "seed": 11,
            "config": CONFIG,
            "engine": TorchEngine(model, CONFIG),
            "sampler": sampler or HFSampler(model, ToyTemplate()),
            "new_episode": ToyEpisode,
            "suites": (SUITE,),
            "tokenizer": None,
            "checkpoints": folder,
            "log": log,
            "reader": reader_of(log),
            "patience_s": 5.0,
            **values,
        }
    )


def events_of(log, kind):
    return [e for e in reader_of(log, [BY_NAME[kind.__name__].topic]).catch_up() if isinstance(e, kind)]


def digests_of(log):
    return {event.step: event.weights_digest for event in events_of(log, StepCompleted)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed: its log, its checkpoints and its setup."""
    log, folder = new_log(), tmp_path_factory.mktemp("whole")
    setup = setup_of(log, folder)
    assert train(setup) is RunOutcome.COMPLETED
    return log, folder, setup


def test_a_run_goes_to_its_end_and_everything_planned_has_its_events(whole):
    log, folder, setup = whole
    steps = events_of(log, StepCompleted)
    assert [step.step for step in steps] == [1, 2, 3, 4]
    groups = events_of(log, RolloutGroupCompleted)
    assert Counter(group.step for group in groups) == {1: 2, 2: 2, 3: 2, 4: 2}
    bodies = {body.trajectory_id for body in events_of(log, TrajectoryRecorded)}
    assert bodies == {body for group in groups for body in group.trajectory_ids} and len(bodies) == 4 * 2 * 3
    assert [group_id for step in steps for group_id in step.group_ids] == [group.group_id for group in groups]
    assert [event.step for event in events_of(log, EvaluationCompleted)] == [0, 2, 4]
    end = events_of(log, RunFinished)
    assert [(e.outcome, e.step, e.weights_digest) for e in end] == [(RunOutcome.COMPLETED, 4, setup.engine.digest())]


def test_every_step_learned_something_and_its_record_says_what(whole):
    log, _, _ = whole
    steps = events_of(log, StepCompleted)
    assert len({step.weights_digest for step in steps} | {weights_digest(toy_model())}) == 5
    for step in steps:
        assert (step.stage, step.policy_version, step.num_groups, step.num_trajectories) == ("full", step.step, 2, 6)
        assert step.metrics["logprob_gap_max"] < 1e-3 and step.metrics["num_optimizer_steps"] >= 1
        assert set(step.timings_ms) == {"rollout", "update"}


def test_checkpoints_are_written_every_n_steps_and_at_the_end_of_an_epoch(whole):
    log, folder, _ = whole
    names = [step.checkpoint for step in events_of(log, StepCompleted)]
    assert names == ["", "step-000002", "step-000003", "step-000004"]
    assert [found.step for found in complete_checkpoints(folder)] == [0, 3, 4]


def test_two_runs_from_the_same_log_end_in_the_same_weights(whole, tmp_path):
    log = new_log()
    train(setup_of(log, tmp_path))
    assert digests_of(log) == digests_of(whole[0])


def crashed_and_resumed(folder, dies_at, is_at_once=False, **values):
    """The log of a run whose trainer died behind so many of its events and was started again."""
    log = new_log()
    log.left, log.is_at_once = dies_at, is_at_once
    with pytest.raises(Crash):
        train(setup_of(log, folder, **values))
    log.left = None
    assert train(setup_of(log, folder, **values)) is RunOutcome.COMPLETED
    return log


APPENDS = (1, *(6, 2, 1), *(6, 2, 1, 1), *(6, 2, 1), *(6, 2, 1, 1), 1)
"""Events of each append of a whole run: an evaluation, then bodies, groups, step and evaluation, at last the end."""
BOUNDARIES = [(dies_at, False) for dies_at in range(sum(APPENDS))] + [
    (dies_at, True) for dies_at in accumulate(APPENDS)
]


def test_those_are_all_the_events_that_the_trainer_of_a_run_writes(whole):
    assert len(list(reader_of(whole[0]).catch_up())) - len(list(planned_events())) == sum(APPENDS)


@pytest.mark.parametrize(("dies_at", "is_at_once"), BOUNDARIES)
def test_wherever_the_trainer_dies_between_two_events_it_resumes_to_the_same_weights(
    whole, tmp_path, dies_at, is_at_once
):
    log = crashed_and_resumed(tmp_path, dies_at, is_at_once)
    assert digests_of(log) == digests_of(whole[0])
    assert len(events_of(log, RunFinished)) == 1
    assert [event.step for event in events_of(log, EvaluationCompleted)] == [0, 2, 4]
    ledger = RunIndex().add(reader_of(log).catch_up())
    assert missing(ledger) == duplicate(ledger) == []


class NeverPlays:
    def rollout(self, requests, params, on_progress=None):
        raise AssertionError("what is recorded must not be played again")


def test_without_checkpoints_the_whole_run_is_learned_again_from_the_log_without_playing(whole, tmp_path):
    events = [e for e in reader_of(whole[0]).catch_up() if not isinstance(e, RunFinished)]
    setup = setup_of(new_log(events), tmp_path, NeverPlays())
    assert train(setup) is RunOutcome.COMPLETED
    assert setup.engine.digest() == whole[2].engine.digest()


def test_a_step_that_cannot_be_repeated_is_named_with_both_digests(whole, tmp_path):
    events = [e for e in reader_of(whole[0]).catch_up() if not isinstance(e, RunFinished)]
    place = next(i for i, e in enumerate(events) if isinstance(e, StepCompleted) and e.step == 3)
    events[place] = replace(events[place], weights_digest="f" * 64)
    setup = setup_of(new_log(events), tmp_path)
    with pytest.raises(DigestMismatch, match=f"step 3.*{'f' * 64}.*{digests_of(whole[0])[3]}"):
        train(setup)
    assert latest_complete(tmp_path).step == 2


def test_a_completed_step_whose_rollouts_are_gone_is_a_gap_in_the_log(whole, tmp_path):
    events = [e for e in reader_of(whole[0]).catch_up() if not isinstance(e, (RunFinished, TrajectoryRecorded))]
    with pytest.raises(LogGap, match="step 1"):
        train(setup_of(new_log(events), tmp_path))


def test_a_finished_run_is_left_as_it_is(whole):
    log, folder, _ = whole
    before = log.end_offsets(TOPICS)
    assert train(setup_of(log, folder, NeverPlays())) is RunOutcome.COMPLETED
    assert log.end_offsets(TOPICS) == before


def test_asked_to_stop_it_stops_between_steps_and_goes_on_later(whole, tmp_path):
    log = new_log()
    setup = setup_of(log, tmp_path, should_stop=lambda: 2 in digests_of(log))
    assert train(setup) is RunOutcome.INTERRUPTED
    assert max(digests_of(log)) == 2 and events_of(log, RunFinished) == []
    assert train(setup_of(log, tmp_path)) is RunOutcome.COMPLETED
    assert digests_of(log) == digests_of(whole[0])


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        (BatchPlanned, "BatchPlanned of step 1"),
        (EpochPlanned, "EpochPlanned of epoch 0"),
        (StageStarted, "StageStarted of stage 'full'"),
        (TaskSeeded, "the task base_0 of step 1"),
    ],
)
def test_what_does_not_come_is_named(tmp_path, missing, name):
    log = new_log([event for event in planned_events() if not isinstance(event, missing)])
    with pytest.raises(NothingCame, match=name):
        train(setup_of(log, tmp_path, patience_s=0.0, suites=()))


def test_the_stage_decides_which_reward_is_learned_from(whole, tmp_path):
    events = [replace(e, reward=RewardKind.FORMAT) if isinstance(e, StageStarted) else e for e in planned_events()]
    log = new_log(events)
    train(setup_of(log, tmp_path))
    assert events_of(log, RolloutGroupCompleted)[0].rewards == events_of(whole[0], RolloutGroupCompleted)[0].rewards
    assert digests_of(log)[1] != digests_of(whole[0])[1]


class StagedLog(CrashingLog):
    """Plans the second epoch only once the second stage has started, as the pool does."""

    def append(self, events):
        super().append(events)
        if any(isinstance(event, StageStarted) and event.ordinal == 1 for event in events):
            super().append([replace(e, stage="late") if isinstance(e, EpochPlanned) else e for e in second_epoch()])


def second_epoch():
    return [e for e in planned_events() if isinstance(e, (EpochPlanned, BatchPlanned)) and e.epoch == 1]


def test_the_next_stage_is_opened_behind_the_last_step_of_the_one_before(whole, tmp_path):
    log = StagedLog()
    first = [e for e in planned_events() if e not in second_epoch()]
    log.append([replace(e, num_epochs=1) if isinstance(e, StageStarted) else e for e in first])
    late = make(
        StageStarted,
        RUN,
        stage="late",
        ordinal=1,
        reward=RewardKind.PROGRESS,
        synthesis=False,
        first_step=3,
        first_epoch=1,
        num_epochs=1,
    )
    setup = setup_of(log, tmp_path, next_stage=lambda done, view: late if done.epoch == 0 else None)
    assert train(setup) is RunOutcome.COMPLETED
    assert [stage.stage for stage in events_of(log, StageStarted)] == ["full", "late"]
    assert [step.stage for step in events_of(log, StepCompleted)] == ["full", "full", "late", "late"]
    assert digests_of(log) == digests_of(whole[0])


def test_other_weights_than_the_run_started_from_are_refused(tmp_path):
    started = make(
        RunStarted,
        RUN,
        config_json="{}",
        seed=11,
        versions={},
        template_hash="",
        tokenizer_hash="",
        tool_schema_hash="",
        weights_digest="a" * 64,
    )
    with pytest.raises(DigestMismatch, match="started from weights aaaa"):
        train(setup_of(new_log([started, *planned_events()]), tmp_path))


def test_an_evaluation_is_the_same_at_equal_weights_and_means_over_its_rollouts(whole):
    first = events_of(whole[0], EvaluationCompleted)[0]
    assert (first.num_tasks, first.num_rollouts, first.policy_version) == (2, 2, 0)
    assert set(first.by_category) == {"base"}
    assert first.by_category["base"] == pytest.approx(first.mean_reward)
    assert 0 <= first.accuracy <= first.mean_reward <= 1


@pytest.mark.parametrize("max_steps", [1, 3])
def test_a_bounded_run_ends_behind_its_last_step_with_checkpoint_and_evaluation(tmp_path, max_steps):
    log, whole = new_log(), new_log()
    assert train(setup_of(whole, tmp_path / "whole")) is RunOutcome.COMPLETED
    assert train(setup_of(log, tmp_path, max_steps=max_steps)) is RunOutcome.COMPLETED
    steps, (end,) = events_of(log, StepCompleted), events_of(log, RunFinished)
    assert [done.step for done in steps] == list(range(1, max_steps + 1))
    assert [done.weights_digest for done in steps] == [d.weights_digest for d in events_of(whole, StepCompleted)][
        :max_steps
    ]
    assert (end.step, end.reason) == (max_steps, f"pool.max_steps = {max_steps}")
    assert latest_complete(tmp_path).step == max_steps == max(e.step for e in events_of(log, EvaluationCompleted))


def test_a_plan_that_waits_for_the_synthesizer_is_waited_for_longer(tmp_path):
    log, asked = new_log([event for event in planned_events() if not isinstance(event, BatchPlanned)]), []
    setup = setup_of(
        log, tmp_path, patience_s=0.0, synthesis_wait_s=0.6, suites=(), should_stop=lambda: asked.append(1)
    )
    with pytest.raises(NothingCame, match="within 1 s"):
        train(setup)
    assert len(asked) >= 2, "it was given up at once"
