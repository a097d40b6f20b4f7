"""Runs one signal of the workshop environment against the playing server over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp.test_utils import TestServer

from benchmarks.playing_server import Player, PlayingServer
from environments.registry import load_tasks
from schemas.events import BoundaryDetected, Category, Event, SynthesisFailed, Task, TaskSynthesized
from synthesizer.backends import backend_named
from synthesizer.book import TaskBook
from synthesizer.config import ModelConfig, SynthesisConfig
from synthesizer.pipeline import outcome_of
from tests.synthesizer.building import seeded, signal_for

WORKSHOP = {task.category: task for task in load_tasks("train", "workshop") if task.task_id.endswith("_0")}
BASE = WORKSHOP[Category.BASE]


def settings(url: str = "", llm: Mapping[str, Any] | None = None, **fields: Any) -> SynthesisConfig:
    """Settings for a model at an address; no waits between repetitions."""
    model = {
        "base_url": url or "http://127.0.0.1:1/v1",
        "retry_wait_s": 0.0,
        "request_timeout_s": 5.0,
        "server_patience_s": 0.0,
        **(llm or {}),
    }
    return SynthesisConfig(**{"backend": "llm", "llm": ModelConfig(**model), **fields})


@dataclass
class Played:
    """What one signal came to.

    Attributes:
        events: All its events; the last is the terminal one.
        player: What was asked.
        server: The server.
        told: Stages and completions as they came.
    """

    events: list[Event]
    player: Player
    server: PlayingServer
    signal: BoundaryDetected
    seed: Task
    config: SynthesisConfig
    told: list[object] = field(default_factory=list)

    @property
    def end(self) -> TaskSynthesized | SynthesisFailed:
        """The terminal event."""
        return self.events[-1]

    def roles(self, attempt: int = 0) -> list[str]:
        """Who was asked in one attempt."""
        return [item.role for item in self.end.completions if item.attempt == attempt]

    def stage(self, name: str) -> list[tuple[bool, str]]:
        """(passed, detail) of every stage of that name."""
        return [(item.passed, item.detail) for item in self.end.stages if item.stage == name]


def play(
    seed: Task = BASE,
    player: Player | None = None,
    book: TaskBook | None = None,
    llm: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Played:
    """Answer one signal for a seed; ``fields`` are settings of the synthesis, ``llm`` of the model."""
    return asyncio.run(_play(seed, player or Player(), book, llm, fields))


async def _play(
    seed: Task, player: Player, book: TaskBook | None, llm: Mapping[str, Any] | None, fields: Mapping[str, Any]
) -> Played:
    playing = PlayingServer(player)
    async with TestServer(playing.app) as server:
        config = settings(str(server.make_url("/v1")), llm, **fields)
        if book is None:
            book = TaskBook()
            book.fold([seeded(seed)])
        backend, signal, told = backend_named(config, {"KEY": "sesame"}), signal_for(seed), []
        try:
            events = await outcome_of(signal, seed, book, backend, config, told.append)
        finally:
            await backend.close()
    return Played(events, player, playing, signal, seed, config, told)
