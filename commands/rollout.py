"""A rollout worker as a process: ``rods rollout`` on any machine that reaches the broker, or a child of ``rods run``.

All it needs to know is the broker and the run; settings are those the run started with. It refuses to play under another
prompt format, tokenizer or tool schemas than the run's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable

from commands.config import ConfigError, RunConfig, validated
from commands.process import context_from_arguments
from commands.sampling import of_worker
from commands.seeds import training_tasks
from commands.trainer import policy_folder, tool_schema_hash
from schemas.events import RunStarted
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import Log, LogGap, LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from trainer.policy.sampling_format import FormatMismatch, SamplingFormat, load_template, refuse_mismatch
from trainer.rollouts.episodes import EpisodeMaker
from trainer.rollouts.held_weights import WrongWeights
from trainer.rollouts.live_episode import NotWhatWasAsked
from trainer.rollouts.token_choice import NonFiniteLogits
from trainer.rollouts.vllm_client import VllmError
from trainer.rollouts.worker import RolloutWorker, WorkerSetup
from trainer.setup import NothingCame
from trainer.view import WORKER_TOPICS
from trainer.weights.sync import WeightSyncFailed

logger = logging.getLogger("rods.rollout")
FAILURES = (
    FormatMismatch,
    LogGap,
    LogUnavailable,
    NonFiniteLogits,
    NotWhatWasAsked,
    NothingCame,
    VllmError,
    WeightSyncFailed,
    WrongWeights,
)
WORKER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
RUN_PATIENCE_S = 600.0
POLL_S = 0.5


def run_started(
    connection: Connection, run_id: str, should_stop: Callable[[], bool], patience_s: float
) -> RunStarted | None:
    """The opening of a run, waited for; ``None`` if asked to stop meanwhile.

    Raises:
        NothingCame: it did not come in time.
    """
    log = KafkaLog(connection)
    reader = EventReader(log, ("runs",), partitions_of(connection), run_id, "rollout")
    give_up_s = time.monotonic() + patience_s
    try:
        while not should_stop():
            started = next((event for event in reader.poll(POLL_S) if isinstance(event, RunStarted)), None)
            if started is not None:
                return started
            if time.monotonic() > give_up_s:
                raise NothingCame(
                    f"RunStarted of run {run_id} did not come within {patience_s:.0f} s; is its trainer running?"
                )
    finally:
        log.close()
    return None


def play(
    connection: Connection,
    log: Log,
    run_id: str,
    name: str,
    should_stop: Callable[[], bool],
    on_ready: Callable[[], None] = lambda: None,
    url: str = "",
) -> None:
    """Play groups of a run until it is finished.

    Args:
        connection: the broker.
        log: where to write.
        run_id: the run.
        name: name of this worker, its own.
        should_stop: asked between plays.
        on_ready: called when everything is loaded.
        url: a vLLM server for this worker alone; one of the run's if empty.

    Raises:
        ConfigError, FormatMismatch, NothingCame, VllmError and what the log raises: with the reason.
    """
    if not WORKER_NAME.fullmatch(name):
        raise ConfigError(f"worker name {name!r}: lower case, digits and hyphens, at most 41")
    started = run_started(connection, run_id, should_stop, RUN_PATIENCE_S)
    if started is None:
        return
    config: RunConfig = validated(json.loads(started.config_json), f"RunStarted of {run_id}")
    path = policy_folder(config)
    tokenizer, template = load_template(path, **config.policy.spoken)
    own = SamplingFormat.of(template, tokenizer, tool_schema_hash(training_tasks(config)))
    refuse_mismatch(own, started, name)
    setup = WorkerSetup(
        run_id=run_id,
        name=name,
        config=config.trainer,
        max_steps=config.pool.max_steps,
        seed=config.run.seed,
        weights=of_worker(config, run_id, name, path, template, url),
        new_episode=EpisodeMaker(template.parser),
        log=log,
        reader=EventReader(KafkaLog(connection), WORKER_TOPICS, partitions_of(connection), run_id, name),
        format_hash=own.digest,
        stop_ids=template.stop_ids,
        should_stop=should_stop,
    )
    on_ready()
    worker = RolloutWorker(setup)
    worker.work()
    logger.info("done: %d groups ended, %d late", worker.num_groups, worker.num_late)


def serve(config: RunConfig, run_id: str, name: str, url: str) -> None:
    """``rods rollout``: play for a run on a broker that is there already, until the run is finished or SIGTERM.

    Raises:
        ConfigError: no broker is configured, or the name cannot be used.
        SystemExit: 1 when it cannot play; the reason is in its log.
    """
    from commands.service import await_broker, prepare, stack_connection
    from streams.health import serve_if_asked
    from streams.log.topics import ensure_topics

    connection, stop = stack_connection(config), prepare()
    await_broker(lambda: ensure_topics(connection))
    serve_if_asked("rollout", os.environ)
    try:
        play(connection, KafkaLog(connection), run_id, name, stop.is_set, url=url)
    except FAILURES as error:
        logger.error("%s", error)
        raise SystemExit(1) from error


def main() -> None:
    """Entry of the child process: exit code 0 when the run is finished, 3 when stopped."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--name", required=True)
    options, rest = parser.parse_known_args()
    context = context_from_arguments(__doc__, rest)
    stop: threading.Event = context.stop
    try:
        play(
            context.connection,
            context.producer(options.name),
            context.folder.run_id,
            options.name,
            stop.is_set,
            context.ready,
        )
    except FAILURES as error:
        logger.error("%s", error)
        raise SystemExit(1) from error
    raise SystemExit(3 if stop.is_set() else 0)


if __name__ == "__main__":
    main()
