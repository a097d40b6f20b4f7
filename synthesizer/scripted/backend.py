"""The deterministic backend: needs no model, keeps the seed's calls, changes whom and what they are about.

Plan: draw a consistent exchange of entities. Execute: run the seed's calls in the changed state and let arguments
follow. Rewrite: put the same exchange into the user texts. Later attempts change less, so that more seeds succeed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from environments.interface import Environment
from environments.registry import environment as environment_named
from schemas.events import SynthesisFailure, Task
from synthesizer.backend import Attempt, Draft, Seed
from synthesizer.derive import rerun
from synthesizer.execution import Trace, trace_of
from synthesizer.outcome import Failure
from synthesizer.scripted import files, people, places, quantities, social
from synthesizer.scripted.draw import Draw
from synthesizer.scripted.substitution import Substitution
from synthesizer.scripted.view import SeedView
from synthesizer.values import has_word, is_number, numbers_in, result_leaves, same

Collector = Callable[[Draw], None]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of exchange and the last attempt (0-based) that makes it."""

    collect: Collector
    last_attempt: int


_ALWAYS = 10**6
NUM_DRAWS = 4
"""Draws within one attempt; a draw that the simulators or the texts refuse costs a few milliseconds."""
_KINDS = (
    _Kind(places.collect_dates, 1),
    _Kind(places.collect_stocks, 1),
    _Kind(places.collect_cities, 1),
    _Kind(places.collect_airports, 1),
    _Kind(places.collect_currencies, 0),
    _Kind(places.collect_classes, 0),
    _Kind(places.collect_addresses, _ALWAYS),
    _Kind(people.collect, _ALWAYS),
    _Kind(files.collect, _ALWAYS),
    _Kind(social.collect_tags, _ALWAYS),
    _Kind(social.collect_sentences, _ALWAYS),
    _Kind(quantities.collect_amounts, 1),
    _Kind(quantities.collect_limits, 1),
    _Kind(quantities.collect_state, 0),
    _Kind(social.collect_contents, 0),
)


class ScriptedBackend:
    """Drafts variants by exchanging entities. Deterministic in (seed, attempt)."""

    name = "scripted"
    is_sequential = True
    prompts_hash = ""

    async def draft(self, seed: Seed, attempt: Attempt) -> Draft | Failure:
        """One candidate, or why this draw gives none."""
        drafted = self.drawn(seed, attempt)
        if isinstance(drafted, Failure):
            return attempt.notebook.stopped(attempt.number, "draft", drafted)
        attempt.notebook.passed(attempt.number, "draft", "; ".join(drafted.changes))
        return drafted

    def drawn(self, seed: Seed, attempt: Attempt) -> Draft | Failure:
        """One candidate by program, noted nowhere."""
        environment = environment_named(seed.task.environment)
        view = SeedView(seed.task, trace_of(environment, seed.task))
        rng = random.Random(attempt.seed)
        result: Draft | Failure = Failure(SynthesisFailure.NO_PATTERN, "no draw was made")
        for _ in range(NUM_DRAWS):
            draw = Draw(view, rng)
            for kind in _KINDS:
                if attempt.number <= kind.last_attempt:
                    kind.collect(draw)
            result = self._built(environment, view, draw)
            if isinstance(result, Draft):
                break
        return result

    def _built(self, environment: Environment, view: SeedView, draw: Draw) -> Draft | Failure:
        substitution = draw.substitution()
        if not substitution.labels:
            return Failure(SynthesisFailure.NO_PATTERN, "the seed names no entity or amount that could be exchanged")
        rewritten = rewrite(view.task, draw.config, substitution, draw.rng.randrange(1, 2**31))
        problem = text_problem(view, rewritten, substitution)
        if problem:
            return Failure(SynthesisFailure.QUERY_VERIFY_FAILED, problem)
        followed = rerun(environment, view.task, view.trace, rewritten, substitution)
        if isinstance(followed, Failure):
            return followed
        task, trace = followed
        problem = _order_problem(view, trace, substitution) or _stale_number(view, trace, substitution)
        if problem:
            return Failure(SynthesisFailure.QUERY_VERIFY_FAILED, problem)
        if _same_conversation(view.task, task):
            return Failure(SynthesisFailure.NO_PATTERN, "texts and calls are those of the seed")
        return Draft(task, trace, keeps_structure=True, changes=substitution.labels)

    async def review(self, seed: Seed, draft: Draft, attempt: Attempt) -> Draft | Failure:
        """No judge: gates, guards and the program's own checks decide."""
        return draft

    async def learn(self, seed: Seed, attempt: Attempt, failure: Failure) -> None:
        """Nothing: a later attempt changes less, whatever the reason."""

    async def close(self) -> None:
        """Nothing is open."""


def rewrite(task: Task, config: dict, substitution: Substitution, id_seed: int) -> Task:
    """The seed with state and texts exchanged; its reference calls are still the old ones.

    Args:
        task: the seed.
        config: its state, possibly with defaults written out.
        substitution: what becomes what.
        id_seed: seed of the simulators' random ids.
    """
    state = json.dumps(substitution.state(config), ensure_ascii=False, separators=(",", ":"))
    turns = tuple(replace(turn, user_text=substitution.text(turn.user_text, {})) for turn in task.turns)
    return replace(task, initial_config_json=state, turns=turns, id_seed=id_seed)


def text_problem(view: SeedView, task: Task, substitution: Substitution) -> str:
    """In words, an old name that is still in a new text, in any case; empty if there is none."""
    fresh = "\n".join([*substitution.words.values()])
    for old in substitution.words:
        if len(old) < 4 or has_word(old, fresh, ignore_case=True) or not re.search(r"[A-Z_\d]", old):
            continue
        for index, turn in enumerate(task.turns):
            plain = turn.user_text if old.istitle() else turn.user_text.lower()
            if has_word(old if old.istitle() else old.lower(), plain):
                return f"turn {index} still says {old!r}"
    return ""


def _order_problem(view: SeedView, trace: Trace, substitution: Substitution) -> str:
    """A comparison that the user asks for must come out as before."""
    limits = sorted({number for text in view.texts for number in numbers_in(text) if not 1900 <= number <= 2100})
    thresholds = [(limit, float(substitution.value(limit))) for limit in limits]
    pairs = []
    for old, new in zip(view.trace.steps, trace.steps, strict=True):
        now = dict(result_leaves(new.result))
        for path, value in result_leaves(old.result):
            key = str(path[-1]) if path else ""
            if is_number(value) and is_number(now.get(path)) and not key.endswith("id"):
                pairs.append((float(value), float(now[path])))
    return quantities.order_kept(pairs, thresholds)


def _stale_number(view: SeedView, trace: Trace, substitution: Substitution) -> str:
    """A number in a text that was an answer of the simulators and is not any more."""
    arguments = {float(a.value) for a in view.arguments if is_number(a.value)}
    said = {
        n for text in view.texts for n in numbers_in(text) if (n >= 100 or not n.is_integer()) and n not in arguments
    }
    for number in sorted(said - set(substitution.numbers)):
        before = any(in_leaves(number, step.result) for step in view.trace.steps)
        if before and not any(in_leaves(number, step.result) for step in trace.steps):
            return f"a text says {number:g}, which no result gives any more"
    return ""


def in_leaves(number: float, result: str) -> bool:
    """Whether a result has a leaf of that value."""
    return any(same(leaf, number) for _, leaf in result_leaves(result))


def _same_conversation(old: Task, new: Task) -> bool:
    return old.turns == new.turns
