"""Between two steps: which checkpoint is kept, which weights go out after a restart, and that log and checkpoint belong together."""

from dataclasses import replace

import pytest

from analysis.conservation import duplicate, missing
from analysis.index import RunIndex
from schemas import HELDOUT, make
from schemas.events import RolloutsDropped, RunOutcome, RunStarted, StageStarted, StepCompleted, TrajectoryRecorded
from streams.log.port import LogGap
from tests.trainer.test_loop import (
    CONFIG,
    RUN,
    SUITE,
    Crash,
    digests_of,
    events_of,
    new_log,
    planned_events,
    reader_of,
    setup_of,
)
from tests.trainer.toys import ToyTemplate, toy_model
from trainer import loop
from trainer.evaluation import Suite
from trainer.loop import train
from trainer.resume import refuse_lost_log
from trainer.rollouts.hf_sampler import HFSampler
from trainer.setup import DigestMismatch
from trainer.update.engines import engine_of
from trainer.view import RunView
from trainer.weights.checkpoint import (
    checkpoint_name,
    complete_checkpoints,
    latest_complete,
    load_training_state,
    load_weights,
    write_checkpoint,
)
from trainer.weights.digest import weights_digest
from trainer.weights.sync import Synced

ORDER = tuple(f"base_{number}" for number in range(8))
HELD_OUT = Suite(HELDOUT, SUITE.tasks, 1)


class Recording:
    """A place weights are brought to that remembers every version."""

    def __init__(self):
        self.versions = []

    def sync(self, model, version, digest):
        assert digest == weights_digest(model)
        self.versions.append(version)
        return Synced("here", "folder")


def config_of(**values):
    return CONFIG.model_copy(update={"checkpoint_every_steps": 100, "eval_every_steps": 0, **values})


def test_a_restart_brings_out_the_newest_weights_and_none_of_those_it_learns_again(tmp_path):
    log, before, after = new_log(), Recording(), Recording()
    config = config_of(checkpoint_every_steps=2)
    stopped = setup_of(log, tmp_path, config=config, syncs=(before,), should_stop=lambda: 3 in digests_of(log))
    assert train(stopped) is RunOutcome.INTERRUPTED
    assert before.versions == [0, 1, 2, 3] and latest_complete(tmp_path).step == 2
    assert train(setup_of(log, tmp_path, config=config, syncs=(after,))) is RunOutcome.COMPLETED
    assert after.versions == [3, 4]


REWARDS = {0: 0.9, 1: 0.2, 2: 0.6, 3: 0.3, 4: 0.4}


@pytest.fixture
def measured(monkeypatch):
    """Held-out rewards are those of the table."""
    real = loop.evaluate
    monkeypatch.setattr(
        loop,
        "evaluate",
        lambda run_id, suite, step, *rest: replace(real(run_id, suite, step, *rest), mean_reward=REWARDS[step]),
    )


def best_kept(log, folder, **values):
    config = config_of(eval_every_steps=1, keep_checkpoints=1, **values)
    return setup_of(log, folder, config=config, suites=(HELD_OUT,))


def test_the_best_step_is_kept_although_no_checkpoint_was_due_at_it(measured, tmp_path):
    log = new_log(list(planned_events((ORDER,))))
    assert train(best_kept(log, tmp_path)) is RunOutcome.COMPLETED
    assert [event.checkpoint for event in events_of(log, StepCompleted)] == ["", "", "", "step-000004"]
    kept = complete_checkpoints(tmp_path)
    assert [found.step for found in kept] == [0, 2, 4]
    model = toy_model()
    load_weights(kept[1], model)
    assert weights_digest(model) == digests_of(log)[2]


def test_without_keep_best_only_the_newest_is_kept(measured, tmp_path):
    log = new_log(list(planned_events((ORDER,))))
    train(best_kept(log, tmp_path, keep_best=False))
    assert [found.step for found in complete_checkpoints(tmp_path)] == [0, 4]


