"""Whether a run's log is healthy: nothing lost, nothing twice, nothing unread. Pure.

A dead letter is settled when the event in it can be read now and lies on its topic; until then the log is not healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.conservation import duplicate, missing
from analysis.index import LogIndex
from schemas import BY_NAME, Event, Undecodable, UnknownSchema, decode
from schemas.codec import HEADER_BYTES
from schemas.events import DeadLettered
from streams.log.port import Record, partition_of

REDRIVEN = "redriven-from"
"""Header of a record that a redrive wrote: topic-partition@offset of the refused one."""
NAMED = 20


def place_of(letter: DeadLettered) -> str:
    """Where the refused record lies: topic-partition@offset."""
    return f"{letter.topic}-{letter.partition}@{letter.offset}"


def redriven_event(letter: DeadLettered) -> Event | None:
    """The event in a dead letter if it can be read now."""
    try:
        return None if letter.value is None else decode(letter.value)
    except Undecodable:
        return None


@dataclass(frozen=True, slots=True)
class Checkup:
    """What is to be said of a log.

    Attributes:
        log: all of it.
        run_id: the run whose units are counted; records of others only have to be readable.
        storage: faults of the files or offsets, found elsewhere, in words.
    """

    log: LogIndex
    run_id: str
    storage: list[str] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether the run ended for good."""
        return self.log.run(self.run_id).pool.finished

    def open_letters(self) -> list[DeadLettered]:
        """Dead letters that are not settled, by place."""

        def is_settled(letter: DeadLettered) -> bool:
            event = redriven_event(letter)
            return event is not None and event.event_id in self.log.run(event.run_id).firsts.ids

        left = [letter for letter in self.log.letters.values() if not is_settled(letter)]
        return sorted(left, key=lambda letter: (letter.topic, letter.partition, letter.offset))

    def unknown_fingerprints(self) -> Counter:
        """Unreadable records by unknown schema fingerprint."""
        strange = (item for item in self.log.unreadable.values() if isinstance(item.error, UnknownSchema))
        return Counter(item.record.value[2:HEADER_BYTES].hex() for item in strange)

    def lost(self) -> list[str]:
        """Dispatched units without an end that should have one by now.

        The last step and open signals of a run that goes on may wait.
        """
        run = self.log.run(self.run_id)
        if self.has_ended:
            return missing(run)
        may_wait = {f"outcome of signal {signal}" for signal in run.pool.signals}
        last = run.pool.batches.get(run.pool.last_step)
        if last and last.step not in run.steps:
            may_wait |= {f"completion of step {last.step}"}
            may_wait |= {f"group of {task_id} at step {last.step}" for task_id in last.task_ids}
        return [unit for unit in missing(run) if unit not in may_wait]

    def findings(self) -> dict[str, list[str]]:
        """Faults by kind, in words; a healthy log has none."""
        told = {place_of(letter) for letter in self.log.letters.values()}
        found = {
            "storage": self.storage,
            "lost": self.lost(),
            "twice": duplicate(self.log.run(self.run_id)),
            "unusable": self.log.run(self.run_id).faults,
            "unknown schema": [
                f"fingerprint {name}: {count} records; upgrade the reader"
                for name, count in sorted(self.unknown_fingerprints().items())
            ],
            "dead letters": [
                f"{place_of(letter)}: {letter.reason.value}, refused by {letter.consumer}, "
                f"{'readable now, redrive it' if redriven_event(letter) else letter.detail}"
                for letter in self.open_letters()
            ],
            "unread": [
                f"{where}: {item.error}" for where, item in sorted(self.log.unreadable.items()) if where not in told
            ],
        }
        return {kind: texts for kind, texts in found.items() if texts}

    def as_json(self) -> dict[str, object]:
        """Everything as plain values."""
        reasons = Counter(letter.reason.value for letter in self.log.letters.values())
        found = self.findings()
        return {
            "run_id": self.run_id,
            "healthy": not found,
            "has_ended": self.has_ended,
            "records": self.log.num_records,
            "repeated_records": self.log.num_repeated,
            "dead_letters": dict(sorted(reasons.items())),
            "open_dead_letters": len(self.open_letters()),
            "unknown_fingerprints": dict(sorted(self.unknown_fingerprints().items())),
            "findings": {kind: {"count": len(texts), "first": texts[:NAMED]} for kind, texts in found.items()},
        }


def redrive_record(letter: DeadLettered, partitions: Mapping[str, int]) -> Record | None:
    """The record that puts a dead letter's event on its topic, bytes unchanged; ``None`` if it cannot be read now.

    Args:
        letter: the dead letter.
        partitions: number of partitions by topic of the log it goes to.
    """
    event = redriven_event(letter)
    if event is None:
        return None
    entry = BY_NAME[type(event).__name__]
    key = getattr(event, entry.key).encode()
    number, came_from = partition_of(key, partitions[entry.topic]), ((REDRIVEN, place_of(letter).encode()),)
    return Record(entry.topic, number, -1, event.occurred_at_ms, key, letter.value, came_from)
