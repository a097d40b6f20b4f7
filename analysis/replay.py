"""Decides a recorded run again and compares. Pure.

For each recorded plan the inputs are folded up to exactly the cursor it carries, ``decide`` is asked again, and what it
says must be the recorded event byte for byte, in the framing and schema version of the record (the time stamp, which no
decision reads, is copied).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from analysis.checkup import place_of
from analysis.index import LogIndex, RunIndex
from schemas import BY_NAME, Event, event_id
from schemas.codec import encode_like
from schemas.events import BatchPlanned, BoundaryDetected, Cursor, EpochPlanned, TaskRetired
from schemas.identity import identity_of
from streams.archive.scan import Scanned
from streams.log.port import Place
from streams.pool.decide import decide
from streams.pool.pool import apply, initial

MISSING = "not in the log"
POOL = "pool"
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


def decisions_of(run: RunIndex) -> dict[str, Scanned]:
    """What the pool agent said, by event id in log order."""
    return {key: item for key, item in run.scanned.items() if isinstance(item.event, DECIDED)}


def plans_of(run: RunIndex) -> list[Scanned]:
    """The plans of a run in log order."""
    return [item for item in run.scanned.values() if isinstance(item.event, PLANS)]


def inputs_of(run: RunIndex) -> dict[Place, list[Scanned]]:
    """What the pool heard, by place in offset order, places sorted."""
    lanes: dict[Place, list[Scanned]] = {}
    for item in run.scanned.values():
        if not isinstance(item.event, DECIDED):
            lanes.setdefault(item.record.place, []).append(item)
    return dict(sorted(lanes.items()))


def unreadable_in(log: LogIndex) -> list[Scanned]:
    """Records that cannot be read, in log order; without those that the pool agent passed over and dead-lettered."""
    passed_over = {place_of(letter) for letter in log.letters.values() if letter.consumer == POOL}
    return [item for where, item in log.unreadable.items() if where not in passed_over]


def forgery(event: Event, where: str) -> Divergence | None:
    """What is wrong with an event whose id does not follow from its own fields."""
    name, identity = type(event).__name__, identity_of(event)
    expected, alias = event_id(event.run_id, name, *identity), BY_NAME[name].alias
    for field_name in filter(None, ("event_id", alias)):
        if getattr(event, field_name) != expected:
            return Divergence(where, f"{field_name} of {name}", getattr(event, field_name), expected, str(identity))
    return None


def short(event: Event) -> str:
    """An event on one line, time stamp and cursor left out."""
    shown = [
        f"{name}={getattr(event, name)!r}"
        for name in event.__slots__
        if name not in ("event_id", "run_id", "occurred_at_ms", "input_cursor")
    ]
    text = f"{type(event).__name__}({', '.join(shown)})"
    return text if len(text) <= 600 else text[:600] + "..."


def compare(again: Event, recorded: Mapping[str, Scanned]) -> Divergence | None:
    """The difference between an event made again and the recorded one of its id."""
    heard, name = recorded.get(again.event_id), f"{type(again).__name__} {again.event_id}"
    if heard is None:
        return Divergence(MISSING, name, "-", short(again), again.caused_by)
    again = replace(again, occurred_at_ms=heard.event.occurred_at_ms)
    if encode_like(again, heard.record.value) == heard.record.value:
        return None
    names = [n for n in again.__slots__ if getattr(again, n) != getattr(heard.event, n)] or ["bytes"]
    return Divergence(
        heard.where,
        f"{name}, field {', '.join(names)}",
        "; ".join(repr(getattr(heard.event, n, heard.record.value)) for n in names),
        "; ".join(repr(getattr(again, n, "")) for n in names),
        again.caused_by,
    )


def unrepeated(item: Scanned, what: str) -> Divergence:
    """A recorded event that was not made again."""
    event = item.event
    return Divergence(item.where, f"{type(event).__name__} {event.event_id}", short(event), what, event.caused_by)


class Repetition:
    """Walks through a recorded run, plan by plan.

    Args:
        run: with bodies, and fed with records.
    """

    def __init__(self, run: RunIndex) -> None:
        self.run = run
        self.decided, self.plans, self.inputs = decisions_of(run), plans_of(run), inputs_of(run)
        self.pool = initial()
        self._position = dict.fromkeys(self.inputs, 0)
        self.said: set[str] = set()

    def advance(self, cursor: Mapping[Place, int]) -> None:
        """Fold the inputs that lie before a cursor."""
        for place, lane in self.inputs.items():
            index, end = self._position[place], cursor.get(place, 0)
            while index < len(lane) and lane[index].record.offset < end:
                self.pool = apply(self.pool, lane[index].event)
                index += 1
            self._position[place] = index

    def decide_all(self, cursor: tuple[Cursor, ...], may_lack: bool = False) -> Divergence | None:
        """Decide until nothing is due and compare each decision; ``may_lack`` passes over those that are not recorded."""
        while due := decide(self.pool, cursor):
            for event in due:
                difference = compare(event, self.decided)
                if difference is not None and not (may_lack and difference.where == MISSING):
                    return difference
                self._say(event)
        return None

    def _say(self, event: Event) -> None:
        self.said.add(event.event_id)
        self.pool = apply(self.pool, event)

    def inherit(self) -> None:
        """Take the decisions of a fork's shared past as facts; they were made, and can be repeated, in its parent."""
        shared = self.run.started.forked_at_step if self.run.started else -1
        first_steps = {epoch: plan.first_step for epoch, plan in self.run.pool.epochs.items()}
        for item in self.decided.values():
            event = item.event
            step = event.step if hasattr(event, "step") else first_steps.get(event.epoch, 0)
            if step <= shared:
                self._say(event)

    def step(self, plan: Scanned, may_lack: bool = False) -> Divergence | None:
        """Repeat one recorded plan; ``may_lack`` as for :meth:`decide_all`."""
        if plan.event.event_id in self.said:
            return None
        self.advance({Place(c.topic, c.partition): c.next_offset for c in plan.event.input_cursor})
        difference = self.decide_all(plan.event.input_cursor, may_lack)
        if difference is None and plan.event.event_id not in self.said:
            return unrepeated(plan, "nothing is due at its cursor")
        return difference

    def repeat(self, is_complete: bool, on_plan: Callable[[], None] = lambda: None) -> Divergence | None:
        """Repeat every plan, then the rest; the first difference, or ``None``.

        Args:
            is_complete: whether the run ended; one that was cut off may lack decisions at and behind its last plan.
            on_plan: called after each plan.
        """
        everything = [item for lane in self.inputs.values() for item in lane] + list(self.decided.values())
        for item in everything:
            if (forged := forgery(item.event, item.where)) is not None:
                return forged
        reached = None
        try:
            self.inherit()
            for reached in self.plans:
                difference = self.step(reached, may_lack=not is_complete and reached is self.plans[-1])
                if difference is not None:
                    return difference
                on_plan()
            return self.finish(is_complete)
        except CONTRADICTION as error:
            where, what = (reached.where, short(reached.event)) if reached is not None else ("the log", "no plan")
            return Divergence(where, "facts that contradict each other", what, repr(error))

    def finish(self, is_complete: bool) -> Divergence | None:
        """Fold the rest; every recorded decision must have been made again, and none may be missing."""
        self.advance({place: lane[-1].record.offset + 1 for place, lane in self.inputs.items()})
        if (difference := self.decide_all((), may_lack=not is_complete)) is not None:
            return difference
        left = (item for key, item in self.decided.items() if key not in self.said)
        return next((unrepeated(item, "never decided") for item in left), None)
