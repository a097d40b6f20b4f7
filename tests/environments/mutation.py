"""Transcripts that are nearly right: seeded changes of ground truths, from dropped calls to unknown functions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache

from environments.execution import make_call
from environments.registry import environment, load_tasks
from schemas.events import Call, Task

Turns = list[list[Call]]
Change = Callable[[Turns, Task, random.Random], None]
BFCL = environment()


@cache
def pool(owner: str) -> tuple[Call, ...]:
    """Ground-truth calls of one class over all tasks, as material for extra calls."""
    found = {}
    for task in load_tasks("all"):
        tools = BFCL.tools(task)
        for turn in task.turns:
            for call in turn.ground_truth:
                if tools[call.name].owner == owner:
                    found[call] = None
    return tuple(found)


def _spot(turns: Turns, rng: random.Random) -> tuple[int, int] | None:
    spots = [(turn, index) for turn, calls in enumerate(turns) for index in range(len(calls))]
    return rng.choice(spots) if spots else None


def drop(turns: Turns, task: Task, rng: random.Random) -> None:
    spot = _spot(turns, rng)
    if spot:
        del turns[spot[0]][spot[1]]


def repeat(turns: Turns, task: Task, rng: random.Random) -> None:
    spot = _spot(turns, rng)
    if spot:
        turns[spot[0]].insert(spot[1], turns[spot[0]][spot[1]])


def reorder(turns: Turns, task: Task, rng: random.Random) -> None:
    rng.shuffle(rng.choice(turns))


def postpone(turns: Turns, task: Task, rng: random.Random) -> None:
    spot = _spot(turns, rng)
    if spot and spot[0] + 1 < len(turns):
        turns[spot[0] + 1].insert(0, turns[spot[0]].pop(spot[1]))


def extra(turns: Turns, task: Task, rng: random.Random) -> None:
    call = rng.choice(pool(rng.choice(task.involved_classes)))
    turn = rng.choice(turns)
    turn.insert(rng.randint(0, len(turn)), call)


def any_function(turns: Turns, task: Task, rng: random.Random) -> None:
    tool = rng.choice(list(BFCL.tools(task).values()))
    samples = {"string": "a", "integer": 3, "number": 2.5, "boolean": True, "array": ["x"], "object": {"title": "t"}}
    kinds = {name: each["type"] for name, each in tool.parameters["properties"].items()}
    arguments = {name: samples[kind if isinstance(kind, str) else kind[0]] for name, kind in kinds.items()}
    rng.choice(turns).append(make_call(tool.name, arguments))


def unknown_function(turns: Turns, task: Task, rng: random.Random) -> None:
    rng.choice(turns).append(make_call("frobnicate", {"x": 1}))


def in_empty_turn(turns: Turns, task: Task, rng: random.Random) -> None:
    empty = [index for index, turn in enumerate(task.turns) if not turn.ground_truth]
    if empty:
        turns[rng.choice(empty)].append(rng.choice(pool(rng.choice(task.involved_classes))))


def silent_turn(turns: Turns, task: Task, rng: random.Random) -> None:
    rng.choice(turns).clear()


def alter(turns: Turns, task: Task, rng: random.Random) -> None:
    spot = _spot(turns, rng)
    if spot:
        call = turns[spot[0]][spot[1]]
        arguments = json.loads(call.arguments_json)
        if arguments:
            name = rng.choice(sorted(arguments))
            arguments[name] = _altered(arguments[name], rng)
        turns[spot[0]][spot[1]] = make_call(call.name, arguments)


def _altered(value: object, rng: random.Random) -> object:
    if isinstance(value, bool):
        return rng.choice([not value, int(value)])
    if isinstance(value, int):
        return rng.choice([value + 1, float(value), str(value), -value])
    if isinstance(value, float):
        return rng.choice([value + 0.5, int(value), str(value)])
    if isinstance(value, str):
        return rng.choice([value + " ", value.upper(), "", 7, [value]])
    if isinstance(value, list):
        return rng.choice([value[::-1], value[1:], [*value, "x"], "x"])
    return rng.choice([{}, None])


def misname(turns: Turns, task: Task, rng: random.Random) -> None:
    spot = _spot(turns, rng)
    if spot:
        call = turns[spot[0]][spot[1]]
        arguments = json.loads(call.arguments_json)
        if rng.random() < 0.5 and arguments:
            del arguments[rng.choice(sorted(arguments))]
        else:
            arguments["surplus"] = 1
        turns[spot[0]][spot[1]] = make_call(call.name, arguments)


CHANGES: tuple[Change, ...] = (
    drop, repeat, reorder, postpone, extra, any_function, unknown_function, in_empty_turn, silent_turn, alter, misname,
)  # fmt: skip


def mutated(task: Task, rng: random.Random) -> list[list[list[Call]]]:
    """The ground truth with one to three changes, split into steps at random: turns, steps, calls."""
    turns = [list(turn.ground_truth) for turn in task.turns]
    for change in rng.choices(CHANGES, k=rng.randint(1, 3)):
        change(turns, task, rng)
    return [_steps(calls, rng) for calls in turns]


def _steps(calls: list[Call], rng: random.Random) -> list[list[Call]]:
    steps: list[list[Call]] = []
    for call in calls:
        if steps and rng.random() < 0.5:
            steps[-1].append(call)
        else:
            steps.append([call])
    return steps
