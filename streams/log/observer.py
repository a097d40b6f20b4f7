"""Watches topics without writing anything: events of every run, broken records counted and passed over.

For metrics, dashboards and reports. A process that takes part in a run uses :class:`streams.log.reader.EventReader`, which
writes dead letters; an observer may look at a live archive that another process writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from schemas import Event, Undecodable
from streams.log.port import Log, LogUnavailable, Place, advanced, beginning
from streams.log.reader import event_of


class Observer:
    """Events of some topics in log order.

    Args:
        log: where to read.
        topics: topic names without prefix.
        partitions: number of partitions by topic.
        run_id: only events of this run; ``None`` gives all.
    """

    def __init__(
        self, log: Log, topics: Iterable[str], partitions: Mapping[str, int], run_id: str | None = None
    ) -> None:
        self._log = log
        self._run_id = run_id
        self.topics = tuple(topics)
        self.cursor: dict[Place, int] = beginning(self.topics, partitions)
        self.num_broken = 0

    def poll(self, timeout_s: float) -> list[Event]:
        """The next events; ``[]`` when none came in time.

        Raises:
            LogUnavailable: the log cannot be reached.
        """
        records = self._log.read(self.cursor, timeout_s=timeout_s)
        self.cursor = advanced(self.cursor, records)
        events = []
        for record in records:
            try:
                event = event_of(record)
            except Undecodable:
                self.num_broken += 1
                continue
            if self._run_id in (None, event.run_id):
                events.append(event)
        return events

    def catch_up(self, deadline_s: float = 60.0) -> list[Event]:
        """Every event up to the end that the log has now.

        Raises:
            LogUnavailable: the end was not reached within the deadline.
        """
        ends = self._log.end_offsets(self.topics)
        give_up_s = time.monotonic() + deadline_s
        events: list[Event] = []
        while any(self.cursor[place] < end for place, end in ends.items()):
            before = self.cursor
            events += self.poll(0.5)
            if self.cursor == before and time.monotonic() > give_up_s:
                raise LogUnavailable(f"observer of {', '.join(self.topics)}: no progress for {deadline_s:.0f} s")
        return events
