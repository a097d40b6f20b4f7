"""What an environment promises: tools from a task, isolated states, calls by table, a canonical public state.

Implement ``Environment`` to bring your own tools; ``docs/environments.md`` does it in 60 lines. Everything in this room
(episodes, scoring, audit) speaks only to this protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from schemas.events import Call, Task

State = Any
EXECUTION_ERROR_PREFIX = "Error during execution:"

CALL_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a tool may raise without ending the rollout: each becomes a result with ``EXECUTION_ERROR_PREFIX``."""


class EnvironmentUnavailable(RuntimeError):
    """An environment or its data cannot be loaded; the text says what to install or set."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """One callable function as it is offered to the policy.

    Attributes:
        name: Function name.
        description: What it does.
        parameters: JSON schema: ``{"type": "object", "properties": {...}, "required": [...]}``.
        owner: Tool class the function belongs to.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    owner: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A private copy of a state; in memory only. The durable form of a state is its task and its calls."""

    environment: str
    version: str
    state: State


@runtime_checkable
class Environment(Protocol):
    """Tools that act on a state. Every method is safe to call from several threads on different states."""

    name: str
    version: str

    def tools(self, task: Task) -> Mapping[str, ToolSchema]:
        """Every function of the task's classes in stable order, without the excluded ones."""

    def start(self, task: Task) -> State:
        """A fresh state that shares nothing mutable with any other state."""

    def call(self, state: State, call: Call) -> str:
        """Execute one schema-checked call and return its result text; a failure starts with the error prefix."""

    def public_state(self, state: State) -> object:
        """What scoring may compare, as JSON-able data in canonical form."""

    def digest(self, state: State) -> str:
        """SHA-256 of the public state as 64 hex digits; equal states have equal digests in every process."""

    def snapshot(self, state: State) -> Snapshot:
        """A copy that later calls on ``state`` do not touch."""

    def restore(self, snapshot: Snapshot) -> State:
        """A fresh state equal to the one the snapshot was taken of."""


@runtime_checkable
class TaskSource(Protocol):
    """An environment that brings its own tasks."""

    def tasks(self, split: str) -> tuple[Task, ...]:
        """Tasks of ``train``, ``val``, ``test`` or ``all`` in stable order."""


@runtime_checkable
class QuickCompare(Protocol):
    """Optional: compare public states without rendering them; must agree with ``digest``."""

    def mark(self, state: State, previous: object = None) -> object:
        """A copy of the public state that ``matches`` understands; may share equal parts with a previous mark."""

    def matches(self, state: State, mark: object) -> bool:
        """Whether the public state equals the marked one."""
