"""What synthesis yields and costs, folded from events. Pure; hearing an event twice changes nothing.

Rates are ``None`` where nothing was counted. Costs are tokens times the prices of the settings, in their currency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.events import BoundaryDetected, Completion, Event, SynthesisFailed, TaskSynthesized, VariantRejected

MILLION = 1_000_000


@dataclass(slots=True)
class RoleCost:
    """What one role was asked and answered; latency in milliseconds."""

    num_completions: int = 0
    num_errors: int = 0
    num_retries: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    latency_ms: float = 0.0

    def add(self, completion: Completion) -> None:
        """Count one completion."""
        self.num_completions += 1
        self.num_errors += bool(completion.error)
        self.num_retries += completion.num_retries
        self.num_prompt_tokens += completion.num_prompt_tokens
        self.num_completion_tokens += completion.num_completion_tokens
        self.latency_ms += completion.latency_ms


@dataclass(slots=True)
class Yields:
    """Running totals over signals.

    Attributes:
        num_signals, num_admitted, num_failed, num_rejected: signals, terminal events of both kinds, refused candidates.
        passed, stopped: attempts by stage; ``stopped`` by (stage, failure).
        failures: terminal failures by type; rejections: refused candidates by type.
        judged: first verdicts of the judge as (with rewrite, accepted).
        roles: costs by role.
        attempts: full attempts over all answered signals.
    """

    num_signals: int = 0
    num_admitted: int = 0
    num_failed: int = 0
    num_rejected: int = 0
    attempts: int = 0
    passed: Counter = field(default_factory=Counter)
    stopped: Counter = field(default_factory=Counter)
    failures: Counter = field(default_factory=Counter)
    rejections: Counter = field(default_factory=Counter)
    judged: Counter = field(default_factory=Counter)
    roles: dict[str, RoleCost] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)

    def fold(self, events: Iterable[Event]) -> Yields:
        """Take in events; other types are passed over."""
        for event in events:
            if event.event_id in self._seen:
                continue
            match event:
                case BoundaryDetected():
                    self.num_signals += 1
                    if event.signal_id not in self._ended:
                        self._open.add(event.signal_id)
                case TaskSynthesized() | SynthesisFailed():
                    self._end(event)
                case VariantRejected():
                    self.num_rejected += 1
                    self.rejections[event.failure.value] += 1
                case _:
                    continue
            self._seen.add(event.event_id)
        return self

    def _end(self, event: TaskSynthesized | SynthesisFailed) -> None:
        if event.signal_id in self._ended:
            return
        self._ended.add(event.signal_id)
        self._open.discard(event.signal_id)
        self.attempts += event.num_attempts
        if isinstance(event, TaskSynthesized):
            self.num_admitted += 1
        else:
            self.num_failed += 1
            self.failures[event.failure.value] += 1
        rewritten = {stage.attempt for stage in event.stages if stage.stage == "rewrite" and stage.passed}
        for stage in event.stages:
            if stage.passed:
                self.passed[stage.stage] += 1
            else:
                self.stopped[stage.stage, stage.failure] += 1
            if stage.stage == "judge":
                self.judged[stage.attempt in rewritten, stage.passed] += 1
        for completion in event.completions:
            self.roles.setdefault(completion.role, RoleCost()).add(completion)

    @property
    def queue_depth(self) -> int:
        """Signals without a terminal event."""
        return len(self._open)

    @property
    def num_prompt_tokens(self) -> int:
        """Over all roles."""
        return sum(role.num_prompt_tokens for role in self.roles.values())

    @property
    def num_completion_tokens(self) -> int:
        """Over all roles."""
        return sum(role.num_completion_tokens for role in self.roles.values())

    def judge_pass_frac(self, with_rewrite: bool) -> float | None:
        """Share of first verdicts that accept, of candidates with or without a rewrite."""
        return _share(self.judged[with_rewrite, True], self.judged[with_rewrite, False])

    def stage_pass_frac(self, stage: str) -> float | None:
        """Share of attempts that passed a stage, of those that reached it."""
        return _share(self.passed[stage], sum(num for (name, _), num in self.stopped.items() if name == stage))

    def cost(self, prompt_price: float = 0.0, completion_price: float = 0.0) -> float:
        """Of all completions, at prices a million tokens."""
        return (self.num_prompt_tokens * prompt_price + self.num_completion_tokens * completion_price) / MILLION

    def per_admitted(self, amount: float) -> float | None:
        """An amount divided by the admitted tasks."""
        return amount / self.num_admitted if self.num_admitted else None


def _share(yes: int, no: int) -> float | None:
    return yes / (yes + no) if yes + no else None


STAGES = ("draft", "plan", "execute", "rewrite", "augment", "critique", "judge", "refine", "patch")


def section_of(yields: Yields, prompt_price: float = 0.0, completion_price: float = 0.0) -> dict:
    """The figures as plain data: what ``rods status`` shows under ``synthesis`` and metrics are made of.

    Args:
        yields: folded events.
        prompt_price, completion_price: prices a million tokens.
    """
    tokens = yields.num_prompt_tokens + yields.num_completion_tokens
    cost = yields.cost(prompt_price, completion_price)
    judge = {"with_rewrite": yields.judge_pass_frac(True), "without_rewrite": yields.judge_pass_frac(False)}
    return {
        "signals": yields.num_signals,
        "queue_depth": yields.queue_depth,
        "admitted": yields.num_admitted,
        "failed": yields.num_failed,
        "rejected_candidates": yields.num_rejected,
        "attempts": yields.attempts,
        "yield_frac": _share(yields.num_admitted, yields.num_failed),
        "failures": dict(sorted(yields.failures.items())),
        "rejections": dict(sorted(yields.rejections.items())),
        "judge_pass_frac": judge,
        "tokens": tokens,
        "tokens_per_admitted": yields.per_admitted(tokens),
        "model_ms_per_admitted": yields.per_admitted(sum(role.latency_ms for role in yields.roles.values())),
        "cost": cost,
        "cost_per_admitted": yields.per_admitted(cost),
        "stages": {stage: _stage(yields, stage) for stage in STAGES if yields.stage_pass_frac(stage) is not None},
        "roles": {name: _role(role) for name, role in sorted(yields.roles.items())},
    }


def _stage(yields: Yields, stage: str) -> dict:
    stopped = {reason or "none": num for (name, reason), num in sorted(yields.stopped.items()) if name == stage}
    return {"passed": yields.passed[stage], "pass_frac": yields.stage_pass_frac(stage), "stopped": stopped}


def _role(role: RoleCost) -> dict:
    return {
        "completions": role.num_completions,
        "errors": role.num_errors,
        "retries": role.num_retries,
        "prompt_tokens": role.num_prompt_tokens,
        "completion_tokens": role.num_completion_tokens,
        "mean_latency_ms": role.latency_ms / role.num_completions,
    }
