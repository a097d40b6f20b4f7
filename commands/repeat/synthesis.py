"""The synthesizer's part of ``rods replay``: every outcome again, a model's answers taken from the record."""

from __future__ import annotations

import asyncio

from rich.progress import Progress

from analysis.index import RunIndex
from analysis.replay import Divergence, compare, unrepeated
from commands.repeat.report import Report
from commands.repeat.source import ReplaySource
from environments.registry import load_tasks
from schemas.events import BoundaryDetected, TaskSeeded
from synthesizer.backends import backend_named
from synthesizer.book import TaskBook
from synthesizer.llm.recorded import RecordedModel, ReplayDiverged
from synthesizer.replay import replayed


def synthesis(source: ReplaySource, report: Report, progress: Progress) -> None:
    """Rejected candidates and outcomes of every answered signal; those of a fork's shared past are its parent's.

    A backend that answers one signal after the other knew the outcomes of the signals before. Others work on several at
    once; there the outcomes that came into the log before count as known.
    """
    run, config = source.run, source.config.synthesis
    is_sequential = backend_named(config, model=RecordedModel(())).is_sequential
    signals = answered(run, is_sequential)
    ours = [signal for signal in signals if run.parent_at(signal.step) is None]
    task = progress.add_task("synthesis", total=len(ours))
    if not ours:
        report.skip("synthesis", "no signal was answered")
        return
    if not is_sequential and not any(run.outcomes[signal.signal_id][0].completions for signal in ours):
        report.skip("synthesis", "what the model answered was not recorded")
        return
    book = TaskBook(task for split in ("val", "test") for task in load_tasks(split, source.config.tasks.environment))
    book.fold(event for event in run.tasks.values() if isinstance(event, TaskSeeded))
    difference = None
    for signal in signals:
        ended = run.outcomes[signal.signal_id][0]
        if run.parent_at(signal.step) is None:
            difference = outcome_divergence(run, signal, book, source)
            progress.advance(task)
        if difference is not None:
            break
        book.fold([ended])
    report.set("synthesis", difference, len(ours))


def answered(run: RunIndex, is_sequential: bool) -> list[BoundaryDetected]:
    """Signals that have an outcome, in the order in which the outcomes were known."""
    placed = [(run.scanned[signal.event_id].record.offset, signal) for signal in run.pool.signals.values()]
    ordered = [signal for _, signal in sorted(placed, key=lambda pair: pair[0]) if signal.signal_id in run.outcomes]
    if is_sequential:
        return ordered
    ends = {signal.signal_id: run.scanned[run.outcomes[signal.signal_id][0].event_id].record for signal in ordered}
    return sorted(ordered, key=lambda signal: ends[signal.signal_id].timestamp_ms)


def outcome_divergence(
    run: RunIndex, signal: BoundaryDetected, book: TaskBook, source: ReplaySource
) -> Divergence | None:
    """The first difference between what answered a signal and what the recorded answers of the model lead to."""
    ended = run.outcomes[signal.signal_id][0]
    where = run.scanned[ended.event_id].where
    if signal.task_id not in book.tasks:
        return Divergence(where, f"seed {signal.task_id} of signal {signal.signal_id}", "-", "not in the log")
    try:
        seed = book.tasks[signal.task_id]
        again = asyncio.run(replayed(signal, seed, ended, book, source.config.synthesis))
    except ReplayDiverged as error:
        return Divergence(where, f"question of signal {signal.signal_id}", "as recorded", str(error), signal.event_id)
    for event in again:
        if (difference := compare(event, run.scanned)) is not None:
            return difference
    made = {event.event_id for event in again}
    recorded = [*run.rejected.get(signal.signal_id, ()), ended]
    missing = (run.scanned[event.event_id] for event in recorded if event.event_id not in made)
    return next((unrepeated(item, "never made") for item in missing), None)
