"""A synthesis again from its own terminal event: no model, the same events."""

from __future__ import annotations

from schemas.events import BoundaryDetected, Event, SynthesisFailed, Task, TaskSynthesized
from synthesizer.backends import backend_named
from synthesizer.book import TaskBook
from synthesizer.config import SynthesisConfig
from synthesizer.llm.recorded import RecordedModel
from synthesizer.pipeline import outcome_of


async def replayed(
    signal: BoundaryDetected,
    seed: Task,
    terminal: TaskSynthesized | SynthesisFailed,
    book: TaskBook,
    config: SynthesisConfig,
) -> list[Event]:
    """The events that the recorded answers lead to.

    Args:
        signal: the signal.
        seed: its task.
        terminal: its terminal event, with every completion.
        book: the run as it was known then.
        config: the run's settings.

    Raises:
        synthesizer.llm.recorded.ReplayDiverged: the synthesis asks something else than it did.
    """
    backend = backend_named(config, model=RecordedModel(terminal.completions))
    return await outcome_of(signal, seed, book, backend, config)