def test_a_trainer_that_died_between_the_best_evaluation_and_its_checkpoint_writes_it_after_the_restart(
    measured, tmp_path
):
    whole = new_log(list(planned_events((ORDER,))))
    train(best_kept(whole, tmp_path / "whole"))
    num_events = len(reader_of(whole).catch_up()) - len(list(planned_events((ORDER,))))
    for dies_at in (1, 10, 11, 20, 21, 30, num_events - 1):
        log, folder = new_log(list(planned_events((ORDER,)))), tmp_path / str(dies_at)
        log.left, log.is_at_once = dies_at, True
        with pytest.raises(Crash):
            train(best_kept(log, folder))
        log.left = None
        assert train(best_kept(log, folder)) is RunOutcome.COMPLETED
        assert digests_of(log) == digests_of(whole)
        assert [found.step for found in complete_checkpoints(folder)] == [0, 2, 4]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped behind step 3: its log and its checkpoints, the last one of step 2."""
    log, folder = new_log(), tmp_path_factory.mktemp("stopped")
    train(setup_of(log, folder, config=config_of(checkpoint_every_steps=2), should_stop=lambda: 3 in digests_of(log)))
    return log, folder


def test_the_cursor_of_a_checkpoint_is_what_was_heard_before_its_step_was_announced(stopped):
    log, folder = stopped
    cursor = load_training_state(latest_complete(folder))["cursor"]
    assert cursor == {
        "TaskSeeded and TaskSynthesized": 4,
        "StageStarted": 1,
        "StepCompleted": 1,
        "EvaluationCompleted": 1,
    }
    view = RunView()
    view.hear(reader_of(log).catch_up())
    assert all(num_heard >= cursor[kind] for kind, num_heard in view.cursor.items())


@pytest.mark.parametrize("lost", [StepCompleted, StageStarted])
def test_a_checkpoint_ahead_of_the_log_is_refused_with_what_is_missing(stopped, lost):
    log, folder = stopped
    shorter = new_log([event for event in reader_of(log).catch_up() if not isinstance(event, lost)])
    before = weights_digest(toy_model())
    setup = setup_of(shorter, folder)
    with pytest.raises(
        LogGap, match=rf"{checkpoint_name(2)} was written behind 1 events {lost.__name__}, the log holds 0.*archive"
    ):
        train(setup)
    assert setup.engine.digest() == before, "nothing was loaded"
    assert events_of(shorter, StepCompleted) == events_of(shorter, StepCompleted)[: 0 if lost is StepCompleted else 3]


def test_a_cursor_of_offsets_as_older_checkpoints_have_is_passed_over(stopped):
    refuse_lost_log(latest_complete(stopped[1]), {"steps/0": 99, "batches/0": 7}, RunView().cursor)


def test_a_checkpoint_of_other_weights_than_the_log_says_is_refused_with_both_digests(stopped, tmp_path):
    log, folder = stopped
    found = latest_complete(folder)
    state = load_training_state(found)
    write_checkpoint(tmp_path, 2, toy_model(9), None, state, (found.path / "step_completed.avro").read_bytes(), 3)
    with pytest.raises(
        DigestMismatch, match=f"holds weights {weights_digest(toy_model(9))}.*{digests_of(log)[2]} of step 2"
    ):
        train(setup_of(log, tmp_path))


ENGINES = {
    "lora": {"lora_rank": 4},
    "zero-2": {"engine": "deepspeed", "zero_stage": 2},
    "lora under zero-2": {"engine": "deepspeed", "zero_stage": 2, "lora_rank": 4},
}


def begun(log, folder, values):
    """A trainer that starts anew: policy of the run's first weights, engine, and a sampler that reads the engine's model."""
    config = CONFIG.model_copy(update=values)
    engine = engine_of(toy_model(), config)
    return setup_of(log, folder, HFSampler(engine.model, ToyTemplate()), config=config, engine=engine)


@pytest.mark.parametrize("values", ENGINES.values(), ids=ENGINES)
def test_adapters_and_spread_optimizers_resume_to_the_same_weights_from_any_checkpoint(tmp_path, values):
    pytest.importorskip("peft")
    pytest.importorskip("deepspeed")
    whole = new_log()
    assert train(begun(whole, tmp_path / "whole", values)) is RunOutcome.COMPLETED
    assert len(set(digests_of(whole).values())) == 4
    for dies_at, resumes_from in ((4, 0), (13, 0), (20, 2), (24, 2), (30, 3), (37, 4)):
        log, folder = new_log(), tmp_path / str(dies_at)
        log.left = dies_at
        with pytest.raises(Crash):
            train(begun(log, folder, values))
        assert latest_complete(folder).step == resumes_from
        log.left = None
        assert train(begun(log, folder, values)) is RunOutcome.COMPLETED
        assert digests_of(log) == digests_of(whole)
        ledger = RunIndex().add(reader_of(log).catch_up())
        assert missing(ledger) == duplicate(ledger) == []


def unsaid(events):
    """The same events as before rollouts said how they were sampled."""
    return [replace(e, format_hash="", sampling_json="") if isinstance(e, TrajectoryRecorded) else e for e in events]


def test_a_step_of_the_log_is_learned_again_from_what_it_took_although_today_it_would_be_refused(stopped, tmp_path):
    log = new_log(unsaid(reader_of(stopped[0]).catch_up()))
    before = digests_of(log)
    assert train(setup_of(log, tmp_path, format_hash="f")) is RunOutcome.COMPLETED
    assert len(before) == 3 and before.items() <= digests_of(log).items()
    assert events_of(log, RolloutsDropped) == []


@pytest.mark.parametrize("parent", ["", "parent"])
def test_a_fork_that_learns_the_rollouts_of_its_parent_takes_them_as_they_were_sampled(stopped, tmp_path, parent):
    started = make(
        RunStarted,
        RUN,
        config_json="{}",
        seed=11,
        versions={},
        template_hash="",
        tokenizer_hash="",
        tool_schema_hash="",
        weights_digest=weights_digest(toy_model()),
        parent_run_id=parent,
        forked_at_step=3,
    )
    past = [event for event in unsaid(reader_of(stopped[0]).catch_up()) if not isinstance(event, StepCompleted)]
    log = new_log([started, *past])
    assert train(setup_of(log, tmp_path, format_hash="f")) is RunOutcome.COMPLETED
    assert len(events_of(log, RolloutsDropped)) == (0 if parent else 6)
    assert (digests_of(log)[3] == digests_of(stopped[0])[3]) is bool(parent)


def test_the_digest_of_the_weights_is_taken_once_a_step(tmp_path):
    log, calls = new_log(), []
    setup = setup_of(log, tmp_path, config=config_of(), syncs=(Recording(),))
    real = setup.engine.digest
    setup.engine.digest = lambda: calls.append(1) or real()
    assert train(setup) is RunOutcome.COMPLETED
    assert len(calls) == 2 + 4, "of the first weights as they are checked and sent, and of each step"
