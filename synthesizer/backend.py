"""The port behind which variants are drafted: plan, execute and rewrite belong to a backend, the rest is shared.

A backend turns a seed into a :class:`Draft` or says why not. Augmentation to the seed's category, gates, guards and
the profile run outside, equally for every backend. A backend with a judge answers in ``review``; one that learns from
failures does so in ``learn``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from schemas.events import Task
from synthesizer.execution import Trace
from synthesizer.grounding import Position
from synthesizer.notebook import Notebook
from synthesizer.outcome import Failure


@dataclass(frozen=True, slots=True)
class Seed:
    """A task worth varying and its place in the run.

    Attributes:
        task: The task.
        root_task_id: Human ancestor.
        generation: Distance from the human ancestor, 0 for a human task.
        draw_key: What every draw and the variant's id hang on: seed task and step of the signal, not the run.
    """

    task: Task
    root_task_id: str
    generation: int
    draw_key: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One full attempt at a seed.

    Attributes:
        number: 0-based.
        seed: Integer that drives every draw of this attempt; equal for equal signal and number.
        history: Failures of the attempts before, in order, for feedback.
        notebook: Where everything that happens is noted.
    """

    number: int
    seed: int
    history: tuple[Failure, ...] = ()
    notebook: Notebook = field(default_factory=Notebook, compare=False)


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
        narrative: The story behind it; empty if there is none.
    """

    task: Task
    trace: Trace
    keeps_structure: bool = False
    missing: tuple[Position, ...] = ()
    changes: tuple[str, ...] = ()
    narrative: str = ""


class Backend(Protocol):
    """A way to draft variants. Must be deterministic in (seed, attempt) and in what its model answers.

    Attributes:
        name: As the settings name it.
        is_sequential: Whether it waits for nothing: signals are then answered one after the other in log order,
            which makes a run repeatable.
        prompts_hash: SHA-256 over its prompt texts; empty without a model.
    """

    name: str
    is_sequential: bool
    prompts_hash: str

    async def draft(self, seed: Seed, attempt: Attempt) -> Draft | Failure:
        """Plan, execute and rewrite one candidate."""

    async def review(self, seed: Seed, draft: Draft, attempt: Attempt) -> Draft | Failure:
        """Judge a candidate that passed gates and guards: the same draft, a refined one, or a refusal."""

    async def learn(self, seed: Seed, attempt: Attempt, failure: Failure) -> None:
        """Hear why an attempt failed, before the next one."""

    async def close(self) -> None:
        """Let go of connections."""
