"""Mirrors every topic into the run's archive, continuously; fills a fresh broker from it.

``rods archiver`` runs until SIGTERM, then drains to the end of the log, syncs and
exits. Each record is written once, in offset order, and is durable after the next sync.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from schemas import TOPICS
from streams.archive.index import refresh, require_whole
from streams.archive.journal import write_ends
from streams.archive.segments import ArchiveLog
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, Place

logger = logging.getLogger("rods.archiver")
POLL_S = 0.2
CHUNK = 2000


def mirror(log: KafkaLog, archive: ArchiveLog, stopping: Callable[[], bool], on_ready: Callable[[], None]) -> int:
    """Copy records until told to stop, then up to the end the log has at that moment; returns how many.

    Raises:
        LogUnavailable: the broker is gone; what was copied is durable.
        LogGap: the archive is damaged or shorter than it was, or the log lacks records it should hold.
    """
    if archive.root.is_dir():
        require_whole(archive.root, trust_closed=True)
    cursor = archive.next_offsets()
    copied = 0
    on_ready()
    ends: dict[Place, int] | None = None
    try:
        while ends is None or any(cursor[place] < end for place, end in ends.items()):
            if ends is None and stopping():
                ends = log.end_offsets(TOPICS)
                continue
            records = log.read(cursor, max_records=CHUNK, timeout_s=POLL_S)
            archive.mirror(records)
            for record in records:
                cursor[record.place] = record.offset + 1
            if records:
                archive.sync()
                write_ends(archive.root, cursor)
            copied += len(records)
    finally:
        archive.close()
    for problem in refresh(archive.root, trust_closed=True).problems:
        logger.error("archive damaged: %s", problem)
    return copied


def restore(archive: ArchiveLog, log: KafkaLog) -> int:
    """Write an archive into fresh topics, offsets kept; returns the number of records.

    Raises:
        LogGap: a topic is not empty, or the archive is damaged, has a hole or is shorter than it was.
        LogUnavailable: the broker did not take the records.
    """
    if archive.root.is_dir():
        require_whole(archive.root)
    ends = log.end_offsets(archive.partitions)
    full = {f"{place.topic}-{place.partition}": end for place, end in ends.items() if end}
    if full:
        raise LogGap(f"cannot restore into topics that hold records: {full}")
    restored = 0
    for place, end in archive.next_offsets().items():
        offset = 0
        while offset < end:
            records = archive.read({place: offset}, max_records=CHUNK, timeout_s=0.0)
            got = log.send(records)
            wanted = [record.offset for record in records]
            if got != wanted or not records:
                raise LogGap(
                    f"{place.topic}-{place.partition}: restored at offsets {got[:1]}.., expected {wanted[:1]}.."
                )
            offset += len(records)
        restored += offset
    return restored
