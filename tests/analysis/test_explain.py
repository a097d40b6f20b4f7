"""Explanations: for every task and step of a run they say what the log says was decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.explain import UnknownMoment, explain
from analysis.index import LogIndex, RunIndex
from schemas import TOPICS, Event
from schemas.events import BatchPlanned, BoundaryDetected, EpochPlanned, TaskRetired, TaskSeeded, TaskSynthesized
from streams.archive.scan import scan_archive, scanned
from tests.streams.recorded import record_run

FACTS = [topic for topic in TOPICS if topic != "trajectories"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunIndex, list[Event]]:
    root: Path = tmp_path_factory.mktemp("explain")
    said = record_run(root)
    return LogIndex(whole=True).add_records(map(scanned, scan_archive(root, FACTS))).run("run-1"), said


def answers(run: tuple[RunIndex, list[Event]]) -> list[tuple]:
    """(task id, batch, seed, injected, retired) of every task at every step at which it was known."""
    tasks = [e.task.task_id for e in run[1] if isinstance(e, TaskSeeded | TaskSynthesized)]
    found = []
    for batch in (e for e in run[1] if isinstance(e, BatchPlanned)):
        for task_id in tasks:
            try:
                found.append((task_id, batch, *explain(run[0], task_id, batch.step)))
            except UnknownMoment:
                assert "~" in task_id
    return found


def test_every_answer_is_what_the_log_says(run: tuple[RunIndex, list[Event]]) -> None:
    signals = {(e.task_id, e.step) for e in run[1] if isinstance(e, BoundaryDetected)}
    injected = {task_id: e.epoch for e in run[1] if isinstance(e, EpochPlanned) for task_id in e.injected}
    retired = {e.task_id: e.epoch for e in run[1] if isinstance(e, TaskRetired)}
    seen = set()
    for task_id, batch, seed, entered, left in answers(run):
        decided = batch.epoch + batch.is_last_of_epoch
        assert seed.verdict == ((task_id, batch.step) in signals), (task_id, batch.step, seed)
        assert entered.verdict == (injected.get(task_id, 99) <= decided), (task_id, batch.step, entered)
        assert left.verdict == (retired.get(task_id, 99) <= decided), (task_id, batch.step, left)
        seen |= {("seed", seed.verdict), ("injected", entered.verdict), ("retired", left.verdict)}
    assert len(seen) == 6


def test_reasons_name_their_numbers(run: tuple[RunIndex, list[Event]]) -> None:
    said = [answer for _, _, *three in answers(run) for answer in three]
    texts = " | ".join(answer.because for answer in said)
    for reason in (
        "not in the batch",
        "is hard, outside of [0.2, 0.85]",
        "is mastered, outside of",
        "not among the best",
        "is rank 1 of",
        "is the last one planned for",
        "min(queue",
        "it waits as number",
        "injected into epoch",
        "human seeds are protected",
        "mastered",
        "burn_in",
        "who leaves is decided after the last step",
    ):
        assert reason in texts, reason
    chosen = next(answer for answer in said if answer.question == "seed" and answer.verdict)
    assert {"mean", "phi", "zone", "quota", "cooldown", "alpha_low", "alpha_high"} <= chosen.numbers.keys()


def test_an_unknown_step_or_task_is_refused_with_what_there_is(run: tuple[RunIndex, list[Event]]) -> None:
    with pytest.raises(UnknownMoment, match="steps 1 to 11"):
        explain(run[0], "run-1-seed-0", 99)
    with pytest.raises(UnknownMoment, match="not known when step 1"):
        explain(run[0], "nobody", 1)
