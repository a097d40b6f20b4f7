"""The structural profile of a task: what its calls need from each other, measured by running them.

Value edges: a result's value is used by a later call. State edges: without call i, call j answers differently.
The method names these features but publishes no extractor or distance; both are our choice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from environments.execution import started
from environments.interface import Environment
from schemas.events import Category, SynthesisFailure, Task
from synthesizer.config import SynthesisConfig
from synthesizer.execution import Step, executed, trace_of
from synthesizer.grounding import in_text
from synthesizer.outcome import Failure
from synthesizer.values import Scalar, is_number, leaves, result_leaves, same

Edge = tuple[int, int]
MIN_CHARS = 3
SMALL = 2
"""Numbers up to this size are too common to count as evidence of a value edge."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What must stay alike between seed and variant; calls are numbered from 0 over the whole task.

    Attributes:
        category: Kind of task.
        num_turns: User turns.
        calls_per_turn: Reference calls of each turn.
        functions: Function of each call.
        classes: Involved tool classes.
        value_edges: (i, j): call j uses a value of result i that its user text does not give.
        weak_value_edges: The same, but the user text gives the value too.
        state_edges: (i, j): without call i the result of call j differs; i and j act on the same class.
        depth: Calls on the longest path over value and state edges.
        num_cross_turn_edges: Edges whose ends lie in different turns.
        num_coreferences: Turns with an argument that their text leaves out and earlier texts or results hold.
        num_writes: Calls that change the public state.
    """

    category: str
    num_turns: int
    calls_per_turn: tuple[int, ...]
    functions: tuple[str, ...]
    classes: tuple[str, ...]
    value_edges: tuple[Edge, ...]
    weak_value_edges: tuple[Edge, ...]
    state_edges: tuple[Edge, ...]
    depth: int
    num_cross_turn_edges: int
    num_coreferences: int
    num_writes: int

    @property
    def num_calls(self) -> int:
        """Reference calls in all."""
        return sum(self.calls_per_turn)

    def to_json(self) -> str:
        """Canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=2048)
def profile_of(environment: Environment, task: Task) -> Profile:
    """Run the task's reference calls and measure its structure."""
    steps = trace_of(environment, task).steps
    strong, weak = _value_edges(task, steps)
    state, writes = _state_edges(environment, task, steps)
    edges = tuple(sorted({*strong, *state}))
    turns = [step.turn for step in steps]
    return Profile(
        category=task.category.value,
        num_turns=len(task.turns),
        calls_per_turn=tuple(len(turn.ground_truth) for turn in task.turns),
        functions=tuple(step.call.name for step in steps),
        classes=task.involved_classes,
        value_edges=strong,
        weak_value_edges=weak,
        state_edges=state,
        depth=_depth(len(steps), edges),
        num_cross_turn_edges=sum(turns[i] < turns[j] for i, j in edges),
        num_coreferences=_num_coreferences(task, steps),
        num_writes=writes,
    )


def _value_edges(task: Task, steps: tuple[Step, ...]) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
    strong, weak = [], []
    for j, user in enumerate(steps):
        text = task.turns[user.turn].user_text
        arguments = [leaf for _, leaf in leaves(user.arguments)]
        for i, producer in enumerate(steps[:j]):
            used = [leaf for _, leaf in result_leaves(producer.result) if _is_used(leaf, arguments)]
            if used:
                (weak if all(in_text(leaf, text) for leaf in used) else strong).append((i, j))
    return tuple(strong), tuple(weak)


def _is_used(leaf: Scalar, arguments: list[Scalar]) -> bool:
    if is_number(leaf) and abs(leaf) > SMALL:
        text = f"{leaf:g}"
        return any(same(leaf, value) or isinstance(value, str) and text in value for value in arguments)
    if isinstance(leaf, str) and len(leaf) >= MIN_CHARS:
        return any(isinstance(value, str) and leaf in value for value in arguments)
    return False


