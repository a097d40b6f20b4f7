"""The consuming loop: fold the log, answer every open signal in log order, then follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from schemas.events import BoundaryDetected, Event
from synthesizer.backend import Backend
from synthesizer.book import TaskBook
from synthesizer.config import SynthesisConfig
from synthesizer.pipeline import outcome_of

TOPICS = ("tasks", "boundary-signals", "synthesis-outcomes")
"""What the service must hear."""
POLL_S = 0.5


class Appender(Protocol):
    """The part of a log that the service writes to."""

    def append(self, events: Sequence[Event]) -> object:
        """Write events; returns when they are acknowledged."""


class Reader(Protocol):
    """Decoded events of one run in order, each once."""

    def poll(self, timeout_s: float) -> list[Event]:
        """The next events; ``[]`` when none came in time."""

    def catch_up(self) -> list[Event]:
        """Every event up to the end that the log has now."""


class SynthesisService:
    """Answers boundary signals until told to stop.

    Args:
        log: where outcomes go.
        reader: events of :data:`TOPICS`.
        backend: who drafts.
        book: what is known of the run; filled by this service.
        config: settings.

    A signal whose terminal event is in the log is not run again. A crash between the two writes of an outcome repeats
    the same events under the same ids. A signal whose seed is unknown waits until its task arrives.
    """

    def __init__(
        self, log: Appender, reader: Reader, backend: Backend, book: TaskBook, config: SynthesisConfig
    ) -> None:
        self._log = log
        self._reader = reader
        self._backend = backend
        self._book = book
        self._config = config
        self.num_answered = 0

    def run(self, stop: Callable[[], bool]) -> None:
        """Fold what is there, answer what is open, then follow until ``stop()`` says so."""
        self._book.fold(self._reader.catch_up())
        self._answer_open(stop)
        while not stop():
            events = self._reader.poll(POLL_S)
            self._book.fold(events)
            if events:
                self._answer_open(stop)

    def _answer_open(self, stop: Callable[[], bool]) -> None:
        for signal in self._book.open_signals():
            if stop():
                return
            self._answer(signal)

    def _answer(self, signal: BoundaryDetected) -> None:
        if self._book.is_answered(signal.signal_id):
            return
        seed = self._book.tasks[signal.task_id]
        events = outcome_of(signal, seed, self._book, self._backend, self._config)
        self._log.append(events)
        self._book.fold(events)
        self.num_answered += 1
