"""The scripted synthesizer: variants of a task without a model."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TypeVar

from environments.registry import environment as environment_named
from schemas.events import Task
from synthesizer.backend import Attempt, Draft, Seed
from synthesizer.book import TaskBook
from synthesizer.config import SynthesisConfig
from synthesizer.guards import fingerprint
from synthesizer.pipeline import attempted, draw_seed
from synthesizer.scripted.backend import ScriptedBackend

__all__ = ["ScriptedBackend", "at_once", "variants"]
T = TypeVar("T")


def at_once(coroutine: Coroutine[object, object, T]) -> T:
    """The result of a coroutine that waits for nothing, with or without a running loop.

    Raises:
        RuntimeError: it waits for something.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("this backend waits for something: use asyncio")


def variants(task: Task, num: int, seed: int, config: SynthesisConfig | None = None) -> list[Task]:
    """Up to ``num`` different variants of a task that pass every gate and guard; fewer if the task does not give them.

    Args:
        task: the seed; its generation counts as 0.
        num: wanted number.
        seed: drives all draws; equal arguments give equal variants.
        config: settings; defaults if not given.
    """
    config = config or SynthesisConfig()
    environment = environment_named(task.environment)
    backend = ScriptedBackend()
    book = TaskBook()
    found: list[Task] = []
    for index in range(num):
        signal_id = f"{task.task_id}:{seed}:{index}"
        source = Seed(task, task.task_id, 0, signal_id)
        for number in range(config.max_attempts):
            attempt = Attempt(number, draw_seed(signal_id, number))
            draft = at_once(attempted(environment, source, attempt, book, backend, config))
            if isinstance(draft, Draft):
                found.append(draft.task)
                book.fingerprints[fingerprint(draft.task)] = draft.task.task_id
                break
    return found
