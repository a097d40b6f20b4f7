"""The synthesizer process of a run."""

from __future__ import annotations

import asyncio
import logging
import os

from commands.process import ProcessContext, context_from_arguments
from environments.registry import load_tasks
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.topics import partitions_of
from streams.pool.membership import Membership, PlacedReader
from synthesizer.backends import UnknownBackend, backend_named
from synthesizer.book import TaskBook
from synthesizer.llm.model import ModelRefused
from synthesizer.service import SIGNALS, TOPICS, SynthesisService

logger = logging.getLogger("rods.synthesizer")


def serve(context: ProcessContext) -> int:
    """Answer boundary signals until stopped; returns how many were answered.

    Raises:
        LogUnavailable: the broker is gone.
    """
    config, partitions, run_id = context.config.synthesis, partitions_of(context.connection), context.folder.run_id
    held_out = [task for split in ("val", "test") for task in load_tasks(split, context.config.tasks.environment)]
    log = context.producer("synthesizer")
    reading = KafkaLog(context.connection)
    reader = PlacedReader(reading, TOPICS, partitions, run_id, "synthesizer", placed_topic=SIGNALS)
    member = Membership(
        context.connection, f"{config.group}-{run_id}", SIGNALS, partitions[SIGNALS], config.consumer == "assign"
    )
    try:
        return asyncio.run(_serve(context, log, reader, member, TaskBook(held_out)))
    finally:
        member.close()
        log.close()
        reading.close()


async def _serve(context: ProcessContext, log: object, reader: PlacedReader, member: Membership, book: TaskBook) -> int:
    config = context.config.synthesis
    service = SynthesisService(log, reader, backend_named(config, os.environ), book, config, member)
    await service.run(context.stop.is_set, context.ready)
    return service.num_answered


def main() -> None:
    """Entry of the process."""
    context = context_from_arguments(__doc__)
    try:
        logger.info("answered %d signals", serve(context))
    except (LogUnavailable, ModelRefused, UnknownBackend) as error:
        logger.error("%s", error)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
