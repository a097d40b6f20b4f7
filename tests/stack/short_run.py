"""A short run through a stack: the test plays the trainer, everything else is a real service."""

from __future__ import annotations

import time
from dataclasses import replace

from commands.config import load_config
from commands.tasks import training_tasks
from schemas import Event, make
from schemas.events import BatchPlanned, TaskSeeded
from streams.log.kafka import KafkaLog
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from tests.stack.stack import ROOT, Stack
from tests.streams.building import constant_group, run_finished, run_started, stage_started, step_completed

RUN_ID, NUM_EPOCHS, DEADLINE_S = "stack-run", 3, 90.0
ALL_TOPICS = ("runs", "tasks", "batches", "rollouts", "boundary-signals", "synthesis-outcomes", "retirements", "steps")


def opening_events() -> list[Event]:
    """A run on real tasks with its whole configuration, as the trainer opens it."""
    config = load_config(ROOT / "tests" / "commands" / "small.toml", {}, [])
    tasks = training_tasks(config)
    started = replace(run_started({}, RUN_ID), config_json=config.as_json())
    seeds = [
        make(TaskSeeded, RUN_ID, caused_by=started.event_id, task=task, position=i) for i, task in enumerate(tasks)
    ]
    return [started, *seeds, stage_started(NUM_EPOCHS, [task.task_id for task in tasks], RUN_ID)]


def train(stack: Stack) -> list[Event]:
    """Play the trainer to the end of the last epoch; returns everything that was said meanwhile."""
    log = KafkaLog(stack.connection)
    log.append(opening_events())
    reader = EventReader(KafkaLog(stack.connection), ALL_TOPICS, partitions_of(stack.connection), RUN_ID, "test")
    heard: list[Event] = []
    give_up_s = time.monotonic() + DEADLINE_S
    while True:
        events = reader.poll(0.5)
        heard += events
        for batch in [event for event in events if isinstance(event, BatchPlanned)]:
            log.append([constant_group(task_id, batch.step, 0.5, batch.epoch, RUN_ID) for task_id in batch.task_ids])
            log.append([step_completed(batch)])
            if batch.is_last_of_epoch and batch.epoch == NUM_EPOCHS - 1:
                log.append([run_finished(batch.step, batch.epoch, RUN_ID)])
                log.close()
                return heard + reader.catch_up()
        for name in ("worker", "synthesizer"):
            stack.children[name].require_alive()
        assert time.monotonic() < give_up_s, f"{len(heard)} events: {stack.children['worker'].last_words()}"
