"""One boundary signal in, its events out: every refused candidate, then exactly one terminal event.

Depends on nothing but the signal, the seed, the book and the settings; every draw is seeded by the signal's id.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from environments.interface import Environment, EnvironmentUnavailable
from environments.registry import environment as environment_named
from schemas import make
from schemas.events import (
    BoundaryDetected,
    Event,
    SynthesisFailed,
    SynthesisFailure,
    Task,
    TaskSynthesized,
    VariantRejected,
)
from synthesizer.augment import to_category
from synthesizer.backend import Attempt, Backend, Draft, Seed
from synthesizer.book import TaskBook
from synthesizer.config import ProfileMode, SynthesisConfig
from synthesizer.critique import refusal
from synthesizer.guards import fingerprint
from synthesizer.outcome import Failure
from synthesizer.profile import profile_of

BOUNDARY_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EnvironmentUnavailable,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What may go wrong inside a synthesis without stopping the service; each ends as ``pipeline_exception``."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A candidate that was built and refused in an attempt."""

    number: int
    candidate: Task
    failure: Failure


def outcome_of(
    signal: BoundaryDetected, seed: Task, book: TaskBook, backend: Backend, config: SynthesisConfig
) -> list[Event]:
    """The events that answer a signal: VariantRejected of each refused candidate, then one terminal.

    Args:
        signal: the signal.
        seed: its task.
        book: what is known of the run; not changed.
        backend: who drafts.
        config: settings.
    """
    refused: list[_Refused] = []
    failures: list[Failure] = []
    try:
        terminal = _attempts(signal, seed, book, backend, config, refused, failures)
    except BOUNDARY_ERRORS as error:
        failures.append(Failure(SynthesisFailure.PIPELINE_EXCEPTION, f"{type(error).__name__}: {error}"))
        terminal = _failed(signal, failures, backend)
    rejected = [
        make(
            VariantRejected,
            signal.run_id,
            caused_by=signal.event_id,
            signal_id=signal.signal_id,
            attempt=item.number,
            candidate=item.candidate,
            failure=item.failure.failure,
            detail=item.failure.detail,
        )
        for item in refused
    ]
    return [*rejected, terminal]


def _attempts(
    signal: BoundaryDetected,
    task: Task,
    book: TaskBook,
    backend: Backend,
    config: SynthesisConfig,
    refused: list[_Refused],
    failures: list[Failure],
) -> Event:
    seed = Seed(task, signal.root_task_id, signal.generation, draw_key(signal))
    if seed.generation >= config.max_generation:
        detail = f"the seed is of generation {seed.generation}, variants stop at {config.max_generation}"
        failures.append(Failure(SynthesisFailure.NO_PATTERN, detail))
        return _failed(signal, failures, backend)
    environment = environment_named(task.environment)
    for number in range(config.max_attempts):
        attempt = Attempt(number, draw_seed(draw_key(signal), number), tuple(failures))
        result = attempted(environment, seed, attempt, book, backend, config, refused)
        if isinstance(result, Draft):
            return _synthesized(signal, seed, result, len(failures) + 1, environment, backend, config)
        failures.append(result)
    return _failed(signal, failures, backend)


def attempted(
    environment: Environment,
    seed: Seed,
    attempt: Attempt,
    book: TaskBook,
    backend: Backend,
    config: SynthesisConfig,
    refused: list[_Refused] | None = None,
) -> Draft | Failure:
    """One full attempt: draft, augment, critique, review. A refused candidate is added to ``refused``."""
    drafted = backend.draft(seed, attempt)
    if isinstance(drafted, Failure):
        return drafted
    augmented = to_category(environment, drafted, seed.task.category, attempt.seed)
    if isinstance(augmented, Failure):
        return augmented
    draft = _named(augmented, seed)
    failure = refusal(environment, seed, draft, book, config)
    if failure is None:
        reviewed = backend.review(seed, draft, attempt)
        if isinstance(reviewed, Failure):
            failure = reviewed
        elif reviewed is not draft:
            draft = _named(reviewed, seed)
            failure = refusal(environment, seed, draft, book, config)
    if failure is None:
        return draft
    if refused is not None:
        refused.append(_Refused(attempt.number, draft.task, failure))
    return failure


def _named(draft: Draft, seed: Seed) -> Draft:
    task = replace(draft.task, task_id=variant_id(seed.root_task_id, seed.task, seed.signal_id))
    return replace(draft, task=task)


def draw_key(signal: BoundaryDetected) -> str:
    """What all draws for a signal hang on: seed task and step, not the run, so that equal runs make equal variants."""
    return f"{signal.task_id}\x1f{signal.step}"


def variant_id(root_task_id: str, seed: Task, signal_id: str) -> str:
    """Id of the variant that answers a signal: human ancestor, category if the ancestor's id does not tell it, hash."""
    category = "" if seed.category.value in root_task_id else f"~{seed.category.value}"
    return f"{root_task_id}{category}~{hashlib.sha256(signal_id.encode()).hexdigest()[:10]}"


def draw_seed(signal_id: str, number: int) -> int:
    """Seed of all draws of one attempt: a digest of signal and attempt number, 64 bits."""
    return int.from_bytes(hashlib.sha256(f"{signal_id}\x1f{number}".encode()).digest()[:8], "big")


def _synthesized(
    signal: BoundaryDetected,
    seed: Seed,
    draft: Draft,
    num_attempts: int,
    environment: Environment,
    backend: Backend,
    config: SynthesisConfig,
) -> TaskSynthesized:
    profiles = ("", "")
    if config.profile_mode is not ProfileMode.OFF:
        profiles = tuple(profile_of(environment, task).to_json() for task in (seed.task, draft.task))
    return make(
        TaskSynthesized,
        signal.run_id,
        caused_by=signal.event_id,
        signal_id=signal.signal_id,
        task=draft.task,
        parent_task_id=seed.task.task_id,
        root_task_id=seed.root_task_id,
        generation=seed.generation + 1,
        seed_step=signal.step,
        seed_rank=signal.rank,
        backend=backend.name,
        num_attempts=num_attempts,
        fingerprint=fingerprint(draft.task),
        seed_profile_json=profiles[0],
        variant_profile_json=profiles[1],
    )


def _failed(signal: BoundaryDetected, failures: list[Failure], backend: Backend) -> SynthesisFailed:
    last = failures[-1]
    return make(
        SynthesisFailed,
        signal.run_id,
        caused_by=signal.event_id,
        signal_id=signal.signal_id,
        task_id=signal.task_id,
        failure=last.failure,
        detail=last.detail,
        num_attempts=len(failures),
        backend=backend.name,
        failures=tuple(item.failure for item in failures),
    )
