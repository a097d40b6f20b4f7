"""Keeps the pools of the assigned partitions: folds records, says what is due. No Faust, no Kafka here.

The Faust agents hand every record to :meth:`PoolKeeper.hear` and send what it returns, sooner or later: what a crash leaves
unsent is decided again, for at start the keeper folds the topics themselves, and no fault of a table, a changelog or a
committed offset can change a decision. Only dead letters are decided nowhere else and are sent at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas import Event, Undecodable
from schemas.events import Cursor, DeadLettered
from schemas.heads import GroupHead
from streams.log.port import Log, Place, Record
from streams.log.reader import dead_letter
from streams.pool.decide import decide, may_decide
from streams.pool.pool import Pool, apply, initial
from streams.pool.refold import fact_of, fold_log
from streams.pool.rows import PoolRow, row_of, touched

INPUT_TOPICS = ("runs", "tasks", "rollouts", "synthesis-outcomes", "steps")
OUTPUT_TOPICS = ("batches", "boundary-signals", "retirements")


SAYING_ORDER = ("dead-letters", "boundary-signals", "retirements", "batches")
"""Topics in the order in which events must reach them: a plan in the log proves that what led to it is there."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What one record led to.

    Attributes:
        run_id: its run, empty for a record that could not be used.
        say: events to send, in order.
        task_ids: tasks whose rows changed.
    """

    run_id: str = ""
    say: tuple[Event | DeadLettered, ...] = ()
    task_ids: tuple[str, ...] = ()


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
        runs[event.run_id] = apply(runs.get(event.run_id) or initial(), event)

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
        task_ids = touched(event)
        for said in due:
            task_ids += touched(said)
        return Heard(event.run_id, tuple(due), task_ids)

    def due(self, partition: int, run_id: str) -> list[Event]:
        """Decide for one run until nothing is due, and fold what was decided."""
        said: list[Event] = []
        while may_decide(self.pools[partition][run_id]):
            events = decide(self.pools[partition][run_id], self._cursor(partition))
            if not events:
                break
            for event in events:
                self._fold(partition, event)
            said += events
        return said

    def _cursor(self, partition: int) -> tuple[Cursor, ...]:
        """What has been folded of a partition."""
        return tuple(
            Cursor(topic=place.topic, partition=place.partition, next_offset=offset)
            for place, offset in sorted(self.cursors.items())
            if place.partition == partition
        )

    def row(self, partition: int, run_id: str, task_id: str) -> PoolRow | None:
        """The row of a task; ``None`` if the pool does not know it."""
        pool = self.pools[partition].get(run_id, initial())
        return row_of(pool, task_id) if task_id in pool.tasks else None
