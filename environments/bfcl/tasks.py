"""The 800 multi-turn tasks and their 400 / 100 / 300 split, as Task records with ground truth as named calls."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache

from environments.bfcl.catalogue import schemas
from environments.bfcl.source import VERSION, json_lines
from environments.interface import EnvironmentUnavailable, ToolSchema
from environments.parsing.outcome import Malformed
from environments.parsing.python_calls import read_calls
from schemas.events import Call, Category, Task, Turn

ENVIRONMENT_NAME = "bfcl-v3"
NUM_SEEDS = 200
SPLIT_SEED = 42
NUM_TRAIN, NUM_VAL = 100, 25


@cache
def split_indices() -> Mapping[str, tuple[int, ...]]:
    """Seed indices of each split, ascending; the same in all four categories, so no seed is on both sides."""
    shuffled = list(range(NUM_SEEDS))
    random.Random(SPLIT_SEED).shuffle(shuffled)
    parts = {
        "train": shuffled[:NUM_TRAIN],
        "val": shuffled[NUM_TRAIN : NUM_TRAIN + NUM_VAL],
        "test": shuffled[NUM_TRAIN + NUM_VAL :],
        "all": shuffled,
    }
    return {name: tuple(sorted(indices)) for name, indices in parts.items()}


@cache
def load(split: str) -> tuple[Task, ...]:
    """Tasks of a split by category, then by index.

    Raises:
        ValueError: no such split.
    """
    indices = split_indices().get(split)
    if indices is None:
        raise ValueError(f"no split '{split}'; there are {', '.join(split_indices())}")
    return tuple(_category(category)[index] for category in Category for index in indices)


def _records(category: Category) -> tuple[list[dict], dict[str, list]]:
    name = f"BFCL_v4_multi_turn_{category.value}.json"
    return json_lines(name), {record["id"]: record["ground_truth"] for record in json_lines("possible_answer", name)}


@cache
def _category(category: Category) -> tuple[Task, ...]:
    questions, answers = _records(category)
    return tuple(_task(record, answers[record["id"]], category) for record in questions)


def _task(record: Mapping, answer: list[list[str]], category: Category) -> Task:
    if len(answer) != len(record["question"]):
        raise EnvironmentUnavailable(f"{record['id']}: {len(record['question'])} turns but {len(answer)} answers")
    offered: dict[str, ToolSchema] = {}
    for class_name in record["involved_classes"]:
        offered.update(schemas(class_name))
    restored = {int(turn): tuple(names) for turn, names in record.get("missed_function", {}).items()}
    turns = tuple(
        Turn(
            user_text=messages[0]["content"] if messages else "",
            ground_truth=tuple(call for text in answer[index] for call in _calls(record["id"], text, offered)),
            restored_functions=restored.get(index, ()),
        )
        for index, messages in enumerate(record["question"])
    )
    return Task(
        task_id=record["id"],
        environment=ENVIRONMENT_NAME,
        environment_version=VERSION,
        category=category,
        involved_classes=tuple(record["involved_classes"]),
        initial_config_json=json.dumps(record["initial_config"], separators=(",", ":"), ensure_ascii=False),
        turns=turns,
        withheld_functions=tuple(name for names in restored.values() for name in names),
        excluded_functions=tuple(record.get("excluded_function", ())),
        long_context=category is Category.LONG_CONTEXT,
    )


def _calls(task_id: str, text: str, offered: Mapping[str, ToolSchema]) -> tuple[Call, ...]:
    try:
        return read_calls(text, offered)
    except Malformed as error:
        raise EnvironmentUnavailable(f"{task_id}: cannot read ground truth {text!r}: {error.reason}") from error
