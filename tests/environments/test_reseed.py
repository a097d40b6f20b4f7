"""Other random ids: nothing to memorise, and a ground truth that follows."""

from __future__ import annotations

import json
from dataclasses import replace

from environments.registry import environment, load_tasks
from environments.reseed import NotReseedable, reseed, reseed_all
from environments.scoring import Reference
from environments.scoring.official import score

BFCL = environment()
TASKS = load_tasks("all")
FIRST_BOOKING, FIRST_MESSAGE = "3426812", "67410"


def written(tasks):
    return json.dumps(
        [[turn.user_text, [call.arguments_json for call in turn.ground_truth]] for t in tasks for turn in t.turns]
    )


def test_the_constant_ids_of_the_benchmark_are_gone_from_every_reseeded_task():
    changed, kept = reseed_all(BFCL, TASKS, 7)
    assert FIRST_BOOKING in written(TASKS) and FIRST_MESSAGE in written(TASKS)
    new = [task for task in changed if task.id_seed]
    assert FIRST_BOOKING not in written(new) and FIRST_MESSAGE not in written(new)
    assert {task.task_id for task in TASKS} == {task.task_id for task in changed}
    assert sorted(each.task_id.rsplit("_", 1)[1] for each in kept) == ["161"] * 4
    assert all("initial configuration" in each.reason for each in kept)
    for task in new:
        reference = Reference.of(BFCL, task)
        assert reference.failures == ()
        assert score(BFCL, task, reference, [[turn.ground_truth] for turn in task.turns]).valid


def test_user_texts_that_quote_an_id_follow():
    task = next(task for task in TASKS if task.task_id == "multi_turn_base_149")
    new = reseed(BFCL, task, 7)
    assert FIRST_MESSAGE in task.turns[-1].user_text + task.turns[-2].user_text
    assert FIRST_MESSAGE not in "".join(turn.user_text for turn in new.turns)


def test_one_seed_gives_one_task_and_another_seed_another():
    task = next(task for task in TASKS if FIRST_BOOKING in written([task]))
    assert reseed(BFCL, task, 3) == reseed(BFCL, task, 3)
    assert written([reseed(BFCL, task, 3)]) != written([reseed(BFCL, task, 4)]) != written([task])


def test_seed_zero_is_the_official_evaluation():
    assert all(task.id_seed == 0 for task in TASKS)
    assert isinstance(reseed(BFCL, TASKS[0], 0), NotReseedable)


def test_a_memorised_id_fails_where_ids_are_reseeded():
    task = next(task for task in TASKS if FIRST_BOOKING in written([task]) and "cancel_booking" in written_names(task))
    new = reseed(BFCL, task, 5)
    memorised = [[turn.ground_truth] for turn in task.turns]
    assert score(BFCL, task, Reference.of(BFCL, task), memorised).valid
    assert not score(BFCL, new, Reference.of(BFCL, new), memorised).valid


def written_names(task):
    return {call.name for turn in task.turns for call in turn.ground_truth}


def test_other_environments_can_be_reseeded_too():
    workshop = environment("workshop")
    tasks = load_tasks("all", "workshop")
    changed, kept = reseed_all(workshop, tasks, 11)
    assert kept == ()
    assert all(Reference.of(workshop, task).failures == () for task in changed)
    stale = [replace(task, id_seed=11) for task in tasks]
    assert any(Reference.of(workshop, task).failures for task in stale)
