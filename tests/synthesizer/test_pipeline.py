"""One signal in, its events out."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from environments.registry import load_tasks
from schemas import encode
from schemas.events import Category, SynthesisFailed, SynthesisFailure, TaskSynthesized, VariantRejected
from synthesizer.book import TaskBook
from synthesizer.config import ProfileMode, SynthesisConfig
from synthesizer.guards import fingerprint
from synthesizer.outcome import Failure
from synthesizer.pipeline import outcome_of
from synthesizer.scripted import ScriptedBackend, at_once, variants
from tests.synthesizer.building import ENVIRONMENT, SEEDS, call, drafted, seeded, signal_for, ticket_task, turn
from tests.synthesizer.doubles import Answering

CONFIG = SynthesisConfig()
SEED = ticket_task(
    turn("Open a ticket titled 'Broken chair' for me.", call("create_ticket", title="Broken chair", priority=1)),
    turn("Show it.", call("get_ticket", ticket_id=8000)),
)
GOOD = drafted(
    replace(
        SEED,
        turns=(
            turn("Open a ticket titled 'Loose wire' please.", call("create_ticket", title="Loose wire", priority=1)),
            SEED.turns[1],
        ),
    )
)
BAD = drafted(replace(SEED, turns=(turn("Show a ticket.", call("get_ticket", ticket_id=1)),)))
NO = Failure(SynthesisFailure.NO_PATTERN, "no idea")


def outcome(backend, seed=SEED, config=CONFIG, **signal):
    book = TaskBook()
    book.fold([seeded(seed)])
    return at_once(outcome_of(signal_for(seed, **signal), seed, book, backend, config))


def test_a_good_draft_becomes_one_synthesized_task_with_its_lineage():
    (event,) = outcome(Answering(NO, GOOD))
    assert isinstance(event, TaskSynthesized)
    assert (event.parent_task_id, event.root_task_id, event.generation) == (SEED.task_id, SEED.task_id, 1)
    assert (event.seed_step, event.seed_rank, event.num_attempts, event.backend) == (3, 1, 2, "answering")
    assert event.task.task_id.startswith(SEED.task_id + "~") and "base" in event.task.task_id
    assert event.fingerprint == fingerprint(event.task) and '"depth":2' in event.variant_profile_json
    assert event.caused_by == event.signal_id


def test_a_refused_candidate_is_kept_whole_and_is_not_terminal():
    events = outcome(Answering(BAD, NO, GOOD))
    assert [type(event) for event in events] == [VariantRejected, TaskSynthesized]
    assert events[0].candidate.turns == BAD.task.turns and events[0].failure is SynthesisFailure.GATE_EXECUTION
    assert (events[0].attempt, events[1].num_attempts) == (0, 3)


def test_after_k_max_attempts_the_signal_fails_with_the_last_reason_and_all_types():
    events = outcome(Answering(NO, BAD))
    assert [type(event) for event in events] == [VariantRejected, VariantRejected, SynthesisFailed]
    assert events[-1].failures == (
        SynthesisFailure.NO_PATTERN,
        SynthesisFailure.GATE_EXECUTION,
        SynthesisFailure.GATE_EXECUTION,
    )
    assert events[-1].failure is SynthesisFailure.GATE_EXECUTION and "get_ticket" in events[-1].detail
    assert len({event.event_id for event in events}) == 3


def test_each_attempt_has_its_own_seed_and_hears_what_failed_before():
    backend = Answering(NO)
    outcome(backend)
    assert [attempt.number for attempt in backend.attempts] == [0, 1, 2]
    assert len({attempt.seed for attempt in backend.attempts}) == 3
    assert [len(attempt.history) for attempt in backend.attempts] == [0, 1, 2]


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("bad"), RuntimeError("late"), OSError("gone")])
def test_an_unexpected_error_ends_as_pipeline_exception_with_its_text(error):
    (event,) = outcome(Answering(error))
    assert event.failure is SynthesisFailure.PIPELINE_EXCEPTION and type(error).__name__ in event.detail


def test_an_unknown_environment_ends_as_pipeline_exception():
    (event,) = outcome(Answering(GOOD), seed=replace(SEED, environment="nowhere"))
    assert event.failure is SynthesisFailure.PIPELINE_EXCEPTION and "nowhere" in event.detail


def test_a_judge_may_refuse_or_refine_and_a_refined_draft_is_judged_by_the_gates_again():
    refused = outcome(Answering(GOOD, review=Failure(SynthesisFailure.JUDGE_REJECTED, "dull")))
    assert refused[0].failure is SynthesisFailure.JUDGE_REJECTED and isinstance(refused[-1], SynthesisFailed)
    broken = outcome(Answering(GOOD, review=BAD))
    assert broken[0].failure is SynthesisFailure.GATE_EXECUTION


def test_a_base_draft_for_another_category_is_augmented_before_the_gates():
    seed = SEEDS["multi_turn_miss_func_130"]
    base = drafted(SEEDS["multi_turn_base_100"])
    events = outcome(Answering(base), seed=seed, config=CONFIG.model_copy(update={"profile_mode": ProfileMode.OFF}))
    made = events[-1].task if isinstance(events[-1], TaskSynthesized) else events[0].candidate
    assert made.category is Category.MISS_FUNC and made.withheld_functions


def test_profile_modes_switch_between_silence_report_and_refusal():
    flat = drafted(
        replace(
            SEED,
            turns=(
                turn(
                    "Open a ticket titled 'Loose wire' please.", call("create_ticket", title="Loose wire", priority=1)
                ),
            ),
        )
    )
    by_mode = {
        mode: outcome(Answering(flat), config=CONFIG.model_copy(update={"profile_mode": mode}))[-1]
        for mode in ProfileMode
    }
    assert by_mode[ProfileMode.ENFORCE].failure is SynthesisFailure.GUARD_PROFILE
    assert by_mode[ProfileMode.REPORT].variant_profile_json and not by_mode[ProfileMode.OFF].variant_profile_json


def test_the_same_signal_gives_identical_bytes():
    for seed in list(SEEDS.values())[::29]:
        first, second = (outcome(ScriptedBackend(), seed=seed) for _ in range(2))
        assert [encode(event) for event in first] == [encode(event) for event in second]


def test_another_process_with_another_hash_seed_gives_identical_bytes():
    script = (
        "import hashlib\n"
        "from schemas import encode\n"
        "from tests.synthesizer.test_pipeline import SEEDS, ScriptedBackend, outcome\n"
        "events = [e for s in list(SEEDS.values())[::57] for e in outcome(ScriptedBackend(), seed=s)]\n"
        "print(hashlib.sha256(b''.join(map(encode, events))).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and len(digests.pop().strip()) == 64


def test_other_signals_give_other_variants():
    seed = SEEDS["multi_turn_base_130"]
    tasks = {outcome(ScriptedBackend(), seed=seed, step=step)[-1].task for step in range(4)}
    assert len({fingerprint(task) for task in tasks}) == 4 and len({task.task_id for task in tasks}) == 4


def test_a_variant_never_repeats_a_held_out_task():
    held_out = load_tasks("val") + load_tasks("test")
    book = TaskBook(held_out)
    twin = drafted(held_out[0])
    seed = next(task for task in SEEDS.values() if task.category is held_out[0].category)
    config = CONFIG.model_copy(update={"profile_mode": ProfileMode.OFF})
    events = at_once(outcome_of(signal_for(seed), seed, book, Answering(twin), config))
    assert events[-1].failure is SynthesisFailure.GUARD_LEAKAGE and held_out[0].task_id in events[-1].detail


def test_most_training_seeds_of_every_category_yield_variants():
    counts, seeds = Counter(), list(SEEDS.values())[::5]
    for seed in seeds:
        counts[seed.category] += isinstance(outcome(ScriptedBackend(), seed=seed)[-1], TaskSynthesized)
    for category in Category:
        assert counts[category] >= 0.8 * sum(seed.category is category for seed in seeds)


def test_variants_of_a_task_differ_from_it_and_from_each_other():
    task = SEEDS["multi_turn_base_156"]
    made = variants(task, 5, seed=7)
    assert made == variants(task, 5, seed=7) and made != variants(task, 5, seed=8)
    assert len({fingerprint(item) for item in [task, *made]}) == 6
    assert {item.category for item in made} == {task.category}


def test_a_scripted_variant_keeps_functions_and_turns_and_changes_names_everywhere():
    seed = SEEDS["multi_turn_base_156"]
    task = outcome(ScriptedBackend(), seed=seed)[-1].task
    functions = [[item.name for item in one.ground_truth] for one in seed.turns]
    assert [[item.name for item in one.ground_truth] for one in task.turns] == functions
    whole = task.initial_config_json + str(task.turns)
    for old in ("Thompson", "mthompson", "abc123xyz456", "travel_card_12345"):
        assert old not in whole
    assert ENVIRONMENT.name == task.environment and task.id_seed > 0
