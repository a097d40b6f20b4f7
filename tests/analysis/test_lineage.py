"""Lineage: the chain of a task, a rollout, a signal and a step, from human seed to retirement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from analysis.index import RunIndex
from analysis.lineage import Link, UnknownId, lineage
from schemas import Event, make
from schemas.events import (
    BoundaryDetected,
    Completion,
    DropReason,
    RolloutsDropped,
    SynthesisFailed,
    SynthesisFailure,
    SynthesisStage,
    TaskRetired,
    TaskSynthesized,
    TrajectoryRecorded,
    VariantRejected,
)
from tests.streams.building import RUN, group, task
from tests.streams.recorded import run_log


@pytest.fixture(scope="module")
def said() -> list[Event]:
    return run_log()[1]


@pytest.fixture(scope="module")
def run(said: list[Event]) -> RunIndex:
    return RunIndex(whole=True).add(said)


def walk(link: Link) -> Iterator[Link]:
    yield link
    for cause in link.causes:
        yield from walk(cause)


def kinds(link: Link) -> list[str]:
    return [cause.kind for cause in link.causes]


def test_a_retired_task_has_its_whole_chain_in_order(said: list[Event], run: RunIndex) -> None:
    retired = next(e for e in said if isinstance(e, TaskRetired))
    made = next(e for e in said if isinstance(e, TaskSynthesized) and e.task.task_id == retired.task_id)
    signal = next(e for e in said if isinstance(e, BoundaryDetected) and e.signal_id == made.signal_id)
    link = lineage(run, retired.task_id)
    assert kinds(link)[:4] == ["seed", "signal", "outcome", "injection"] and kinds(link)[-1] == "retirement"
    assert set(kinds(link)[4:-1]) == {"group"} and len(kinds(link)) == 5 + retired.num_observations
    seed, told, ended, entered = link.causes[:4]
    assert seed.id == made.parent_task_id and told.id == signal.signal_id and ended.id == made.event_id
    assert told.facts["mean"] == signal.evidence.mean and told.causes[0].id == signal.caused_by
    assert entered.facts["epoch"] == run.pool.injected[retired.task_id]
    assert [cause.kind for cause in link.causes[4].causes] == ["step"]
    assert link.causes[-1].facts["reason"] == retired.reason.value


def test_a_second_generation_goes_back_through_its_parent_to_the_human_seed(said: list[Event], run: RunIndex) -> None:
    deep = next(e for e in said if isinstance(e, TaskSynthesized) and e.generation == 2)
    parent = lineage(run, deep.task.task_id).causes[0]
    assert parent.id == deep.parent_task_id and kinds(parent) == ["seed", "signal", "outcome"]
    assert parent.causes[0].id == deep.root_task_id and parent.causes[0].causes == ()
    assert "human" in parent.causes[0].says


def test_a_rollout_leads_to_its_messages_group_task_and_step(said: list[Event], run: RunIndex) -> None:
    body = next(e for e in said if isinstance(e, TrajectoryRecorded) and "~" in e.task_id)
    link = lineage(run, body.trajectory_id)
    assert kinds(link) == ["message", "group"] and link.facts["reward"] == body.reward
    assert link.causes[0].facts["text"] == body.messages[0].text
    assert link.causes[1].id == body.group_id and {"task", "step"} <= set(kinds(link.causes[1]))
    without_body = RunIndex(whole=True).add(e for e in said if not isinstance(e, TrajectoryRecorded))
    assert kinds(lineage(without_body, body.trajectory_id)) == ["group"]


def test_a_signal_shows_its_outcome_and_what_became_of_the_variant(said: list[Event], run: RunIndex) -> None:
    entered = next(t for t in run.pool.injected)
    signal = next(e for e in said if isinstance(e, TaskSynthesized) and e.task.task_id == entered).signal_id
    assert kinds(lineage(run, signal))[:4] == ["seed", "group", "outcome", "injection"]
    failed = next(e for e in said if isinstance(e, SynthesisFailed))
    link = lineage(run, failed.signal_id)
    assert kinds(link)[-1] == "outcome" and "vm_exec_failed" in link.causes[-1].says


def test_a_step_lists_its_plan_and_every_task_of_its_batch(run: RunIndex) -> None:
    link = lineage(run, "step:4")
    assert kinds(link)[0] == "batch" and [c.id for c in link.causes[1:]] == list(run.pool.batches[4].task_ids)
    assert link.facts["weights_digest"] == "w4" and lineage(run, "batch:4") == link
    assert lineage(run, run.pool.batches[4].event_id) == link == lineage(run, run.steps[4].event_id)
    assert link.causes[0].id == run.pool.batches[4].event_id
    assert all("group" in kinds(cause) for cause in link.causes[1:])


def test_stages_questions_and_refused_candidates_are_part_of_the_chain(said: list[Event]) -> None:
    made = next(e for e in said if isinstance(e, TaskSynthesized))
    asked = Completion(attempt=0, role="planner", model="m", prompt_hash="h", prompt="[]", text="a plan")
    told = replace(made, stages=(SynthesisStage(attempt=0, stage="plan", passed=True),), completions=(asked,))
    refused = make(
        VariantRejected,
        RUN,
        signal_id=made.signal_id,
        attempt=0,
        candidate=task("x"),
        failure=SynthesisFailure.GATE_COMPLEXITY,
        detail="too short",
    )
    run = RunIndex(whole=True).add([told if e is made else e for e in said] + [refused])
    link = lineage(run, made.task.task_id)
    assert kinds(link)[:4] == ["seed", "signal", "rejection", "outcome"]
    outcome = link.causes[3]
    assert kinds(outcome) == ["stage", "completion"] and outcome.causes[1].facts["text"] == "a plan"
    assert "gate_complexity" in link.causes[2].says


def test_a_group_that_was_left_out_of_its_update_says_so(said: list[Event]) -> None:
    left = next(e for e in said if hasattr(e, "trajectory_ids"))
    drop = make(
        RolloutsDropped,
        RUN,
        step=left.step,
        task_id=left.task_id,
        group_id=left.group_id,
        reason=DropReason.STALE,
        num_rollouts=4,
        policy_version=0,
        staleness=3,
    )
    link = lineage(RunIndex(whole=True).add([*said, drop]), left.group_id)
    assert "drop" in kinds(link) and "step" not in kinds(link)


def test_an_unknown_id_is_refused_with_what_can_be_asked(run: RunIndex) -> None:
    for wanted in ("nothing", "step:999", "step:x", ""):
        with pytest.raises(UnknownId, match="give the id of a task"):
            lineage(run, wanted)


def test_a_task_that_claims_to_be_its_own_parent_ends_the_chain() -> None:
    made = make(
        TaskSynthesized,
        RUN,
        signal_id="s",
        task=task("loop"),
        parent_task_id="loop",
        root_task_id="loop",
        generation=1,
        seed_step=1,
        seed_rank=0,
        backend="none",
        num_attempts=1,
        fingerprint="f",
    )
    link = lineage(RunIndex(whole=True).add([made, group("loop", 1, [None, None])]), "loop")
    assert link.causes[0].id == "loop" and link.causes[0].causes == ()
    assert any("no observation" in item.says for item in walk(link))


def test_hearing_events_twice_changes_nothing(said: list[Event], run: RunIndex) -> None:
    assert lineage(RunIndex(whole=True).add([*said, *said]), "step:3") == lineage(run, "step:3")
