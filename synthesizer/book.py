"""What the synthesizer knows of a run: a pure fold of events. Hearing an event twice changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.events import BoundaryDetected, Event, SynthesisFailed, Task, TaskSeeded, TaskSynthesized
from synthesizer.guards import config_digest, fingerprint, ground_truth_digest


class TaskBook:
    """Tasks by id, fingerprints, and which signals are open or answered.

    Args:
        held_out: tasks that no variant may repeat (evaluation tasks).
    """

    def __init__(self, held_out: Iterable[Task] = ()) -> None:
        self.held_out_configs: dict[str, str] = {}
        self.held_out_truths: dict[str, str] = {}
        for task in held_out:
            self.held_out_configs.setdefault(config_digest(task), task.task_id)
            self.held_out_truths.setdefault(ground_truth_digest(task), task.task_id)
        self.tasks: dict[str, Task] = {}
        self.roots: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.fingerprints: dict[str, str] = {}
        self._families: dict[str, list[str]] = {}
        self._open: dict[str, BoundaryDetected] = {}
        self._answered: set[str] = set()

    def fold(self, events: Iterable[Event]) -> None:
        """Take in events in log order; types that do not matter here are passed over."""
        for event in events:
            match event:
                case TaskSeeded():
                    self.know(event.task)
                case TaskSynthesized():
                    self._add(event.task, event.root_task_id, event.generation)
                    self._close(event.signal_id)
                case SynthesisFailed():
                    self._close(event.signal_id)
                case BoundaryDetected() if event.signal_id not in self._answered:
                    self._open.setdefault(event.signal_id, event)

    def _close(self, signal_id: str) -> None:
        self._answered.add(signal_id)
        self._open.pop(signal_id, None)

    def know(self, task: Task) -> None:
        """Take in a human task without its event."""
        self._add(task, task.task_id, 0)

    def _add(self, task: Task, root: str, generation: int) -> None:
        if task.task_id in self.tasks:
            return
        self.tasks[task.task_id] = task
        self.roots[task.task_id] = root
        self.generations[task.task_id] = generation
        self.fingerprints.setdefault(fingerprint(task), task.task_id)
        self._families.setdefault(root, []).append(task.task_id)

    def family(self, root: str) -> tuple[Task, ...]:
        """Every known task with this human ancestor, itself included, in log order."""
        return tuple(self.tasks[task_id] for task_id in self._families.get(root, ()))

    def is_answered(self, signal_id: str) -> bool:
        """Whether the signal's terminal event is known."""
        return signal_id in self._answered

    @property
    def num_answered(self) -> int:
        """Signals whose terminal event is known."""
        return len(self._answered)

    def open_signals(self) -> tuple[BoundaryDetected, ...]:
        """Signals without a terminal event whose seed is known, in log order."""
        return tuple(signal for signal in self._open.values() if signal.task_id in self.tasks)

    def waiting_signals(self) -> tuple[BoundaryDetected, ...]:
        """Signals without a terminal event whose seed has not been heard of yet, in log order."""
        return tuple(signal for signal in self._open.values() if signal.task_id not in self.tasks)
