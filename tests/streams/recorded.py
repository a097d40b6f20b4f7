"""Records a whole run in an archive folder: the real keeper decides, the rest is scripted, bodies included."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from schemas import TOPICS, Event, make
from schemas.events import (
    BatchPlanned,
    Call,
    FinishReason,
    Message,
    MessageOutcome,
    RolloutGroupCompleted,
    StepCompleted,
    TrajectoryRecorded,
)
from schemas.packed import pack_ids, pack_logprobs, pack_mask
from streams.archive.segments import ArchiveLog
from streams.log.port import MemoryLog, beginning, partition_counts
from streams.pool.keeper import INPUT_TOPICS, PoolKeeper
from tests.streams.building import RUN, group, opening, reply, run_finished

SETTINGS = {
    "batch_size": 4,
    "quota": {"base": 2, "miss_func": 1, "miss_param": 2, "long_context": 1},
    "cooldown": 1,
    "cooldown_unit": "epochs",
    "await_synthesis": True,
    "injection_frac": 0.4,
    "max_generated": 4,
}
PARTITIONS = partition_counts(TOPICS, 1, 2)
T0_MS = 1_790_000_000_000
NUM_ROLLOUTS = 4


def rewards_of(task_id: str, step: int) -> list[float]:
    """Four rewards in quarters that depend on task and step alone."""
    digest = hashlib.sha256(f"{task_id}/{step}".encode()).digest()
    leaning = digest[-1] % 8 if "~" in task_id else 7
    return [{0: 0.0, 1: 1.0, 2: 1.0}.get(leaning, (byte % 5) / 4) for byte in digest[:NUM_ROLLOUTS]]


def body(
    task_id: str, step: int, index: int, reward: float, group_id: str, run_id: str = RUN, num_tokens: int = 12
) -> TrajectoryRecorded:
    mask_T = np.arange(num_tokens) % 3 == 1
    message = Message(
        turn=0,
        text=f"[calling] ls #{index}",
        outcome=MessageOutcome.CALLS,
        calls=(Call(name="ls", arguments_json="{}"),),
        results=("[]",),
        code=-1,
    )
    return make(
        TrajectoryRecorded,
        run_id,
        group_id=group_id,
        task_id=task_id,
        step=step,
        rollout_index=index,
        policy_version=step - 1,
        token_ids=pack_ids(np.arange(num_tokens) + 100 * index),
        logprobs=pack_logprobs(np.where(mask_T, -0.5 * index, 0.0)),
        mask=pack_mask(mask_T),
        messages=(message,),
        turn_verdicts=(int(reward == 1),),
        reward=reward,
        format_reward=1.0,
        finish_reason=FinishReason.FINISHED,
    )


def played(batch: BatchPlanned) -> list[Event]:
    """Bodies, groups and the step of a batch."""
    events: list[Event] = []
    for task_id in batch.task_ids:
        rewards = rewards_of(task_id, batch.step)
        done: RolloutGroupCompleted = group(task_id, batch.step, rewards, batch.epoch)
        bodies = [body(task_id, batch.step, i, reward, done.group_id) for i, reward in enumerate(rewards)]
        events += [
            *bodies,
            replace(done, trajectory_ids=tuple(b.trajectory_id for b in bodies), caused_by=batch.event_id),
        ]
    done_step: StepCompleted = reply(batch, lambda *_: 0.0)[-1]
    return [*events, replace(done_step, num_trained_tokens=100, timings_ms={"rollout": 900.0, "update": 100.0})]


def run_log(num_seeds: int = 8, num_epochs: int = 4, finished: bool = True) -> tuple[MemoryLog, list[Event]]:
    """A run's log, decided by the real keeper, and its events in the order in which they were said."""
    ticks = iter(range(10**6))
    log = MemoryLog(PARTITIONS, clock=lambda: T0_MS + 1000 * next(ticks))
    keeper, cursor, said = PoolKeeper(), beginning(INPUT_TOPICS, PARTITIONS), []

    def say(events: list[Event]) -> None:
        said.extend(events)
        log.append(events)

    keeper.refold(log, [0], timeout_s=0.0)
    say(opening(num_seeds, num_epochs, SETTINGS))
    while records := log.read(cursor, timeout_s=0.0):
        for record in records:
            cursor[record.place] = record.offset + 1
            heard = keeper.hear(record)
            say(list(heard.say))
            for event in heard.say:
                fails = event.event_id[0] in "0123"
                say(
                    played(event)
                    if isinstance(event, BatchPlanned)
                    else reply(event, lambda *_: 0.0, lambda _, f=fails: f)
                )
    if finished:
        last = max((e for e in said if isinstance(e, StepCompleted)), key=lambda e: e.step)
        say([run_finished(last.step, last.epoch)])
    return log, said


def record_run(root: Path, num_seeds: int = 8, num_epochs: int = 4, finished: bool = True) -> list[Event]:
    """Write a run's archive; returns its events in the order in which they were said."""
    log, said = run_log(num_seeds, num_epochs, finished)
    archive = ArchiveLog(root, PARTITIONS)
    archive.next_offsets()
    for place in sorted(log.end_offsets(TOPICS)):
        archive.mirror(log.read({place: 0}, 10**6, 0.0))
    archive.close()
    return said
