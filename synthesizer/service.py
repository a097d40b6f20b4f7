"""The consuming loop: fold the log, answer open signals with bounded work in flight, then follow.

The log says what is open: a signal whose terminal event is in it is never worked on again, whatever was committed. An
outcome is folded the moment it is known, written, and only then is the consumer group's offset moved. While as many
signals are in flight as the settings allow, nothing is read. A backend that waits for nothing answers one signal
after the other in log order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.events import BoundaryDetected, Event
from synthesizer.backend import Backend
from synthesizer.book import TaskBook
from synthesizer.config import SynthesisConfig
from synthesizer.pipeline import outcome_of

TOPICS = ("tasks", "boundary-signals", "synthesis-outcomes")
"""What the service must hear."""
SIGNALS = "boundary-signals"
POLL_S = 0.25


class Appender(Protocol):
    """The part of a log that the service writes to."""

    def append(self, events: Sequence[Event]) -> object:
        """Write events; returns when they are acknowledged."""


class Reader(Protocol):
    """Decoded events of one run in order, each once; ``placed`` says where each signal lies."""

    placed: Mapping[str, tuple[int, int]]

    def poll(self, timeout_s: float) -> list[Event]:
        """The next events; ``[]`` when none came in time."""

    def catch_up(self) -> list[Event]:
        """Every event up to the end that the log has now."""


class Member(Protocol):
    """Which partitions of the signals' topic this process answers for."""

    owned: frozenset[int]
    num_changes: int

    def poll(self) -> None:
        """Take part in the group."""

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Store how far the work has come, by partition."""


class SoleMember:
    """Answers for everything and commits nothing: for tests and for logs without groups."""

    owned = frozenset(range(4096))
    num_changes = 1

    def poll(self) -> None:
        """Nothing to take part in."""

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Nothing to store."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A signal's answer on its way to the log."""

    signal: BoundaryDetected
    events: list[Event]


