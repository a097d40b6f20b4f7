"""A rollout worker: plays planned groups of a run, on any machine that reaches the broker.

All it needs to know is the broker and the run; settings are those the run started with. It refuses to play under another
prompt format, tokenizer or tool schemas than the run's.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from contextlib import ExitStack
from typing import Annotated

import typer

from commands.config import ConfigError, validated
from commands.options import Broker, ConfigFile, OfRun, Overrides, ReadyFile
from commands.roles.process import Process, begin
from commands.roles.sampling import of_worker
from commands.roles.train import policy_folder, tool_schema_hash
from commands.tasks import training_tasks
from schemas.events import RunStarted
from streams.health import serve_if_asked
from streams.log.kafka import KafkaLog
from streams.log.port import Log
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from trainer.policy.sampling_format import SamplingFormat, load_template, refuse_mismatch
from trainer.rollouts.episodes import EpisodeMaker
from trainer.rollouts.worker import RolloutWorker, WorkerSetup
from trainer.setup import NothingCame
from trainer.view import WORKER_TOPICS

logger = logging.getLogger("rods.rollout")
WORKER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
RUN_PATIENCE_S = 600.0
POLL_S = 0.5


def rollout(
    run_id: Annotated[str, typer.Argument(help="Run to play for; its settings are those it started with.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    connection: Broker = "",
    folder: OfRun = None,
    ready_file: ReadyFile = None,
    name: Annotated[
        str, typer.Option(help="Name of this worker; no other worker of the run may have it.")
    ] = "rollout-0",
    url: Annotated[str, typer.Option(help="vLLM server of this worker; one of the run's if not given.")] = "",
) -> None:
    """Play planned groups of a run until it is finished; as many workers as you like, on any machine."""
    if not WORKER_NAME.fullmatch(name):
        raise ConfigError(f"worker name {name!r}: lower case, digits and hyphens, at most 41")
    process = begin(config, overrides, connection, folder, ready_file)
    serve_if_asked("rollout", os.environ)
    with ExitStack() as closing:
        log, reading = process.producer(name), KafkaLog(process.connection)
        closing.callback(log.close)
        closing.callback(reading.close)
        started = run_started(process, reading, run_id)
        if started is not None:
            worker = RolloutWorker(setup_of(process, log, reading, started, name, url))
            process.ready()
            worker.work()
            logger.info("done: %d groups ended, %d late", worker.num_groups, worker.num_late)
    if process.is_child and process.stop.is_set():
        raise typer.Exit(3)


def run_started(process: Process, log: Log, run_id: str) -> RunStarted | None:
    """The opening of a run, waited for; ``None`` if asked to stop meanwhile.

    Raises:
        NothingCame: it did not come in time.
    """
    reader = EventReader(log, ("runs",), partitions_of(process.connection), run_id, "rollout")
    give_up_s = time.monotonic() + RUN_PATIENCE_S
    while not process.stop.is_set():
        started = next((event for event in reader.poll(POLL_S) if isinstance(event, RunStarted)), None)
        if started is not None:
            return started
        if time.monotonic() > give_up_s:
            raise NothingCame(
                f"RunStarted of run {run_id} did not come within {RUN_PATIENCE_S:.0f} s; is its trainer running?"
            )
    return None


def setup_of(process: Process, log: Log, reading: Log, started: RunStarted, name: str, url: str) -> WorkerSetup:
    """What the worker works with; loads the weights or finds their server.

    Raises:
        ConfigError, FormatMismatch, VllmError: with the reason.
    """
    run_id = started.run_id
    config = validated(json.loads(started.config_json), f"RunStarted of {run_id}")
    path = policy_folder(config)
    tokenizer, template = load_template(path, **config.policy.spoken)
    own = SamplingFormat.of(template, tokenizer, tool_schema_hash(training_tasks(config)))
    refuse_mismatch(own, started, name)
    return WorkerSetup(
        run_id=run_id,
        name=name,
        config=config.trainer,
        max_steps=config.pool.max_steps,
        min_valid_frac=config.pool.min_valid_frac,
        seed=config.run.seed,
        weights=of_worker(config, run_id, name, path, template, url),
        new_episode=EpisodeMaker(template.parser),
        log=log,
        reader=EventReader(reading, WORKER_TOPICS, partitions_of(process.connection), run_id, name),
        format_hash=own.digest,
        stop_ids=template.stop_ids,
        should_stop=process.stop.is_set,
    )
