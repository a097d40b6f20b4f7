"""The synthesizer process of a run."""

from __future__ import annotations

import logging

from commands.process import ProcessContext, context_from_arguments
from environments.registry import load_tasks
from streams.kafka_log import KafkaLog
from streams.log import LogUnavailable
from streams.reader import EventReader
from streams.topics import partitions_of
from synthesizer.backends import backend_named
from synthesizer.book import TaskBook
from synthesizer.service import TOPICS, SynthesisService

logger = logging.getLogger("rods.synthesizer")


def serve(context: ProcessContext) -> int:
    """Answer boundary signals until stopped; returns how many were answered."""
    config = context.config.synthesis
    held_out = [task for split in ("val", "test") for task in load_tasks(split, context.config.tasks.environment)]
    log = KafkaLog(context.connection)
    reader = EventReader(
        KafkaLog(context.connection), TOPICS, partitions_of(context.connection), context.folder.run_id, "synthesizer")
    service = SynthesisService(log, reader, backend_named(config), TaskBook(held_out), config)
    context.ready()
    service.run(context.stop.is_set)
    log.close()
    return service.num_answered


def main() -> None:
    """Entry of the process."""
    context = context_from_arguments(__doc__)
    try:
        logger.info("answered %d signals", serve(context))
    except LogUnavailable as error:
        logger.error("%s", error)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