class SynthesisService:
    """Answers boundary signals until told to stop.

    Args:
        log: where outcomes go.
        reader: events of :data:`TOPICS`.
        backend: who drafts.
        book: what is known of the run; filled by this service.
        config: settings.
        member: what this process answers for.

    A signal whose seed is unknown waits until its task arrives. Work on partitions that go to another member is given
    up.
    """

    def __init__(
        self,
        log: Appender,
        reader: Reader,
        backend: Backend,
        book: TaskBook,
        config: SynthesisConfig,
        member: Member | None = None,
    ) -> None:
        self._log = log
        self._reader = reader
        self._backend = backend
        self._book = book
        self._config = config
        self._member = member or SoleMember()
        self._folded_for = 0
        self._ends: dict[int, int] = {}
        self._running: dict[str, asyncio.Task] = {}
        self._unwritten: dict[str, BoundaryDetected] = {}
        self._outbox: asyncio.Queue[_Outcome] = asyncio.Queue()
        self.num_answered = 0

    @property
    def num_in_flight(self) -> int:
        """Signals that are worked on now."""
        return len(self._running)

    async def run(self, stop: Callable[[], bool], ready: Callable[[], None] = lambda: None) -> None:
        """Fold what is there, answer what is open, then follow until ``stop()`` says so; then drain.

        Args:
            stop: asked a few times a second.
            ready: called once, when the log is folded.
        """
        writer = asyncio.create_task(self._write())
        try:
            await self._catch_up()
            ready()
            while not stop():
                _raise_from(writer)
                await self._step(stop)
            await self._drain(writer)
        finally:
            for task in (*self._running.values(), writer):
                task.cancel()
            await asyncio.gather(*self._running.values(), writer, return_exceptions=True)
            await self._backend.close()

    async def _step(self, stop: Callable[[], bool]) -> None:
        self._reap()
        self._member.poll()
        if self._member.num_changes != self._folded_for:
            await self._catch_up()
        self._give_up_foreign()
        if await self._start_open(stop):
            await asyncio.wait(self._running.values(), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            self._fold(await asyncio.to_thread(self._reader.poll, POLL_S))

    def _fold(self, events: Sequence[Event]) -> None:
        self._book.fold(events)
        for event in events:
            if event.event_id in self._reader.placed:
                partition, offset = self._reader.placed[event.event_id]
                self._ends[partition] = max(self._ends.get(partition, 0), offset + 1)

    def _reap(self) -> None:
        """Raise what a task ended with that is no outcome."""
        for signal_id, task in list(self._running.items()):
            if task.done():
                del self._running[signal_id]
                task.result()

    async def _catch_up(self) -> None:
        """Read to the end: before this member's first work, and whenever it takes partitions over."""
        self._folded_for = self._member.num_changes
        self._fold(await asyncio.to_thread(self._reader.catch_up))

    def _is_owned(self, signal: BoundaryDetected) -> bool:
        partition, _ = self._reader.placed.get(signal.event_id, (0, 0))
        return partition in self._member.owned

    def _give_up_foreign(self) -> None:
        for signal in self._book.open_signals():
            if signal.signal_id in self._running and not self._is_owned(signal):
                self._running.pop(signal.signal_id).cancel()

    async def _start_open(self, stop: Callable[[], bool]) -> bool:
        """Start work on open signals; returns whether there was more than may be in flight."""
        limit = 1 if self._backend.is_sequential else self._config.max_in_flight
        for signal in self._book.open_signals():
            if signal.signal_id in self._running or not self._is_owned(signal):
                continue
            if stop():
                return False
            if self._backend.is_sequential:
                await self._answer(signal)
                await asyncio.sleep(0)
                continue
            if len(self._running) >= limit:
                return True
            self._running[signal.signal_id] = asyncio.create_task(self._answer(signal))
        return len(self._running) >= limit

    async def _answer(self, signal: BoundaryDetected) -> None:
        """The outcome of one signal, folded at once, so that no other one can repeat it, and queued for the log."""
        if self._book.is_answered(signal.signal_id):
            return
        seed = self._book.tasks[signal.task_id]
        events = await outcome_of(signal, seed, self._book, self._backend, self._config)
        self._running.pop(signal.signal_id, None)
        if self._book.is_answered(signal.signal_id):
            return
        self._book.fold(events)
        self._unwritten[signal.signal_id] = signal
        self._outbox.put_nowait(_Outcome(signal, events))

    async def _write(self) -> None:
        """Write outcomes in the order they were known, as many at once as wait; then move the group's offset."""
        while True:
            outcomes = [await self._outbox.get()]
            while not self._outbox.empty():
                outcomes.append(self._outbox.get_nowait())
            await asyncio.to_thread(self._log.append, [event for outcome in outcomes for event in outcome.events])
            for outcome in outcomes:
                self._unwritten.pop(outcome.signal.signal_id, None)
                self._outbox.task_done()
            self.num_answered += len(outcomes)
            await asyncio.to_thread(self._member.commit, self.progress())

    def progress(self) -> dict[int, int]:
        """By owned partition of the signals' topic, the first offset that is not answered for."""
        pending = (*self._book.open_signals(), *self._book.waiting_signals(), *self._unwritten.values())
        ends = dict(self._ends)
        for signal in pending:
            if signal.event_id in self._reader.placed:
                partition, offset = self._reader.placed[signal.event_id]
                ends[partition] = min(ends.get(partition, offset), offset)
        return {partition: offset for partition, offset in ends.items() if partition in self._member.owned}

    async def _drain(self, writer: asyncio.Task) -> None:
        """Let work in flight end for a while, write what is known, leave the rest open for the next start."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=self._config.drain_s)
        for task in self._running.values():
            task.cancel()
        written = asyncio.create_task(self._outbox.join())
        await asyncio.wait({written, writer}, return_when=asyncio.FIRST_COMPLETED)
        written.cancel()
        _raise_from(writer)


def _raise_from(task: asyncio.Task) -> None:
    """Raise what ended a task that should go on."""
    if task.done():
        task.result()
