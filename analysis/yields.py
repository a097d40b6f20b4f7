"""What synthesis yields and costs. Pure.

Rates are ``None`` where nothing was counted. Costs are tokens times the prices of the settings, in their currency.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from analysis.index import RunIndex
from schemas.events import Completion, SynthesisStage, TaskSynthesized

MILLION = 1_000_000
STAGES = ("draft", "plan", "execute", "rewrite", "augment", "critique", "judge", "refine", "patch")


def prices_of(run: RunIndex) -> tuple[float, float]:
    """Prices of a million prompt tokens and of a million completion tokens, as recorded; 0 where none is."""
    recorded = json.loads(run.started.config_json) if run.started else {}
    model = recorded.get("synthesis", {}).get("llm", {})
    return model.get("prompt_price", 0.0), model.get("completion_price", 0.0)


def synthesis_of(run: RunIndex) -> dict:
    """The figures as plain data: what ``rods status`` shows under ``synthesis``."""
    ends = [events[0] for events in run.outcomes.values()]
    num_admitted = sum(isinstance(event, TaskSynthesized) for event in ends)
    stages = [stage for event in ends for stage in _attempts(event.stages)]
    judged = Counter((is_rewritten, stage.passed) for stage, is_rewritten in stages if stage.stage == "judge")
    completions = [completion for event in ends for completion in event.completions]
    prompt_tokens = sum(completion.num_prompt_tokens for completion in completions)
    completion_tokens = sum(completion.num_completion_tokens for completion in completions)
    prompt_price, completion_price = prices_of(run)
    cost = (prompt_tokens * prompt_price + completion_tokens * completion_price) / MILLION

    def per_admitted(amount: float) -> float | None:
        return amount / num_admitted if num_admitted else None

    return {
        "signals": run.counts["BoundaryDetected"],
        "queue_depth": run.num_open_signals,
        "admitted": num_admitted,
        "failed": len(ends) - num_admitted,
        "rejected_candidates": run.rejections.total(),
        "attempts": sum(event.num_attempts for event in ends),
        "yield_frac": _share(num_admitted, len(ends) - num_admitted),
        "failures": dict(sorted(Counter(e.failure.value for e in ends if not isinstance(e, TaskSynthesized)).items())),
        "rejections": dict(sorted(run.rejections.items())),
        "judge_pass_frac": {
            "with_rewrite": _share(judged[True, True], judged[True, False]),
            "without_rewrite": _share(judged[False, True], judged[False, False]),
        },
        "tokens": prompt_tokens + completion_tokens,
        "tokens_per_admitted": per_admitted(prompt_tokens + completion_tokens),
        "model_ms_per_admitted": per_admitted(sum(completion.latency_ms for completion in completions)),
        "cost": cost,
        "cost_per_admitted": per_admitted(cost),
        "stages": {name: figures for name in STAGES if (figures := _stage([s for s, _ in stages if s.stage == name]))},
        "roles": {
            role: _role([completion for completion in completions if completion.role == role])
            for role in sorted({completion.role for completion in completions})
        },
    }


def _attempts(stages: Sequence[SynthesisStage]) -> list[tuple[SynthesisStage, bool]]:
    """Each stage of a synthesis, and whether the texts of its attempt were rewritten."""
    rewritten = {stage.attempt for stage in stages if stage.stage == "rewrite" and stage.passed}
    return [(stage, stage.attempt in rewritten) for stage in stages]


def _share(yes: int, no: int) -> float | None:
    return yes / (yes + no) if yes + no else None


def _stage(ends: Sequence[SynthesisStage]) -> dict:
    """How often one stage passed and what stopped it; empty where no attempt reached it."""
    stopped = Counter(stage.failure or "none" for stage in ends if not stage.passed)
    passed = len(ends) - stopped.total()
    return {"passed": passed, "pass_frac": passed / len(ends), "stopped": dict(sorted(stopped.items()))} if ends else {}


def _role(asked: Sequence[Completion]) -> dict:
    """What one role was asked and answered; latency in milliseconds."""
    return {
        "completions": len(asked),
        "errors": sum(bool(completion.error) for completion in asked),
        "retries": sum(completion.num_retries for completion in asked),
        "prompt_tokens": sum(completion.num_prompt_tokens for completion in asked),
        "completion_tokens": sum(completion.num_completion_tokens for completion in asked),
        "mean_latency_ms": sum(completion.latency_ms for completion in asked) / len(asked),
    }
