"""One boundary signal in, its events out: every refused candidate, then exactly one terminal event.

Depends on nothing but the signal, the seed, the book, the settings and, where the backend asks a model, on its answers;
every draw is seeded by the signal's id.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from environments.canonical import canonical_json
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
from synthesizer.critique import refusal, twin
from synthesizer.guards import fingerprint
from synthesizer.llm.model import ModelRefused
from synthesizer.notebook import Notebook, Refused
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
MAX_DETAIL_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Job:
    """One signal and everything its answer depends on.

    Attributes:
        signal: The signal.
        seed: Its task and place in the run.
        book: What is known of the run; only read.
        backend: Who drafts.
        config: Settings.
        notebook: What happened so far.
    """

    signal: BoundaryDetected
    seed: Seed
    book: TaskBook
    backend: Backend
    config: SynthesisConfig
    notebook: Notebook


async def outcome_of(
    signal: BoundaryDetected,
    task: Task,
    book: TaskBook,
    backend: Backend,
    config: SynthesisConfig,
    tell: Callable[[object], None] | None = None,
) -> list[Event]:
    """The events that answer a signal: VariantRejected of each refused candidate, then one terminal.

    Args:
        signal: the signal.
        task: its seed.
        book: what is known of the run; not changed.
        backend: who drafts.
        config: settings.
        tell: hears each stage and completion as it comes.
    """
    notebook = Notebook(tell) if tell else Notebook()
    seed = Seed(task, signal.root_task_id, signal.generation, draw_key(signal))
    job = Job(signal, seed, book, backend, config, notebook)
    try:
        terminal = await _in_time(job)
    except BOUNDARY_ERRORS as error:
        name = "" if isinstance(error, TimeoutError) else f"{type(error).__name__}: "
        notebook.failures.append(Failure(SynthesisFailure.PIPELINE_EXCEPTION, f"{name}{error}"))
        terminal = _failed(job)
    return [*(_rejected(job, refused) for refused in notebook.refused), terminal]


async def _in_time(job: Job) -> Event:
    """All attempts under the signal's deadline; a backend that waits for nothing needs none.

    Raises:
        TimeoutError: the deadline passed.
    """
    if job.backend.is_sequential:
        return await _attempts(job)
    try:
        async with asyncio.timeout(job.config.deadline_s):
            return await _attempts(job)
    except TimeoutError as error:
        raise TimeoutError(f"no outcome within {job.config.deadline_s:g} s") from error


async def _attempts(job: Job) -> Event:
    failures = job.notebook.failures
    environment = environment_named(job.seed.task.environment)
    for number in range(job.config.max_attempts):
        attempt = Attempt(number, draw_seed(draw_key(job.signal), number), tuple(failures), job.notebook)
        result = await _attempt(environment, job, attempt)
        if isinstance(result, Draft):
            return _synthesized(job, result, environment)
        failures.append(result)
    return _failed(job)


async def _attempt(environment: Environment, job: Job, attempt: Attempt) -> Draft | Failure:
    """One attempt; before the next one, the backend hears why it failed. A refused request fails only the attempt."""
    try:
        result = await attempted(environment, job.seed, attempt, job.book, job.backend, job.config)
        if isinstance(result, Failure) and attempt.number + 1 < job.config.max_attempts:
            await job.backend.learn(job.seed, attempt, result)
        return result
    except ModelRefused as error:
        return Failure(SynthesisFailure.PIPELINE_EXCEPTION, f"the model's server refused the request: {error}")


async def attempted(
    environment: Environment, seed: Seed, attempt: Attempt, book: TaskBook, backend: Backend, config: SynthesisConfig
) -> Draft | Failure:
    """One full attempt: draft, augment, critique, review. A refused candidate is kept in the attempt's notebook."""
    notebook, number = attempt.notebook, attempt.number
    drafted = await backend.draft(seed, attempt)
    if isinstance(drafted, Failure):
        return drafted
    augmented = to_category(environment, drafted, seed.task.category, attempt.seed)
    if isinstance(augmented, Failure):
        return notebook.stopped(number, "augment", augmented)
    if augmented is not drafted:
        notebook.passed(number, "augment", augmented.changes[-1])
    draft = _named(augmented, seed)
    failure = refusal(environment, seed, draft, book, config)
    if failure is not None:
        return _kept(attempt, draft, notebook.stopped(number, "critique", failure))
    notebook.passed(number, "critique")
    reviewed = await backend.review(seed, draft, attempt)
    if isinstance(reviewed, Failure):
        return _kept(attempt, draft, reviewed)
    if reviewed is not draft:
        draft = _named(reviewed, seed)
        failure = refusal(environment, seed, draft, book, config)
    else:
        failure = twin(seed, draft, book, config)
    return draft if failure is None else _kept(attempt, draft, notebook.stopped(number, "critique", failure))


