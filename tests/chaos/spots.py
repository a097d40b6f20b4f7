"""Exact places in the code of every process at which a death is most likely to lose or double something."""

from __future__ import annotations

from tests.chaos.harness import Spot

KEEP, SEND = ("streams.archive.journal", "Journal.keep"), ("streams.log.kafka", "KafkaLog.send")
SPOTS = (
    Spot("trainer", *KEEP, "after", 4, "on disk, not sent"),
    Spot("trainer", *KEEP, "before", 7, "made, not on disk"),
    Spot("trainer", *SEND, "after", 5, "sent, not noted as sent"),
    Spot("trainer", "trainer.weights.checkpoint", "write_checkpoint", "before", 3, "updated, no checkpoint"),
    Spot(
        "trainer",
        "trainer.weights.checkpoint",
        "write_checkpoint",
        "after",
        2,
        "checkpoint written, step not announced",
    ),
    Spot("worker", *KEEP, "before", 2, "decided, not on disk"),
    Spot("worker", *KEEP, "after", 4, "on disk, not sent"),
    Spot("worker", "streams.archive.journal", "Journal.sent", "before", 3, "sent, rows of the table and offsets not"),
    Spot("synthesizer", *KEEP, "before", 2, "answered, not on disk"),
    Spot("synthesizer", *KEEP, "after", 3, "on disk, not sent"),
    Spot("archiver", "streams.archive.segments", "ArchiveLog.mirror", "after", 9, "written, not synced"),
    Spot("archiver", "streams.archive.journal", "write_ends", "before", 7, "synced, not said to be durable"),
)
"""Each is reached by every run of the small configuration."""
WORKER_SPOTS = (
    Spot("rollout", *KEEP, "before", 3, "played, not on disk"),
    Spot("rollout", *KEEP, "after", 6, "on disk, not sent"),
    Spot("rollout", *SEND, "after", 4, "sent, not noted as sent"),
)
"""Places in rollout workers."""
WORKERS = ("trainer.rollouts=workers", "trainer.workers.num_local=2", "trainer.workers.groups_at_once=1")
"""One group at once: the last digits of a log-probability hang on what else is in the sampler's batch."""
