"""The recovery scheme the method's authors describe, in its most favourable form, for the same events.

Generator and trainer share files under a lock: ``expanded_epoch_<n>.jsonl`` are append-only, ``tracker.json`` caches the state
of the prompt tracker (reward history, cooldown, dispatch state); on restart both are read again and the state is rebuilt.

In its favour: files stay open, nothing is synced to disk unless asked, the cache is written once an epoch and holds the last
observations only, and a torn last line is not looked for.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

KEPT = 20
"""Observations a prompt keeps in the cache."""
ALPHA_LOW, ALPHA_HIGH = 0.20, 0.85


@dataclass(slots=True)
class Tracker:
    """Reward history and dispatch state by prompt."""

    history: dict[str, list[tuple[int, float, float, str]]] = field(default_factory=dict)
    last_signal: dict[str, int] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    ended: set[tuple[int, str]] = field(default_factory=set)
    batches: dict[int, dict] = field(default_factory=dict)
    epochs: dict[int, dict] = field(default_factory=dict)
    tasks: dict[str, dict] = field(default_factory=dict)
    done_steps: set[int] = field(default_factory=set)

    def absorb(self, kind: str, values: dict) -> None:
        """Take one line in."""
        if kind == "RolloutGroupCompleted":
            self._observe(values)
        elif kind == "StepCompleted":
            self.done_steps.add(values["step"])
        elif kind == "BatchPlanned":
            self.batches[values["step"]] = values
        elif kind == "EpochPlanned":
            self.epochs[values["epoch"]] = values
        elif kind == "TaskSeeded":
            self.tasks[values["task"]["task_id"]] = values
        elif kind == "BoundaryDetected":
            self.last_signal[values["task_id"]] = values["step"]
            self.pending[values["signal_id"]] = values["task_id"]
        elif kind == "SynthesisFailed":
            self.pending.pop(values["signal_id"], None)

    def _observe(self, values: dict) -> None:
        place = (values["step"], values["task_id"])
        if place in self.ended:
            return
        self.ended.add(place)
        rewards = [r for r in values["rewards"] if r is not None]
        mean = math.fsum(rewards) / len(rewards)
        variance = math.fsum([(r - mean) ** 2 for r in rewards]) / len(rewards)
        zone = "hard" if mean < ALPHA_LOW else "mastered" if mean > ALPHA_HIGH else "boundary"
        self.history.setdefault(values["task_id"], []).append((values["step"], mean, variance, zone))

    def cached(self) -> dict:
        """What ``tracker.json`` holds."""
        return {
            "history": {task_id: seen[-KEPT:] for task_id, seen in self.history.items()},
            "last_signal": self.last_signal,
            "pending": self.pending,
        }


class JsonlScheme:
    """The writer: every event is one line under the lock.

    Args:
        root: folder of the shared files.
        sync: whether each line is synced to disk.
    """

    def __init__(self, root: Path, sync: bool = False) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._sync = sync
        self._lock = (root / ".lock").open("w")
        self._epoch = -1
        self._file: IO[str] | None = None
        self.tracker = Tracker()

    def append(self, kind: str, values: dict) -> None:
        """Write one line, then take it in."""
        with self._locked():
            if self._file is None or kind == "EpochPlanned":
                self._next_epoch()
            self._file.write(json.dumps({"event": kind, **values}) + "\n")
            self._file.flush()
            if self._sync:
                os.fsync(self._file.fileno())
        self.tracker.absorb(kind, values)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _next_epoch(self) -> None:
        """Open the next file and write the cache: to a temporary file, then renamed."""
        if self._file is not None:
            self._file.close()
        self._epoch += 1
        self._file = (self._root / f"expanded_epoch_{self._epoch:06d}.jsonl").open("a")
        part = self._root / "tracker.json.part"
        part.write_text(json.dumps(self.tracker.cached()))
        part.replace(self._root / "tracker.json")

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()
        self._lock.close()


def recovered(root: Path, parse: Callable[[str | bytes], dict] = json.loads) -> Tracker:
    """What a restart does: read the cache, then every line of every file again.

    Args:
        root: the folder.
        parse: reads one line.
    """
    parse((root / "tracker.json").read_bytes())
    tracker = Tracker()
    for path in sorted(root.glob("expanded_epoch_*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                values = parse(line)
                tracker.absorb(values["event"], values)
    return tracker
