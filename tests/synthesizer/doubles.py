"""In-memory doubles: a log with its reader, and backends with fixed answers."""

from __future__ import annotations

from collections.abc import Sequence

from schemas import decode, encode
from schemas.events import BoundaryDetected, Event
from synthesizer.backend import Attempt, Draft, Seed
from synthesizer.outcome import Failure


class ListLog:
    """Events as encoded bytes in one list."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.records = [encode(event) for event in events]

    def append(self, events: Sequence[Event]) -> None:
        """Write events."""
        self.records += [encode(event) for event in events]

    def events(self) -> list[Event]:
        """Everything written."""
        return [decode(record) for record in self.records]


class ListReader:
    """Reads a ListLog from the start, each event once; ``arrivals`` are appended one list a poll."""

    def __init__(self, log: ListLog, arrivals: Sequence[Sequence[Event]] = ()) -> None:
        self._log = log
        self._next = 0
        self._seen: set[str] = set()
        self._arrivals = list(arrivals)
        self.placed: dict[str, tuple[int, int]] = {}

    def catch_up(self) -> list[Event]:
        """Everything up to the end."""
        events = self._log.events()[self._next :]
        for offset, event in enumerate(events, self._next):
            if isinstance(event, BoundaryDetected):
                self.placed.setdefault(event.event_id, (0, offset))
        self._next = len(self._log.records)
        fresh = [event for event in events if event.event_id not in self._seen]
        self._seen.update(event.event_id for event in fresh)
        return fresh

    def poll(self, timeout_s: float) -> list[Event]:
        """The next arrivals and what else was written."""
        if self._arrivals:
            self._log.append(self._arrivals.pop(0))
        return self.catch_up()

    @property
    def is_drained(self) -> bool:
        """Whether nothing more will come."""
        return not self._arrivals and self._next == len(self._log.records)


class Answering:
    """A backend that gives its answers in order and repeats the last; an exception is raised."""

    name = "answering"
    is_sequential = True
    prompts_hash = ""

    def __init__(self, *answers: Draft | Failure | Exception, review: Draft | Failure | None = None) -> None:
        self._answers = answers
        self._review = review
        self.attempts: list[Attempt] = []

    async def draft(self, seed: Seed, attempt: Attempt) -> Draft | Failure:
        """The next answer."""
        self.attempts.append(attempt)
        answer = self._answers[min(len(self.attempts), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def review(self, seed: Seed, draft: Draft, attempt: Attempt) -> Draft | Failure:
        """The fixed verdict, or the draft."""
        return self._review or draft

    async def learn(self, seed: Seed, attempt: Attempt, failure: Failure) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""
