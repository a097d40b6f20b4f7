"""Decides a recorded run again and compares. Pure.

For each recorded plan the inputs are folded up to exactly the cursor it carries, ``decide`` is asked again, and what it
says must be the recorded event byte for byte, in the framing and schema version of the record (the time stamp, which no
decision reads, is copied).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from schemas import BY_NAME, Event, event_id
from schemas.codec import encode_like
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Cursor,
    DeadLettered,
    EpochPlanned,
    RunFinished,
    RunOutcome,
    RunStarted,
    TaskRetired,
)
from schemas.identity import identity_of
from streams.log.port import Place, Record
from streams.log.reader import event_of
from streams.pool.decide import decide
from streams.pool.pool import Pool, apply, initial

MISSING = "not in the log"
DEAD_LETTERS, POOL = "dead-letters", "pool"
DECIDED = (BatchPlanned, BoundaryDetected, EpochPlanned, TaskRetired)
PLANS = (BatchPlanned, EpochPlanned)
CONTRADICTION = (KeyError, IndexError, ValueError, TypeError)
"""What folding or deciding raises on facts that do not belong together."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a record and its repetition.

    Attributes:
        where: topic-partition@offset, or the thing that is missing.
        what: which event or value.
        recorded: what the log says.
        repeated: what came out again.
        cause: event_ids or facts that both sides rest on.
    """

    where: str
    what: str
    recorded: str
    repeated: str
    cause: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n  recorded: {self.recorded}\n  repeated: {self.repeated}\n  from:     {self.cause or '-'}"


@dataclass(frozen=True, slots=True)
class Heard:
    """An event and where it lies."""

    event: Event
    record: Record

    @property
    def where(self) -> str:
        """topic-partition@offset."""
        return f"{self.record.topic}-{self.record.partition}@{self.record.offset}"


@dataclass(slots=True)
class Recording:
    """A run's events by place in offset order, first occurrence of each id, and what could not be read.

    Attributes:
        run_id: the run.
        started: its opening, once it was read.
        inputs: what the pool hears, by place.
        decided: what the pool agent said, by event id.
        plans: the plans among it, in log order.
        finished: its completion, once it was read.
    """

    run_id: str
    started: Heard | None = None
    inputs: dict[Place, list[Heard]] = field(default_factory=dict)
    decided: dict[str, Heard] = field(default_factory=dict)
    plans: list[Heard] = field(default_factory=list)
    finished: Heard | None = None
    _broken: dict[tuple[str, int, int], str] = field(default_factory=dict)
    _passed_over: set[tuple[str, int, int]] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    @property
    def forked_at_step(self) -> int:
        """Last step shared with a parent run; -1 for none."""
        return self.started.event.forked_at_step if self.started is not None else -1

    @property
    def unreadable(self) -> list[str]:
        """Records that cannot be read, in log order; without those that the pool agent passed over and dead-lettered."""
        return [text for place, text in self._broken.items() if place not in self._passed_over]

    @property
    def events(self) -> list[Event]:
        """What the pool hears, then what was decided; by place and offset."""
        return [h.event for place in sorted(self.inputs) for h in self.inputs[place]] + [
            h.event for h in self.decided.values()
        ]

    def add(self, records: Iterable[Record]) -> Recording:
        """Sort records of decision topics in; records of other runs are left out."""
        for record in records:
            is_ours = record.key is None or record.key == self.run_id.encode() or record.topic == DEAD_LETTERS
            if not is_ours:
                continue
            try:
                event = event_of(record)
            except ValueError as error:
                place = (record.topic, record.partition, record.offset)
                self._broken[place] = f"{record.topic}-{record.partition}@{record.offset}: {error}"
                continue
            if isinstance(event, DeadLettered):
                self._hear_dead_letter(event)
            elif event.run_id == self.run_id:
                self._place(Heard(event, record))
        return self

    def _hear_dead_letter(self, letter: DeadLettered) -> None:
        if letter.consumer == POOL:
            self._passed_over.add((letter.topic, letter.partition, letter.offset))

    def _place(self, heard: Heard) -> None:
        if isinstance(heard.event, DECIDED):
            if heard.event.event_id not in self._seen:
                self.decided[heard.event.event_id] = heard
                if isinstance(heard.event, PLANS):
                    self.plans.append(heard)
        else:
            self.inputs.setdefault(heard.record.place, []).append(heard)
        if isinstance(heard.event, RunStarted):
            self.started = self.started or heard
        elif isinstance(heard.event, RunFinished) and heard.event.outcome is RunOutcome.COMPLETED:
            self.finished = self.finished or heard
        self._seen.add(heard.event.event_id)


def forgery(event: Event, where: str) -> Divergence | None:
    """What is wrong with an event whose id does not follow from its own fields."""
    name, identity = type(event).__name__, identity_of(event)
    expected, alias = event_id(event.run_id, name, *identity), BY_NAME[name].alias
    for field_name in filter(None, ("event_id", alias)):
        if getattr(event, field_name) != expected:
            return Divergence(where, f"{field_name} of {name}", getattr(event, field_name), expected, str(identity))
    return None


def first_forgery(recording: Recording) -> Divergence | None:
    """The first event whose id does not follow from its own fields."""
    heard = [h for lane in recording.inputs.values() for h in lane] + list(recording.decided.values())
    return next((found for item in heard if (found := forgery(item.event, item.where)) is not None), None)


def short(event: Event) -> str:
    """An event on one line, time stamp and cursor left out."""
    shown = [
        f"{name}={getattr(event, name)!r}"
        for name in event.__slots__
        if name not in ("event_id", "run_id", "occurred_at_ms", "input_cursor")
    ]
    text = f"{type(event).__name__}({', '.join(shown)})"
    return text if len(text) <= 600 else text[:600] + "..."


def compare(decided: Event, recording: Recording) -> Divergence | None:
    """The difference between a decision made again and the recorded one."""
    heard = recording.decided.get(decided.event_id)
    if heard is None:
        return Divergence(
            MISSING, f"{type(decided).__name__} {decided.event_id}", "-", short(decided), decided.caused_by
        )
    again = replace(decided, occurred_at_ms=heard.event.occurred_at_ms)
    if encode_like(again, heard.record.value) == heard.record.value:
        return None
    names = [n for n in again.__slots__ if getattr(again, n) != getattr(heard.event, n)] or ["bytes"]
    return Divergence(
        heard.where,
        f"{type(decided).__name__} {decided.event_id}, field {', '.join(names)}",
        "; ".join(repr(getattr(heard.event, n, heard.record.value)) for n in names),
        "; ".join(repr(getattr(again, n, "")) for n in names),
        decided.caused_by,
    )


@dataclass(slots=True)
class Repetition:
    """Walks through a recording, plan by plan."""

    recording: Recording
    pool: Pool = field(default_factory=initial)
    position: dict[Place, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def advance(self, cursor: Mapping[Place, int]) -> None:
        """Fold the inputs that lie before a cursor."""
        for place in sorted(self.recording.inputs):
            lane = self.recording.inputs[place]
            index = self.position.get(place, 0)
            while index < len(lane) and lane[index].record.offset < cursor.get(place, 0):
                self.pool = apply(self.pool, lane[index].event)
                index += 1
            self.position[place] = index

    def decide_all(self, cursor: tuple[Cursor, ...], may_lack: bool = False) -> Divergence | None:
        """Decide until nothing is due and compare each decision; ``may_lack`` passes over those that are not recorded."""
        while due := decide(self.pool, cursor):
            for event in due:
                difference = compare(event, self.recording)
                if difference is not None and not (may_lack and difference.where == MISSING):
                    return difference
                self.said.add(event.event_id)
                self.pool = apply(self.pool, event)
        return None

    def inherit(self, forked_at_step: int) -> None:
        """Take the decisions of a fork's shared past as facts; they were made, and can be repeated, in its parent."""
        for key, heard in self.recording.decided.items():
            event = heard.event
            step = event.first_step if isinstance(event, EpochPlanned) else getattr(event, "step", None)
            if step is None:
                step = self.first_step_of(event.epoch)
            if step <= forked_at_step:
                self.said.add(key)
                self.pool = apply(self.pool, event)

    def first_step_of(self, epoch: int) -> int:
        """First step of a recorded epoch."""
        return next(
            (
                p.event.first_step
                for p in self.recording.plans
                if isinstance(p.event, EpochPlanned) and p.event.epoch == epoch
            ),
            0,
        )

    def step(self, plan: Heard, may_lack: bool = False) -> Divergence | None:
        """Repeat one recorded plan; ``may_lack`` as for :meth:`decide_all`."""
        if plan.event.event_id in self.said:
            return None
        self.advance({Place(c.topic, c.partition): c.next_offset for c in plan.event.input_cursor})
        difference = self.decide_all(plan.event.input_cursor, may_lack)
        if difference is None and plan.event.event_id not in self.said:
            return Divergence(
                plan.where,
                f"{type(plan.event).__name__} {plan.event.event_id}",
                short(plan.event),
                "nothing is due at its cursor",
                plan.event.caused_by,
            )
        return difference

    def run(self, is_complete: bool, on_plan: Callable[[], None] = lambda: None) -> Divergence | None:
        """Repeat every plan, then the rest; the first difference, or ``None``.

        Args:
            is_complete: whether the run ended; one that was cut off may lack decisions at and behind its last plan.
            on_plan: called after each plan.
        """
        if (forged := first_forgery(self.recording)) is not None:
            return forged
        plans, reached = self.recording.plans, None
        try:
            self.inherit(self.recording.forked_at_step)
            for reached in plans:
                difference = self.step(reached, may_lack=not is_complete and reached is plans[-1])
                if difference is not None:
                    return difference
                on_plan()
            return self.finish(is_complete)
        except CONTRADICTION as error:
            where, what = (reached.where, short(reached.event)) if reached is not None else ("the log", "no plan")
            return Divergence(where, "facts that contradict each other", what, repr(error))

    def finish(self, is_complete: bool) -> Divergence | None:
        """Fold the rest; every recorded decision must have been made again, and none may be missing."""
        self.advance({place: lane[-1].record.offset + 1 for place, lane in self.recording.inputs.items()})
        if (difference := self.decide_all((), may_lack=not is_complete)) is not None:
            return difference
        for key, heard in self.recording.decided.items():
            if key not in self.said:
                return Divergence(
                    heard.where,
                    f"{type(heard.event).__name__} {key}",
                    short(heard.event),
                    "never decided",
                    heard.event.caused_by,
                )
        return None
