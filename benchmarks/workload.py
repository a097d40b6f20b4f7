"""A long run without models: the pool decides, a scripted trainer answers with groups of K rewards.

Every signal ends in SynthesisFailed, so the decisions do not depend on when an answer is heard, and the same events can be
folded from files, heard by the worker from a backlog, or written as JSON lines.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count

from schemas import Event, make
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Category,
    GroupStatus,
    RewardKind,
    RolloutGroupCompleted,
    RunStarted,
    StageStarted,
    StepCompleted,
    SynthesisFailed,
    SynthesisFailure,
    Task,
    TaskSeeded,
    Turn,
)
from streams.pool.decide import decide
from streams.pool.pool import fold, initial

RUN = "20260131-120000-bench"
K, NUM_TURNS, NUM_SEEDS, NUM_SHAPES = 16, 3, 400, 512
SETTINGS = {"batch_size": 32, "quota": dict.fromkeys(("base", "miss_func", "miss_param", "long_context"), 1)}
EVER = 10**6
CATEGORIES = list(Category)


def events(limit: int, seed: int = 7) -> Iterator[Event]:
    """The first ``limit`` events of the run, in log order; inputs and decisions."""
    for number, event in enumerate(endless(seed)):
        if number == limit:
            return
        yield event


def endless(seed: int) -> Iterator[Event]:
    """The run, for ever."""
    rng = random.Random(seed)
    shapes, ids = [shape(rng) for _ in range(NUM_SHAPES)], count(rng.getrandbits(100))
    said = opening()
    pool = fold(initial(), said)
    yield from said
    while True:
        decided = decide(pool)
        answers = [answer for event in decided for answer in reply(event, rng, shapes, ids)]
        yield from decided
        yield from answers
        pool = fold(fold(pool, decided), answers)


def opening() -> list[Event]:
    """Start, stage and seeds."""
    ids = [f"multi_turn_{CATEGORIES[i % 4].value}_{i}" for i in range(NUM_SEEDS)]
    return [
        make(
            RunStarted,
            RUN,
            config_json=json.dumps({"pool": SETTINGS}),
            seed=7,
            versions={},
            template_hash="",
            tokenizer_hash="",
            tool_schema_hash="",
            weights_digest="",
        ),
        make(
            StageStarted,
            RUN,
            stage="full",
            ordinal=0,
            reward=RewardKind.PROGRESS,
            synthesis=True,
            first_step=1,
            first_epoch=0,
            num_epochs=EVER,
            task_ids=tuple(ids),
        ),
        *(make(TaskSeeded, RUN, task=task(task_id, CATEGORIES[i % 4]), position=i) for i, task_id in enumerate(ids)),
    ]


def task(task_id: str, category: Category) -> Task:
    """A task without content."""
    turns = tuple(Turn(user_text=f"turn {turn}", ground_truth=()) for turn in range(NUM_TURNS))
    return Task(
        task_id=task_id,
        environment="none",
        environment_version="1",
        category=category,
        involved_classes=("A",),
        initial_config_json="{}",
        turns=turns,
    )


Shape = dict[str, tuple]
"""Rewards, verdicts and codes of one group."""


def shape(rng: random.Random) -> Shape:
    """K rollouts of one ability: turns right until the first wrong one, two messages a turn."""
    ability = rng.random()
    verdicts = []
    for _ in range(K):
        right = next((turn for turn in range(NUM_TURNS) if rng.random() > ability), NUM_TURNS)
        verdicts.append((1,) * right + (0,) * (NUM_TURNS - right))
    return {
        "rewards": tuple(sum(v) / NUM_TURNS for v in verdicts),
        "format_rewards": (None,) * K,
        "turn_verdicts": tuple(verdicts),
        "codes": tuple(tuple(code for verdict in v for code in (-1, verdict)) for v in verdicts),
    }


def reply(event: Event, rng: random.Random, shapes: list[Shape], ids: Iterator[int]) -> list[Event]:
    """What trainer and synthesizer say to a decision."""
    if isinstance(event, BatchPlanned):
        return [*(group(task_id, event, rng.choice(shapes), ids) for task_id in event.task_ids), step_completed(event)]
    if isinstance(event, BoundaryDetected):
        return [
            make(
                SynthesisFailed,
                RUN,
                caused_by=event.event_id,
                signal_id=event.signal_id,
                task_id=event.task_id,
                failure=SynthesisFailure.VM_EXEC_FAILED,
                detail="scripted",
                num_attempts=3,
                backend="none",
            )
        ]
    return []


def group(task_id: str, batch: BatchPlanned, values: Shape, ids: Iterator[int]) -> RolloutGroupCompleted:
    """One ended group of a batch."""
    return make(
        RolloutGroupCompleted,
        RUN,
        caused_by=batch.event_id,
        task_id=task_id,
        step=batch.step,
        epoch=batch.epoch,
        status=GroupStatus.COMPLETED,
        policy_version=batch.step - 1,
        num_rollouts=K,
        num_valid=K,
        trajectory_ids=tuple([f"{next(ids):032x}" for _ in range(K)]),
        **values,
    )


def step_completed(batch: BatchPlanned) -> StepCompleted:
    """The update of a batch."""
    return make(
        StepCompleted,
        RUN,
        caused_by=batch.event_id,
        step=batch.step,
        epoch=batch.epoch,
        stage="full",
        policy_version=batch.step,
        weights_digest=f"{batch.step:064x}",
        is_last_of_epoch=batch.is_last_of_epoch,
        num_groups=len(batch.task_ids),
        num_zero_variance=0,
        num_trajectories=K * len(batch.task_ids),
        num_trained_tokens=0,
        group_ids=(),
        metrics={},
    )
