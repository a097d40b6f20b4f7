"""What the ground truth of a task produces, turn by turn, executed once and never skipped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from environments.execution import run_call, started
from environments.interface import EXECUTION_ERROR_PREFIX, Environment, QuickCompare
from schemas.events import Task


@dataclass(frozen=True, slots=True)
class Reference:
    """Results and states of the ground truth; all tuples have one entry per turn.

    Attributes:
        task_id: The task.
        results: Result texts of the turn's reference calls, in order.
        digests: Digest of the public state after the turn.
        marks: The environment's quick comparison marks after the turn; the digests again where it offers none.
        is_quick: Whether the marks are the environment's own.
        failures: ``turn N: name: result`` for every reference call that failed; empty for a usable task.
    """

    task_id: str
    results: tuple[tuple[str, ...], ...]
    digests: tuple[str, ...]
    marks: tuple[object, ...]
    is_quick: bool
    failures: tuple[str, ...]

    @classmethod
    def of(cls, environment: Environment, task: Task) -> Reference:
        """Execute the whole ground truth from a fresh state; kept for the last tasks asked for."""
        return _of(environment, task)


@lru_cache(maxsize=2_048)
def _of(environment: Environment, task: Task) -> Reference:
    state = started(environment, task)
    quick = isinstance(environment, QuickCompare)
    results, digests, marks, failures = [], [], [], []
    for index, turn in enumerate(task.turns):
        obtained = tuple(run_call(environment, state, call) for call in turn.ground_truth)
        for call, result in zip(turn.ground_truth, obtained, strict=True):
            if result.startswith(EXECUTION_ERROR_PREFIX):
                failures.append(f"turn {index}: {call.name}: {result}")
        digest = environment.digest(state)
        results.append(obtained)
        digests.append(digest)
        marks.append(environment.mark(state, marks[-1] if marks else None) if quick else digest)
    return Reference(task.task_id, tuple(results), tuple(digests), tuple(marks), quick, tuple(failures))
