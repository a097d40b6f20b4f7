"""Whether a run's log is healthy: nothing lost, nothing twice, nothing unread. Pure.

A dead letter is settled when the event in it can be read now and lies on its topic; until then the log is not healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from analysis.conservation import Ledger
from schemas import BY_NAME, Event, Undecodable, UnknownSchema, decode
from schemas.codec import HEADER_BYTES
from schemas.events import DeadLettered, RunFinished, RunOutcome
from streams.archive.scan import Scanned
from streams.log.port import Record, partition_of

REDRIVEN = "redriven-from"
"""Header of a record that a redrive wrote: topic-partition@offset of the refused one."""
NAMED = 20


def redriven_event(letter: DeadLettered) -> Event | None:
    """The event in a dead letter if it can be read now."""
    if letter.value is None:
        return None
    try:
        return decode(letter.value)
    except Undecodable:
        return None


@dataclass(slots=True)
class Checkup:
    """What was found in a log; feed it every record, then ask.

    Attributes:
        run_id: the run whose units are counted; records of others only have to be readable.
        storage: faults of the files or offsets, found elsewhere, in words.
        letters: dead letters by event id.
        unreadable: records that are no events and have no dead letter, in words.
        fingerprints: records by unknown schema fingerprint.
    """

    run_id: str
    storage: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    letters: dict[str, DeadLettered] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    fingerprints: Counter = field(default_factory=Counter)
    num_records: int = 0
    num_repeated: int = 0
    has_ended: bool = False
    _seen: set[str] = field(default_factory=set)

    def add(self, items: Iterable[Scanned]) -> Checkup:
        """Count records."""
        for item in items:
            self.num_records += 1
            if item.event is None:
                self._add_unreadable(item)
            elif item.event.event_id in self._seen:
                self.num_repeated += 1
            else:
                self._seen.add(item.event.event_id)
                self._add_event(item.event)
        return self

    def _add_unreadable(self, item: Scanned) -> None:
        self.unreadable[item.where] = f"{item.where}: {item.error}"
        if isinstance(item.error, UnknownSchema):
            self.fingerprints[item.record.value[2:HEADER_BYTES].hex()] += 1

    def _add_event(self, event: Event) -> None:
        if isinstance(event, DeadLettered):
            self.letters[event.event_id] = event
        elif event.run_id == self.run_id:
            self.ledger.add([event])
            if isinstance(event, RunFinished) and event.outcome is RunOutcome.COMPLETED:
                self.has_ended = True

    def open_letters(self) -> list[DeadLettered]:
        """Dead letters that are not settled, by place."""
        left = [letter for letter in self.letters.values() if not self._is_settled(letter)]
        return sorted(left, key=lambda letter: (letter.topic, letter.partition, letter.offset))

    def _is_settled(self, letter: DeadLettered) -> bool:
        event = redriven_event(letter)
        return event is not None and event.event_id in self._seen

    def silent(self) -> list[str]:
        """Unreadable records that nobody has dead-lettered."""
        told = {f"{letter.topic}-{letter.partition}@{letter.offset}" for letter in self.letters.values()}
        return [text for where, text in sorted(self.unreadable.items()) if where not in told]

    def lost(self) -> list[str]:
        """Dispatched units without an end that should have one by now.

        The last step and open signals of a run that goes on may wait.
        """
        missing = self.ledger.missing()
        if self.has_ended:
            return missing
        last = max(self.ledger.steps, default=0)
        going_on = {f"outcome of signal {signal}" for signal in self.ledger.signals}
        if last not in self.ledger.completed:
            going_on.add(f"completion of step {last}")
            going_on |= {f"group of {task_id} at step {step}" for step, task_id in self.ledger.planned if step == last}
        return [unit for unit in missing if unit not in going_on]

    def findings(self) -> dict[str, list[str]]:
        """Faults by kind, in words; a healthy log has none."""
        found = {
            "storage": self.storage,
            "lost": self.lost(),
            "twice": self.ledger.duplicate(),
            "unknown schema": [
                f"fingerprint {name}: {count} records; upgrade the reader"
                for name, count in sorted(self.fingerprints.items())
            ],
            "dead letters": [
                f"{letter.topic}-{letter.partition}@{letter.offset}: {letter.reason.value}, refused by "
                f"{letter.consumer}, "
                f"{'readable now, redrive it' if redriven_event(letter) else letter.detail}"
                for letter in self.open_letters()
            ],
            "unread": self.silent(),
        }
        return {kind: texts for kind, texts in found.items() if texts}

    def as_json(self) -> dict[str, object]:
        """Everything as plain values."""
        reasons = Counter(letter.reason.value for letter in self.letters.values())
        found = self.findings()
        return {
            "run_id": self.run_id,
            "healthy": not found,
            "has_ended": self.has_ended,
            "records": self.num_records,
            "repeated_records": self.num_repeated,
            "dead_letters": dict(sorted(reasons.items())),
            "open_dead_letters": len(self.open_letters()),
            "unknown_fingerprints": dict(sorted(self.fingerprints.items())),
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
    where = f"{letter.topic}-{letter.partition}@{letter.offset}"
    return Record(
        entry.topic,
        partition_of(key, partitions[entry.topic]),
        -1,
        event.occurred_at_ms,
        key,
        letter.value,
        ((REDRIVEN, where.encode()),),
    )
