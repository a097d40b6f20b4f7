"""The fourth verdict of a replay: outcomes of a synthesis again, from what the model answered then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.progress import Progress

from analysis.index import LogIndex
from commands.config import RunConfig
from commands.repeat.report import PARTS, Report
from commands.repeat.source import ReplaySource
from commands.repeat.synthesis import synthesis
from schemas import Event, event_id
from schemas.events import Category, SynthesisFailed
from streams.archive.scan import scan_log, scanned
from streams.log.port import MemoryLog
from synthesizer.config import SynthesisConfig
from tests.streams.building import RUN, run_started
from tests.streams.recorded import PARTITIONS
from tests.synthesizer.building import SEEDS, seeded
from tests.synthesizer.playing import WORKSHOP, Played, Player, play

NO = {"reason": "-", "verdict": "reject", "fail_reason": "Turn 0 sounds odd."}


@pytest.fixture(scope="module")
def refused() -> Played:
    """A signal whose candidates a judge refused."""
    return play(WORKSHOP[Category.MISS_FUNC], Player(replaced={"judge": NO}), max_attempts=2)


def repeated(config: SynthesisConfig, events: Sequence[Event], **started: object) -> Report:
    """What a replay of the synthesis of some events finds."""
    log = MemoryLog(PARTITIONS)
    log.append([replace(run_started(), **started), *events])
    index = LogIndex(whole=True).add_records(map(scanned, scan_log(log, PARTITIONS)))
    report = Report(PARTS[-1:])
    synthesis(ReplaySource(None, index, index.run(RUN), RunConfig(synthesis=config), None, None), report, Progress())
    return report


def of_played(played: Played, **end: object) -> Report:
    """The same with fields of the terminal event changed."""
    events = [*played.events[:-1], replace(played.end, **end)]
    return repeated(played.config, [seeded(played.seed), played.signal, *events])


def test_outcomes_of_a_model_are_equal_without_the_model(refused: Played) -> None:
    report = of_played(refused)
    assert report.verdicts["synthesis"] == "equal" and report.is_equal and report.counts == {"synthesis": 1}
    assert isinstance(refused.end, SynthesisFailed) and len(refused.events) == 3


def test_outcomes_of_a_program_are_equal_in_the_order_of_their_signals() -> None:
    first, second = (play(SEEDS[f"multi_turn_base_{n}"], backend="scripted") for n in (130, 156))
    said = [event for one in (first, second) for event in (seeded(one.seed), one.signal, *one.events)]
    assert repeated(first.config, said).counts == {"synthesis": 2}
    assert repeated(first.config, said).is_equal


def test_another_outcome_another_answer_and_a_lost_candidate_are_named(refused: Played) -> None:
    other = of_played(refused, detail="nobody knows")
    assert "field detail" in other.divergence["synthesis"].what and not other.is_equal
    silent = of_played(refused, completions=refused.end.completions[1:])
    assert "question 0 was asked of" in silent.divergence["synthesis"].repeated
    rejected = refused.events[0]
    third = replace(rejected, attempt=2, event_id=event_id(RUN, "VariantRejected", rejected.signal_id, 2))
    said = [seeded(refused.seed), refused.signal, *refused.events[:-1], third, refused.end]
    more = repeated(refused.config, said)
    assert third.event_id in more.divergence["synthesis"].what
    assert more.divergence["synthesis"].repeated == "never made"


def test_what_cannot_be_repeated_is_skipped_with_the_reason_and_is_no_difference(refused: Played) -> None:
    unrecorded = of_played(refused, completions=())
    assert unrecorded.verdicts["synthesis"] == "skipped" and unrecorded.is_equal
    assert unrecorded.notes["synthesis"] == "what the model answered was not recorded"
    assert (
        repeated(refused.config, [seeded(refused.seed), refused.signal]).notes["synthesis"] == "no signal was answered"
    )


def test_outcomes_of_a_shared_past_are_left_to_the_parent(refused: Played) -> None:
    said = [seeded(refused.seed), refused.signal, *refused.events[:-1], replace(refused.end, detail="other settings")]
    report = repeated(refused.config, said, parent_run_id="parent", forked_at_step=refused.signal.step)
    assert report.notes["synthesis"] == "no signal was answered" and report.is_equal
