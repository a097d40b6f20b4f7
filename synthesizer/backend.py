"""The port behind which variants are drafted: plan, execute and rewrite belong to a backend, the rest is shared.

A backend turns a seed into a :class:`Draft` or says why not. Augmentation to the seed's category, gates, guards and
the profile run outside, equally for every backend. A backend with a judge answers in ``review``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schemas.events import Task
from synthesizer.execution import Trace
from synthesizer.grounding import Position
from synthesizer.outcome import Failure


@dataclass(frozen=True, slots=True)
class Seed:
    """A task worth varying and its place in the run.

    Attributes:
        task: The task.
        root_task_id: Human ancestor.
        generation: Distance from the human ancestor, 0 for a human task.
        signal_id: event_id of the BoundaryDetected that asks for a variant.
    """

    task: Task
    root_task_id: str
    generation: int
    signal_id: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One full attempt at a seed.

    Attributes:
        number: 0-based.
        seed: Integer that drives every draw of this attempt; equal for equal signal and number.
        history: Failures of the attempts before, in order, for feedback.
    """

    number: int
    seed: int
    history: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate.

    Attributes:
        task: The candidate; its task_id is provisional.
        trace: Its reference calls with the results recorded while drafting.
        keeps_structure: Whether turn, call and argument places are those of the seed, so that the seed's own
            oddities (a deliberate negative result, an unexplained value) may recur in their place.
        missing: In a miss_param draft, where the value that was taken out of the text is used.
        changes: What was changed, in words, for the reader of a report.
    """

    task: Task
    trace: Trace
    keeps_structure: bool = False
    missing: tuple[Position, ...] = ()
    changes: tuple[str, ...] = ()


class Backend(Protocol):
    """A way to draft variants. Must be deterministic in (seed, attempt) or say in its docs that it is not."""

    name: str

    def draft(self, seed: Seed, attempt: Attempt) -> Draft | Failure:
        """Plan, execute and rewrite one candidate."""

    def review(self, seed: Seed, draft: Draft, attempt: Attempt) -> Draft | Failure:
        """Judge a candidate that passed gates and guards: the same draft, a refined one, or a refusal."""