def _state_edges(environment: Environment, task: Task, steps: tuple[Step, ...]) -> tuple[tuple[Edge, ...], int]:
    """Leave out each call in turn and see which later results of the same class change."""
    tools = environment.tools(task)
    owner = {name: schema.owner for name, schema in tools.items()}
    state = started(environment, task)
    digest, num_writes, edges = environment.digest(state), 0, []
    for i, left_out in enumerate(steps):
        before = environment.snapshot(state)
        executed(environment, state, left_out.call, tools)
        after = environment.digest(state)
        num_writes += after != digest
        digest = after
        other = environment.restore(before)
        mine = owner.get(left_out.call.name)
        for j, later in enumerate(steps[i + 1 :], i + 1):
            if owner.get(later.call.name) == mine and executed(environment, other, later.call, tools) != later.result:
                edges.append((i, j))
    return tuple(edges), num_writes


def _depth(num_calls: int, edges: tuple[Edge, ...]) -> int:
    longest = [1] * num_calls
    for i, j in sorted(edges, key=lambda edge: edge[1]):
        longest[j] = max(longest[j], longest[i] + 1)
    return max(longest, default=0)


def _num_coreferences(task: Task, steps: tuple[Step, ...]) -> int:
    turns = set()
    for place, step in enumerate(steps):
        text = task.turns[step.turn].user_text
        before = "\n".join(turn.user_text for turn in task.turns[: step.turn])
        for _, value in leaves(step.arguments):
            if isinstance(value, bool) or value is None or in_text(value, text):
                continue
            if in_text(value, before) or any(
                same(value, leaf) for earlier in steps[:place] for _, leaf in result_leaves(earlier.result)
            ):
                turns.add(step.turn)
    return len(turns)


def plan_shape(category: str, calls_per_turn: Sequence[int], config: SynthesisConfig) -> tuple[int, ...]:
    """Calls of each turn that a plan for such a seed must have: turns with calls only, clipped to what a plan may hold.

    Categories that add a turn to the plan leave one turn free.
    """
    longest = config.max_plan_turns - (category in (Category.MISS_FUNC, Category.MISS_PARAM))
    executable = [num for num in calls_per_turn if num]
    return tuple(min(num, config.max_plan_calls) for num in executable[: max(1, longest)])


def within_plan(seed: Profile, config: SynthesisConfig) -> Profile:
    """The profile that a planned variant of this seed can have at most; equal to the seed's for most seeds."""
    calls = plan_shape(seed.category, seed.calls_per_turn, config)
    if calls == tuple(num for num in seed.calls_per_turn if num):
        return seed
    num_writes = round(seed.num_writes * sum(calls) / max(1, seed.num_calls))
    return replace(seed, calls_per_turn=calls, depth=min(seed.depth, sum(calls)), num_writes=num_writes)


def differences(seed: Profile, variant: Profile, config: SynthesisConfig) -> tuple[str, ...]:
    """Where a variant leaves its seed's structure by more than the settings allow, in words."""
    found = []
    if variant.category != seed.category:
        found.append(f"category {variant.category} instead of {seed.category}")
    if len(variant.classes) != len(seed.classes):
        found.append(f"{len(variant.classes)} classes instead of {len(seed.classes)}")
    mine, theirs = ([n for n in p.calls_per_turn if n] for p in (seed, variant))
    if len(theirs) != len(mine) and len(mine) <= config.max_turns:
        found.append(f"{len(theirs)} turns with calls instead of {len(mine)}")
    elif any(abs(a - b) > config.call_slack_per_turn for a, b in zip(mine, theirs, strict=False)):
        found.append(f"calls per turn {theirs} instead of {mine}")
    if abs(seed.num_calls - variant.num_calls) > config.call_slack:
        found.append(f"{variant.num_calls} calls instead of {seed.num_calls}")
    if abs(seed.depth - variant.depth) > config.depth_slack:
        found.append(f"depth {variant.depth} instead of {seed.depth}")
    if seed.num_cross_turn_edges and not variant.num_cross_turn_edges:
        found.append("no value or state passes from turn to turn")
    shares = [p.num_writes / max(1, p.num_calls) for p in (seed, variant)]
    if abs(shares[0] - shares[1]) > config.write_slack_frac:
        found.append(f"{shares[1]:.2f} of the calls change state instead of {shares[0]:.2f}")
    return tuple(found)


def compared(seed: Profile, variant: Profile, config: SynthesisConfig) -> Failure | None:
    """The profile guard: the differences as one failure, or ``None``."""
    found = differences(seed, variant, config)
    return Failure(SynthesisFailure.GUARD_PROFILE, "; ".join(found)) if found else None
