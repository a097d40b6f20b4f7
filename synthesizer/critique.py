"""The critique that every draft must pass: category protocol, gates, guards, profile, in this order."""

from __future__ import annotations

from environments.interface import Environment
from schemas.events import Category
from synthesizer import gates, guards
from synthesizer.augment import protocol_problem
from synthesizer.backend import Draft, Seed
from synthesizer.book import TaskBook
from synthesizer.config import ProfileMode, SynthesisConfig
from synthesizer.execution import failures_of, trace_of
from synthesizer.grounding import ungrounded
from synthesizer.outcome import Failure
from synthesizer.profile import compared, profile_of, within_plan


def refusal(
    environment: Environment, seed: Seed, draft: Draft, book: TaskBook, config: SynthesisConfig
) -> Failure | None:
    """The first reason to refuse a draft, or ``None``."""
    return (
        protocol_problem(seed.task, draft, config)
        or _gates(environment, seed, draft, config)
        or _guards(environment, seed, draft, book, config)
        or _profile(environment, seed, draft, config)
    )


def _gates(environment: Environment, seed: Seed, draft: Draft, config: SynthesisConfig) -> Failure | None:
    tolerated = failures_of(trace_of(environment, seed.task)) if draft.keeps_structure else frozenset()
    return (
        gates.availability(environment, draft.task)
        or gates.complexity(draft.trace, config)
        or gates.execution(environment, draft.task, draft.trace, tolerated)
    )


def twin(seed: Seed, draft: Draft, book: TaskBook, config: SynthesisConfig) -> Failure | None:
    """The guard against doubles; asked once more when a judge took its time and others were admitted meanwhile."""
    return guards.duplicate(draft.task, book.fingerprints) or guards.near_duplicate(
        draft.task, book.family(seed.root_task_id), config.near_duplicate_frac
    )


def _guards(
    environment: Environment, seed: Seed, draft: Draft, book: TaskBook, config: SynthesisConfig
) -> Failure | None:
    return (
        guards.leakage(draft.task, book.held_out_configs, book.held_out_truths)
        or twin(seed, draft, book, config)
        or _provenance(environment, seed, draft)
        or _genuineness(environment, seed, draft)
    )


def _provenance(environment: Environment, seed: Seed, draft: Draft) -> Failure | None:
    tolerated: frozenset = frozenset()
    if draft.keeps_structure:
        tools = environment.tools(seed.task)
        tolerated = frozenset(ungrounded(seed.task, trace_of(environment, seed.task), tools))
    return guards.provenance(draft.task, draft.trace, environment.tools(draft.task), tolerated)


def _genuineness(environment: Environment, seed: Seed, draft: Draft) -> Failure | None:
    if draft.task.category is not Category.MISS_PARAM:
        return None
    if not draft.keeps_structure:
        return guards.genuineness(draft.task, draft.trace, draft.missing)
    required = guards.genuine(seed.task, trace_of(environment, seed.task))
    if not required:
        return None
    return guards.genuineness(draft.task, draft.trace, tuple(required))


def _profile(environment: Environment, seed: Seed, draft: Draft, config: SynthesisConfig) -> Failure | None:
    if config.profile_mode is not ProfileMode.ENFORCE:
        return None
    wanted = profile_of(environment, seed.task)
    if not draft.keeps_structure:
        wanted = within_plan(wanted, config)
    return compared(wanted, profile_of(environment, draft.task), config)
