"""Duplicates, leakage, provenance, genuineness, profile."""

from dataclasses import replace

import pytest

from schemas.events import Category, SynthesisFailure
from synthesizer import guards
from synthesizer.config import SynthesisConfig
from synthesizer.execution import run
from synthesizer.grounding import in_text
from synthesizer.profile import compared, differences, profile_of
from tests.synthesizer.building import ENVIRONMENT, SEEDS, call, file_task, ticket_task, turn

CONFIG = SynthesisConfig()
SHOW = file_task(turn("Show a.txt.", call("cat", file_name="a.txt")))


def provenance_of(task, tolerated=frozenset()):
    return guards.provenance(task, run(ENVIRONMENT, task), ENVIRONMENT.tools(task), tolerated)


def test_the_fingerprint_covers_category_state_and_ground_truth_and_nothing_else():
    same = replace(SHOW, task_id="other", turns=(turn("Please show me a.txt.", call("cat", file_name="a.txt")),))
    longer = replace(SHOW, category=Category.LONG_CONTEXT)
    other_call = replace(SHOW, turns=(turn("Show a.txt.", call("tail", file_name="a.txt")),))
    assert guards.fingerprint(same) == guards.fingerprint(SHOW)
    assert len({guards.fingerprint(task) for task in (SHOW, longer, other_call)}) == 3


def test_an_exact_duplicate_is_refused_with_the_twin_s_name():
    failure = guards.duplicate(replace(SHOW, task_id="new"), {guards.fingerprint(SHOW): "old"})
    assert failure.failure is SynthesisFailure.GUARD_DUPLICATE and "old" in failure.detail
    assert guards.duplicate(SHOW, {}) is None


def test_a_near_duplicate_is_refused_from_the_set_similarity_on():
    words = " ".join(f"word{index}" for index in range(60))
    old, new = (file_task(turn(f"{words} {end}", call("ls", a=True))) for end in ("now", "soon"))
    assert guards.near_duplicate(new, [old], 0.9).failure is SynthesisFailure.GUARD_DUPLICATE
    assert guards.near_duplicate(new, [old], 0.99) is None
    assert guards.near_duplicate(old, [old], 1.0) is None


def test_a_held_out_ground_truth_or_state_is_refused():
    other_state = replace(SHOW, initial_config_json="{}")
    other_calls = replace(SHOW, turns=(turn("List.", call("ls", a=True)),))
    configs, truths = {guards.config_digest(SHOW): "val"}, {guards.ground_truth_digest(SHOW): "val"}
    assert "ground truth" in guards.leakage(other_state, configs, truths).detail
    assert "initial state" in guards.leakage(other_calls, configs, truths).detail
    assert guards.leakage(replace(other_state, turns=other_calls.turns), configs, truths) is None


def test_key_order_of_the_state_hides_no_leak():
    one = replace(SHOW, initial_config_json='{"A":{"x":1,"y":2}}')
    other = replace(SHOW, initial_config_json='{"A":{"y":2,"x":1}}')
    assert guards.config_digest(one) == guards.config_digest(other)


def test_values_from_text_and_earlier_results_are_explained():
    task = ticket_task(
        turn(
            "Open a ticket 'Broken chair' that says 'Leg is loose.'.",
            call("create_ticket", title="Broken chair", description="Leg is loose.", priority=1),
        ),
        turn("Show it.", call("get_ticket", ticket_id=8000)),
    )
    assert provenance_of(task) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-11-15", "on November 15th 2026"),
        ("2026-11-15", "the 15th day of November, 2026"),
        ("2026-11-15", "for 2026-11-15;"),
        (20000.0, "a 20,000 RMB allowance"),
        ("#RoadTrip", "with the tag RoadTrip"),
        ("AAPL", "shares of 'aapl'"),
    ],
)
def test_a_value_is_recognised_in_other_words(value, text):
    assert in_text(value, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-11-15", "on November 16th 2026"),
        (2, "on December 2nd"),
        (12, "id 12-34"),
        ("cat", "a category"),
        ("report", "report.txt"),
    ],
)
def test_a_value_is_not_seen_inside_another_one(value, text):
    assert not in_text(value, text)


def test_a_value_out_of_nowhere_is_refused_with_its_place():
    task = ticket_task(turn("Close the ticket.", call("close_ticket", ticket_id=4711)))
    failure = provenance_of(task)
    assert failure.failure is SynthesisFailure.GUARD_PROVENANCE and "ticket_id = 4711" in failure.detail


def test_a_value_that_only_a_later_text_gives_is_refused():
    task = file_task(turn("Show it.", call("cat", file_name="q.txt")), turn("I mean q.txt."))
    assert provenance_of(task).failure is SynthesisFailure.GUARD_PROVENANCE


def test_what_the_seed_leaves_unexplained_may_recur_in_its_place():
    task = ticket_task(turn("Close the ticket.", call("close_ticket", ticket_id=4711)))
    assert provenance_of(task, frozenset({(0, 0, "ticket_id", ())})) is None


def asked_for_a_file(*before):
    return file_task(
        *before,
        turn("Show one of the files."),
        turn("I mean a.txt.", call("cat", file_name="a.txt")),
        category=Category.MISS_PARAM,
    )


def test_a_missing_value_that_nothing_before_shows_is_genuine():
    task = asked_for_a_file()
    position = (1, 0, "file_name", ())
    assert guards.genuine(task, run(ENVIRONMENT, task)) == {position: "a.txt"}
    assert guards.genuineness(task, run(ENVIRONMENT, task), [position]) is None


def test_a_missing_value_that_an_earlier_result_shows_is_refused():
    task = asked_for_a_file(turn("List the files.", call("ls", a=True)))
    for required in ((), [(2, 0, "file_name", ())]):
        failure = guards.genuineness(task, run(ENVIRONMENT, task), required)
        assert failure.failure is SynthesisFailure.GUARD_GENUINENESS


def test_a_missing_value_that_an_earlier_text_says_is_refused():
    task = asked_for_a_file(turn("There is a.txt here.", call("ls", a=False)))
    failure = guards.genuineness(task, run(ENVIRONMENT, task), [(2, 0, "file_name", ())])
    assert "the missing file_name is visible" in failure.detail


def test_the_profile_finds_value_and_state_edges_by_running_the_calls():
    task = ticket_task(
        turn("Open a ticket 'Broken chair'.", call("create_ticket", title="Broken chair", priority=1)),
        turn("Show it.", call("get_ticket", ticket_id=8000)),
    )
    profile = profile_of(ENVIRONMENT, task)
    assert profile.value_edges == ((0, 1),) and profile.state_edges == ((0, 1),)
    assert (profile.depth, profile.num_cross_turn_edges, profile.num_coreferences, profile.num_writes) == (2, 1, 1, 1)
    assert '"depth":2' in profile.to_json()


def test_the_profile_guard_names_every_difference():
    seed = profile_of(ENVIRONMENT, SEEDS["multi_turn_base_130"])
    flat = replace(seed, calls_per_turn=(2,), depth=1, num_cross_turn_edges=0, num_writes=0, classes=("A", "B"))
    found = differences(seed, flat, CONFIG)
    assert len(found) == 6
    assert compared(seed, flat, CONFIG).failure is SynthesisFailure.GUARD_PROFILE
    assert compared(seed, seed, CONFIG) is None
