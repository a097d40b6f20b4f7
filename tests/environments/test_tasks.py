"""The benchmark's tasks: complete, pinned, split by seed, with ground truth that runs."""

from __future__ import annotations

import hashlib
import json

import pytest

from environments.bfcl.source import VERSION
from environments.execution import execute
from environments.interface import EXECUTION_ERROR_PREFIX
from environments.registry import environment, load_tasks
from environments.scoring import Reference, contains_all, same_state
from schemas.events import Category

BFCL = environment()
TRAIN_DIGEST = "7070e0154e15b3725e96304740caa3ff1a95d156450515266ec02cf8789fbdff"
HELD_OUT_DIGEST = "8072554f60b5cdd258aa30be852beb6ef31be751c4c02846b69222389a673e12"


def ids_digest(*splits: str) -> str:
    ids = sorted(task.task_id for split in splits for task in load_tasks(split))
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def test_the_split_has_the_published_ids():
    assert [len(load_tasks(split)) for split in ("train", "val", "test", "all")] == [400, 100, 300, 800]
    assert ids_digest("train") == TRAIN_DIGEST
    assert ids_digest("val", "test") == HELD_OUT_DIGEST


def test_no_seed_is_on_both_sides_of_the_split():
    def seeds(split):
        return {task.task_id.rsplit("_", 1)[1] for task in load_tasks(split)}

    assert not seeds("train") & (seeds("val") | seeds("test"))
    assert not seeds("val") & seeds("test")


def test_tasks_come_by_category_then_by_index():
    keys = [(list(Category).index(task.category), int(task.task_id.rsplit("_", 1)[1])) for task in load_tasks("train")]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("category", "num_turns", "num_calls", "num_empty"),
    [
        ("base", 734, 1142, 3),
        ("miss_func", 934, 1140, 203),
        ("miss_param", 934, 1140, 203),
        ("long_context", 734, 1203, 3),
    ],
)
def test_turns_calls_and_empty_turns_are_all_there(category, num_turns, num_calls, num_empty):
    turns = [turn for task in load_tasks("all") if task.category == category for turn in task.turns]
    assert len(turns) == num_turns
    assert sum(len(turn.ground_truth) for turn in turns) == num_calls
    assert sum(not turn.ground_truth for turn in turns) == num_empty


def test_a_missing_function_is_withheld_and_restored_in_a_turn_without_words():
    task = next(task for task in load_tasks("all") if task.task_id == "multi_turn_miss_func_4")
    assert task.withheld_functions == ("sort", "echo")
    assert task.turns[1].ground_truth == ()
    assert task.turns[2].user_text == ""
    assert task.turns[2].restored_functions == ("sort", "echo")
    assert [call.name for call in task.turns[2].ground_truth] == ["sort"]
    assert all(
        sorted(task.withheld_functions) == sorted(name for turn in task.turns for name in turn.restored_functions)
        for task in load_tasks("all")
    )


def test_ground_truth_arguments_are_named_and_canonical():
    task = next(task for task in load_tasks("all") if task.task_id == "multi_turn_base_4")
    post = task.turns[2].ground_truth[0]
    assert json.loads(post.arguments_json)["mentions"] == ["@Julia"]
    for each in load_tasks("all"):
        for turn in each.turns:
            for call in turn.ground_truth:
                arguments = json.loads(call.arguments_json)
                canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                assert canonical == call.arguments_json


def test_every_ground_truth_runs_within_its_schemas_and_reaches_its_own_reference():
    for task in load_tasks("all"):
        reference, state, tools = Reference.of(BFCL, task), BFCL.start(task), BFCL.tools(task)
        assert reference.failures == ()
        for index, turn in enumerate(task.turns):
            results = [execute(BFCL, state, call, tools) for call in turn.ground_truth]
            assert not [text for text in results if text.startswith(EXECUTION_ERROR_PREFIX)], task.task_id
            assert contains_all(reference.results[index], results), task.task_id
            assert same_state(BFCL, state, reference, index), task.task_id
            assert BFCL.digest(state) == reference.digests[index], task.task_id


def test_tasks_carry_the_version_they_were_made_with():
    assert {(task.environment, task.environment_version) for task in load_tasks("all")} == {("bfcl-v3", VERSION)}


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="no split 'dev'"):
        load_tasks("dev")