def _kept(attempt: Attempt, draft: Draft, failure: Failure) -> Failure:
    attempt.notebook.refused.append(Refused(attempt.number, draft.task, failure))
    return failure


def _named(draft: Draft, seed: Seed) -> Draft:
    task = replace(draft.task, task_id=variant_id(seed.root_task_id, seed.task, seed.draw_key))
    return replace(draft, task=task)


def draw_key(signal: BoundaryDetected) -> str:
    """What all draws for a signal hang on: seed task and step, not the run, so that equal runs make equal variants."""
    return f"{signal.task_id}\x1f{signal.step}"


def variant_id(root_task_id: str, seed: Task, key: str) -> str:
    """Id of the variant that answers a signal: human ancestor, category if the ancestor's id does not tell it, hash."""
    category = "" if seed.category.value in root_task_id else f"~{seed.category.value}"
    return f"{root_task_id}{category}~{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def draw_seed(key: str, number: int) -> int:
    """Seed of all draws of one attempt: a digest of signal and attempt number, 64 bits."""
    return int.from_bytes(hashlib.sha256(f"{key}\x1f{number}".encode()).digest()[:8], "big")


def _synthesized(job: Job, draft: Draft, environment: Environment) -> TaskSynthesized:
    profiles = ("", "")
    if job.config.profile_mode is not ProfileMode.OFF:
        profiles = tuple(profile_of(environment, task).to_json() for task in (job.seed.task, draft.task))
    return make(
        TaskSynthesized,
        job.signal.run_id,
        caused_by=job.signal.event_id,
        signal_id=job.signal.signal_id,
        task=draft.task,
        parent_task_id=job.seed.task.task_id,
        root_task_id=job.seed.root_task_id,
        generation=job.seed.generation + 1,
        seed_step=job.signal.step,
        seed_rank=job.signal.rank,
        backend=job.backend.name,
        num_attempts=len(job.notebook.failures) + 1,
        fingerprint=fingerprint(draft.task),
        seed_profile_json=profiles[0],
        variant_profile_json=profiles[1],
        **_notes(job),
    )


def _failed(job: Job) -> SynthesisFailed:
    failures = job.notebook.failures
    return make(
        SynthesisFailed,
        job.signal.run_id,
        caused_by=job.signal.event_id,
        signal_id=job.signal.signal_id,
        task_id=job.signal.task_id,
        failure=failures[-1].failure,
        detail=speakable(failures[-1].detail),
        num_attempts=len(failures),
        backend=job.backend.name,
        failures=tuple(item.failure for item in failures),
        **_notes(job),
    )


def _notes(job: Job) -> dict[str, object]:
    notebook = job.notebook
    return {
        "stages": tuple(replace(stage, detail=speakable(stage.detail)) for stage in notebook.stages),
        "completions": tuple(notebook.completions),
        "prompts_hash": job.backend.prompts_hash,
        "config_patch_json": canonical_json(notebook.config_patch) if notebook.config_patch else "",
    }


def _rejected(job: Job, refused: Refused) -> VariantRejected:
    return make(
        VariantRejected,
        job.signal.run_id,
        caused_by=job.signal.event_id,
        signal_id=job.signal.signal_id,
        attempt=refused.attempt,
        candidate=refused.candidate,
        failure=refused.failure.failure,
        detail=speakable(refused.failure.detail),
    )


def speakable(text: str) -> str:
    """A text that every log can hold: valid Unicode, not longer than MAX_DETAIL_CHARS."""
    return text[:MAX_DETAIL_CHARS].encode("utf-8", "replace").decode()
