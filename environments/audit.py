"""Is a task fit to train or judge a policy? Replays every ground truth and reports what cannot be right.

A fault makes a turn unpassable or unfair for an honest policy, or leaks a held-out task into training. A note is worth a
look: many are harmless (a date spelled otherwise, an amount to be computed).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from environments.execution import Refusal, admit, run_call, started
from environments.interface import EXECUTION_ERROR_PREFIX, Environment, State, ToolSchema
from environments.values import leaves, normal, numbers_in, read_result
from schemas.events import Call, Category, Task

MIN_TEXT_WORDS = 4


class Kind(StrEnum):
    """What was found."""

    FAILING_CALL = "failing_call"
    ERROR_RESULT = "error_result"
    TURN_COUNT = "turn_count"
    UNKNOWN_FUNCTION = "unknown_function"
    WITHHELD_FUNCTION_USED = "withheld_function_used"
    WITHHELD_FUNCTION_UNUSED = "withheld_function_unused"
    SCHEMA_BROKEN = "schema_broken"
    UNDERIVABLE_TEXT = "underivable_text"
    UNSCORED_TEXT = "unscored_text"
    UNSEEN_VALUE = "unseen_value"
    UNEXPECTED_EMPTY_TURN = "unexpected_empty_turn"
    CONFIG_CROSSES_SPLIT = "config_crosses_split"


FAULTS = frozenset(
    {
        Kind.FAILING_CALL,
        Kind.TURN_COUNT,
        Kind.UNKNOWN_FUNCTION,
        Kind.WITHHELD_FUNCTION_USED,
        Kind.SCHEMA_BROKEN,
        Kind.UNDERIVABLE_TEXT,
        Kind.CONFIG_CROSSES_SPLIT,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at.

    Attributes:
        task_id: The task.
        turn: 0-based turn; -1 for the task as a whole.
        kind: What was found.
        function: Function concerned, or empty.
        detail: In words, with the value.
    """

    task_id: str
    turn: int
    kind: Kind
    function: str
    detail: str

    @property
    def is_fault(self) -> bool:
        """Whether it makes the task unfit, as opposed to worth a look."""
        return self.kind in FAULTS


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Findings in task order, and how many tasks were looked at."""

    num_tasks: int
    findings: tuple[Finding, ...]

    @property
    def num_faulty_tasks(self) -> int:
        """Tasks with at least one fault."""
        return len({finding.task_id for finding in self.findings if finding.is_fault})

    def counts(self) -> dict[str, int]:
        """Findings by kind, every kind present."""
        found = Counter(finding.kind for finding in self.findings)
        return {kind.value: found[kind] for kind in Kind}


def audit(environment: Environment, tasks: Sequence[Task], held_out_ids: frozenset[str] = frozenset()) -> AuditReport:
    """Look at tasks one by one, then at what they share.

    Args:
        environment: where their ground truth runs.
        tasks: all tasks, training and held out.
        held_out_ids: ids of the held-out ones; empty to skip the check for shared configurations.
    """
    findings = [finding for task in tasks for finding in audit_task(environment, task)]
    findings.extend(shared_configurations(tasks, held_out_ids))
    return AuditReport(len(tasks), tuple(findings))


def audit_task(environment: Environment, task: Task) -> list[Finding]:
    """All findings of one task, in turn order."""
    tools = environment.tools(task)
    findings = list(_structure(task, tools))
    seen = Seen.of(task, tools)
    state = started(environment, task)
    withheld = set(task.withheld_functions)
    for index, turn in enumerate(task.turns):
        withheld.difference_update(turn.restored_functions)
        seen.add_text(turn.user_text)
        for call in turn.ground_truth:
            findings.extend(_fit(task, index, call, tools, withheld))
            findings.extend(_derivable(environment, state, task, index, call, seen))
            result = run_call(environment, state, call)
            findings.extend(_outcome(task, index, call, result))
            seen.add_text(result)
    return findings


def _structure(task: Task, tools: Mapping[str, ToolSchema]) -> Iterable[Finding]:
    if not task.turns:
        yield Finding(task.task_id, -1, Kind.TURN_COUNT, "", "the task has no turns")
    restored = Counter(name for turn in task.turns for name in turn.restored_functions)
    for name in task.withheld_functions:
        if restored[name] != 1:
            detail = f"withheld once but restored {restored[name]} times"
            yield Finding(task.task_id, -1, Kind.TURN_COUNT, name, detail)
        if name not in tools:
            yield Finding(task.task_id, -1, Kind.UNKNOWN_FUNCTION, name, "withheld but not a tool of the task")
    empty = [index for index, turn in enumerate(task.turns) if not turn.ground_truth]
    expected = 1 if task.category in (Category.MISS_FUNC, Category.MISS_PARAM) else 0
    for index in empty[expected:]:
        detail = f"no call is right here, which {task.category.value} does not imply"
        yield Finding(task.task_id, index, Kind.UNEXPECTED_EMPTY_TURN, "", detail)
    for index, turn in enumerate(task.turns):
        used = {call.name for call in turn.ground_truth}
        for name in turn.restored_functions:
            if name not in used:
                detail = "restored here but not used by this turn's ground truth"
                yield Finding(task.task_id, index, Kind.WITHHELD_FUNCTION_UNUSED, name, detail)


def _fit(task: Task, turn: int, call: Call, tools: Mapping[str, ToolSchema], withheld: set[str]) -> Iterable[Finding]:
    if call.name not in tools:
        detail = f"not a function of {', '.join(task.involved_classes)}"
        yield Finding(task.task_id, turn, Kind.UNKNOWN_FUNCTION, call.name, detail)
        return
    if call.name in withheld:
        detail = "the ground truth calls a function that is withheld in this turn"
        yield Finding(task.task_id, turn, Kind.WITHHELD_FUNCTION_USED, call.name, detail)
    admitted = admit(call, tools)
    if isinstance(admitted, Refusal):
        yield Finding(task.task_id, turn, Kind.SCHEMA_BROKEN, call.name, admitted.reason)


def _outcome(task: Task, turn: int, call: Call, result: str) -> Iterable[Finding]:
    if result.startswith(EXECUTION_ERROR_PREFIX):
        yield Finding(task.task_id, turn, Kind.FAILING_CALL, call.name, result)
        return
    value = read_result(result)
    if isinstance(value, Mapping) and "error" in value:
        yield Finding(task.task_id, turn, Kind.ERROR_RESULT, call.name, str(value["error"]))


@dataclass(slots=True)
class Seen:
    """Everything an honest policy could have read so far: texts, results, and what the tool schemas say."""

    words: list[str]
    numbers: set[float]

    @classmethod
    def of(cls, task: Task, tools: Mapping[str, ToolSchema]) -> Seen:
        """What is known before the first turn. The configuration counts: its values can be looked up by calls."""
        seen = cls([], set())
        seen.add_text(task.initial_config_json)
        seen.add_text(json.dumps([[tool.description, tool.parameters] for tool in tools.values()], default=dict))
        return seen

    def add_text(self, text: str) -> None:
        """Remember a text, its words and its numbers; escapes are read first."""
        values = read_result(text)
        texts = [text] if isinstance(values, str) else [str(value) for _, value in leaves(values)] + [_keys(values)]
        for each in texts:
            self.words.append(normal(each))
            self.numbers.update(numbers_in(each))

    def has_text(self, text: str) -> bool:
        """Whether the words of a text stand somewhere one after the other."""
        wanted = normal(text)
        return any(wanted in each for each in self.words)

    def has_number(self, number: float) -> bool:
        """Whether a number was written somewhere, by value."""
        return float(number) in self.numbers


def _keys(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join([*map(str, value), *(_keys(item) for item in value.values())])
    return " ".join(_keys(item) for item in value) if isinstance(value, list) else ""


def _derivable(
    environment: Environment, state: State, task: Task, turn: int, call: Call, seen: Seen
) -> Iterable[Finding]:
    """Argument values that nothing so far has shown; prose only counts as a fault where its wording is scored."""
    for path, value in leaves(json.loads(call.arguments_json)):
        if value is None or isinstance(value, bool) or value == "":
            continue
        if seen.has_text(value) if isinstance(value, str) else seen.has_number(value):
            continue
        kind = Kind.UNSEEN_VALUE
        if isinstance(value, str) and len(normal(value).split()) >= MIN_TEXT_WORDS:
            kind = Kind.UNDERIVABLE_TEXT if _is_scored(environment, state, call, value) else Kind.UNSCORED_TEXT
        detail = f"{path} = {json.dumps(value)} is in no user text, no earlier result and no configuration"
        yield Finding(task.task_id, turn, kind, call.name, detail)


def _is_scored(environment: Environment, state: State, call: Call, text: str) -> bool:
    """Whether other words in the place of this text would change the result or the public state."""
    reworded = replace(
        call, arguments_json=call.arguments_json.replace(json.dumps(text, ensure_ascii=False), '"other"')
    )
    before = environment.snapshot(state)
    outcomes = []
    for each in (call, reworded):
        copy = environment.restore(before)
        outcomes.append((run_call(environment, copy, each), environment.digest(copy)))
    return outcomes[0] != outcomes[1]


def shared_configurations(tasks: Sequence[Task], held_out_ids: frozenset[str]) -> list[Finding]:
    """Held-out tasks that start from exactly the configuration of another seed in training."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(_config_digest(task), []).append(task)
    findings = []
    for group in groups.values():
        training = [task for task in group if task.task_id not in held_out_ids]
        for task in group:
            if task.task_id in held_out_ids and training:
                names = ", ".join(each.task_id for each in training)
                detail = f"starts from the same configuration as training task {names}"
                findings.append(Finding(task.task_id, -1, Kind.CONFIG_CROSSES_SPLIT, "", detail))
    return findings


def _config_digest(task: Task) -> str:
    text = json.dumps([task.category.value, json.loads(task.initial_config_json)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
