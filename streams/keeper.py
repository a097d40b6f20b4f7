"""Keeps the pools of the assigned partitions: folds records, says what is due. No Faust, no Kafka here.

The Faust agents hand every record to :meth:`PoolKeeper.hear` and send what it returns. At start the keeper folds the
topics themselves, so no fault of a table, a changelog or a committed offset can change a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas import Event, Undecodable
from schemas.events import Cursor, DeadLettered
from schemas.heads import GroupHead
from streams.decide import decide
from streams.log import Log, Place, Record
from streams.pool import Pool, apply, initial
from streams.reader import dead_letter
from streams.refold import fact_of, fold_log
from streams.rows import PoolRow, row_of, touched

INPUT_TOPICS = ("runs", "tasks", "rollouts", "synthesis-outcomes", "steps")
OUTPUT_TOPICS = ("batches", "boundary-signals", "retirements")


@dataclass(frozen=True, slots=True)
class Heard:
    """What one record led to: events to send in order, and rows that changed."""

    say: tuple[Event | DeadLettered, ...] = ()
    rows: tuple[PoolRow, ...] = ()


@dataclass(slots=True)
class PoolKeeper:
    """Pools by partition and run.

    Attributes:
        pools: the fold of each run, by partition.
        cursors: next offset of each input partition.
        num_heard: records heard, duplicates included.
    """

    pools: dict[int, dict[str, Pool]] = field(default_factory=dict)
    cursors: dict[Place, int] = field(default_factory=dict)
    num_heard: int = 0

    def refold(self, log: Log, partitions: Iterable[int], timeout_s: float = 60.0) -> None:
        """Fold the given partitions of every decision topic from their beginning.

        Raises:
            streams.log.LogUnavailable: the log cannot be read.
        """
        for number in sorted(partitions):
            ends = {p: end for p, end in log.end_offsets(INPUT_TOPICS + OUTPUT_TOPICS).items() if p.partition == number}
            snapshot = fold_log(log, ends, timeout_s=timeout_s)
            self.pools[number] = dict(snapshot.pools)
            for place, offset in snapshot.cursor.items():
                self._reached(place, offset)

    def forget(self, partitions: Iterable[int]) -> None:
        """Drop partitions that another worker keeps now."""
        for number in partitions:
            self.pools.pop(number, None)

    def _reached(self, place: Place, next_offset: int) -> None:
        if place.topic in INPUT_TOPICS:
            self.cursors[place] = max(self.cursors.get(place, 0), next_offset)

    def _fold(self, partition: int, event: Event | GroupHead) -> None:
        runs = self.pools[partition]
        runs[event.run_id] = apply(runs.get(event.run_id, initial()), event)

    def hear(self, record: Record) -> Heard:
        """Fold one record and say what is due; a record that cannot be used becomes a dead letter.

        Raises:
            KeyError: the partition was not folded first.
        """
        self.num_heard += 1
        self._reached(record.place, record.offset + 1)
        try:
            event = fact_of(record)
        except Undecodable as error:
            run_id = (record.key or b"").decode(errors="replace")
            return Heard(say=(dead_letter(record, error, run_id, "pool"),))
        self._fold(record.partition, event)
        due = self.due(record.partition, event.run_id)
        return Heard(say=tuple(due), rows=self._rows(record.partition, event.run_id, (event, *due)))

    def due(self, partition: int, run_id: str) -> list[Event]:
        """Decide for one run until nothing is due, and fold what was decided."""
        if not decide(self.pools[partition][run_id]):
            return []
        cursor = tuple(
            Cursor(topic=place.topic, partition=place.partition, next_offset=offset)
            for place, offset in sorted(self.cursors.items()) if place.partition == partition
        )
        said: list[Event] = []
        while events := decide(self.pools[partition][run_id], cursor):
            for event in events:
                self._fold(partition, event)
            said += events
        return said

    def _rows(self, partition: int, run_id: str, events: Iterable[Event | GroupHead]) -> tuple[PoolRow, ...]:
        pool = self.pools[partition][run_id]
        changed = dict.fromkeys(task_id for event in events for task_id in touched(event))
        return tuple(row_of(pool, task_id) for task_id in changed if task_id in pool.tasks)
