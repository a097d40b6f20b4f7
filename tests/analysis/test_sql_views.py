"""SQL over runs: the shipped views say what the pure functions say, over archives and exports alike."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from analysis.export import export_archive
from analysis.sql_views import SHIPPED, NoExport, described, needed_types, open_archive, open_export
from schemas import Event, make
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Completion,
    DropReason,
    EpochPlanned,
    RolloutGroupCompleted,
    RolloutsDropped,
    StepCompleted,
    SynthesisFailed,
    TaskSeeded,
    TaskSynthesized,
    TrajectoryRecorded,
)
from streams.archive.segments import ArchiveLog
from streams.pool.boundary import zone_variance
from streams.pool.pool import Pool, apply, initial
from tests.streams.building import RUN, group
from tests.streams.recorded import PARTITIONS, record_run

Database = duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, Path, list[Event]]:
    root = tmp_path_factory.mktemp("sql") / "archive"
    said = record_run(root)
    return open_archive(root, " ".join((*SHIPPED, "trajectory_recorded"))), root, said


def pool_of(said: list[Event]) -> Pool:
    pool = initial()
    for event in said:
        pool = apply(pool, event)
    return pool


def test_observations_are_those_of_the_pool_number_for_number(run: tuple[Database, Path, list[Event]]) -> None:
    pool = pool_of(run[2])
    rows = run[0].execute("SELECT task_id, step, num_valid, mean, variance, phi, zone FROM observations").fetchall()
    folded = {(task_id, e.step): e for task_id, seen in pool.observations.items() for e in seen}
    assert len(rows) == len(folded) > 30
    for task_id, step, num_valid, mean, variance, phi, zone in rows:
        evidence = folded[task_id, step]
        assert (num_valid, zone) == (evidence.num_valid, evidence.zone.value)
        assert all(
            math.isclose(a, b, abs_tol=1e-12)
            for a, b in ((mean, evidence.mean), (variance, evidence.variance), (phi, evidence.phi))
        )


def test_zone_variance_is_that_of_the_summary(run: tuple[Database, Path, list[Event]]) -> None:
    observed = [e for seen in pool_of(run[2]).observations.values() for e in seen]
    rows = dict(run[0].execute("SELECT zone, mean_variance FROM zone_variance").fetchall())
    expected = zone_variance(observed)
    assert rows.keys() == expected.keys() == {"hard", "boundary", "mastered"}
    assert all(math.isclose(rows[zone], value, abs_tol=1e-12) for zone, value in expected.items())


def test_the_pool_over_time_is_what_was_planned(run: tuple[Database, Path, list[Event]]) -> None:
    plans = [event for event in run[2] if isinstance(event, EpochPlanned)]
    rows = (
        run[0]
        .execute("SELECT epoch, num_human, num_generated, num_queued, num_injected, num_retired FROM pool_over_time")
        .fetchall()
    )
    assert rows == [
        (p.epoch, p.num_human, p.num_generated, p.num_queued, len(p.injected), len(p.retired)) for p in plans
    ]


def test_injected_tasks_have_their_first_reward_and_the_age_of_their_signal(
    run: tuple[Database, Path, list[Event]],
) -> None:
    pool = pool_of(run[2])
    injected = {task_id: plan for plan in pool.epochs.values() for task_id in plan.injected}
    firsts = dict(run[0].execute("SELECT task_id, first_mean FROM injected_first_rewards").fetchall())
    assert firsts.keys() == injected.keys()
    assert all(firsts[t] == (pool.observations[t][0].mean if t in pool.observations else None) for t in injected)
    made = {e.task.task_id: e for e in run[2] if isinstance(e, TaskSynthesized)}
    for task_id, to_injection, updates in (
        run[0].execute("SELECT task_id, steps_to_injection, policy_updates FROM staleness").fetchall()
    ):
        assert to_injection == injected[task_id].first_step - made[task_id].seed_step > 0
        seen = pool.observations.get(task_id)
        assert updates == (seen[0].step - made[task_id].seed_step if seen else None)


def test_the_yield_counts_every_signal_once(run: tuple[Database, Path, list[Event]]) -> None:
    kinds = [sum(isinstance(e, kind) for e in run[2]) for kind in (BoundaryDetected, TaskSynthesized, SynthesisFailed)]
    rows = (
        run[0]
        .execute("SELECT sum(num_signals), sum(num_synthesized), sum(num_failed), sum(num_open) FROM synthesis_yield")
        .fetchone()
    )
    assert list(rows) == [*kinds, 0] and kinds[2] > 0
    failures = run[0].execute("SELECT failures FROM synthesis_yield").fetchall()
    assert sum(row[0].get("vm_exec_failed", 0) for row in failures if row[0]) == kinds[2]


def test_cost_adds_up_times_and_tokens(run: tuple[Database, Path, list[Event]]) -> None:
    steps, seconds, tokens = (
        run[0].execute("SELECT sum(num_steps), sum(total_s), sum(num_trained_tokens) FROM cost").fetchone()
    )
    assert (seconds, tokens) == (pytest.approx(steps * 1.0), steps * 100)


def test_why_leads_every_generated_task_back_to_a_human_one(run: tuple[Database, Path, list[Event]]) -> None:
    made = {e.task.task_id: e for e in run[2] if isinstance(e, TaskSynthesized)}
    deep = next(e for e in made.values() if e.generation == 2)
    rows = (
        run[0]
        .execute("SELECT ancestor_id, origin FROM why WHERE task_id = ? ORDER BY depth", [deep.task.task_id])
        .fetchall()
    )
    parent = made[deep.parent_task_id]
    assert rows == [
        (deep.task.task_id, "generated"),
        (parent.task.task_id, "generated"),
        (parent.root_task_id, "human"),
    ]


def told(run: tuple[Database, Path, list[Event]], query: str, *values: object) -> list[tuple]:
    return run[0].execute(query, list(values)).fetchall()


def test_why_says_how_each_generation_was_made_and_which_steps_it_trained(
    run: tuple[Database, Path, list[Event]],
) -> None:
    groups = [e for e in run[2] if isinstance(e, RolloutGroupCompleted)]
    rows = told(run, "SELECT ancestor_id, origin, outcome, num_attempts, trained_steps FROM why WHERE depth = 0")
    assert len(rows) == sum(isinstance(e, TaskSeeded | TaskSynthesized) for e in run[2])
    for task_id, origin, outcome, num_attempts, steps in rows:
        assert (outcome, num_attempts) == (("made", 1) if origin == "generated" else (None, None))
        assert steps == sorted(g.step for g in groups if g.task_id == task_id)


def test_every_task_of_every_batch_and_every_rollout_can_be_asked_why(run: tuple[Database, Path, list[Event]]) -> None:
    batches = {e.step: e for e in run[2] if isinstance(e, BatchPlanned)}
    rows = told(run, "SELECT step, task_id, batch_id, trained_step, sent_signal_id FROM why_step")
    assert {(step, task_id) for step, task_id, *_ in rows} == {
        (b.step, t) for b in batches.values() for t in b.task_ids
    }
    assert all(batch_id == batches[step].event_id and trained == step for step, _, batch_id, trained, _ in rows)
    assert {row[4] for row in rows if row[4]} == {e.signal_id for e in run[2] if isinstance(e, BoundaryDetected)}
    bodies = {e.trajectory_id: e for e in run[2] if isinstance(e, TrajectoryRecorded)}
    played = told(run, "SELECT trajectory_id, rollout_index, reward, group_id, trained_step FROM why_rollout")
    assert len(played) == len(bodies)
    for trajectory_id, index, reward, group_id, trained in played:
        body = bodies[trajectory_id]
        assert (index, reward, group_id, trained) == (body.rollout_index, body.reward, body.group_id, body.step)


def test_drops_second_attempts_questions_to_models_and_forks_have_their_place(tmp_path: Path) -> None:
    said = record_run(tmp_path, num_epochs=2)
    left, twice = [e for e in said if isinstance(e, RolloutGroupCompleted)][:2]
    signal = next(e for e in said if isinstance(e, BoundaryDetected))
    asked = [
        Completion(
            attempt=0,
            role="planner",
            model="m",
            prompt_hash="h",
            text="t",
            num_prompt_tokens=100,
            num_completion_tokens=7,
        )
    ] * 2
    old = next(
        e
        for e in said
        if getattr(e, "signal_id", "") == signal.signal_id and isinstance(e, TaskSynthesized | SynthesisFailed)
    )
    changed = [replace(e, completions=tuple(asked), num_attempts=3) if e is old else e for e in said]
    changed = [
        replace(
            e, group_ids=tuple(g.group_id for g in said if isinstance(g, RolloutGroupCompleted) and g.step == e.step)
        )
        if isinstance(e, StepCompleted)
        else e
        for e in changed
    ]
    changed[0] = replace(changed[0], parent_run_id="run-0", forked_at_step=2, fork_mode="retrain")
    changed += [
        group(twice.task_id, twice.step, [1.0] * 4, attempt=1),
        make(
            RolloutsDropped,
            RUN,
            step=left.step,
            task_id=left.task_id,
            group_id=left.group_id,
            reason=DropReason.STALE,
            num_rollouts=4,
            policy_version=0,
            staleness=3,
        ),
    ]
    log = ArchiveLog(tmp_path / "changed", PARTITIONS)
    log.append(changed)
    log.close()
    database = open_archive(tmp_path / "changed")
    why_not = "SELECT DISTINCT left_out_because FROM why_rollout WHERE group_id = ?"
    assert database.execute(why_not, [left.group_id]).fetchall() == [("stale",)]
    assert database.execute(why_not, [changed[-2].group_id]).fetchall() == [("another attempt counted",)]
    assert database.execute("SELECT left_out_because FROM why_step WHERE group_id = ?", [left.group_id]).fetchall() == [
        ("stale",)
    ]
    assert database.execute(
        "SELECT group_id FROM why_step WHERE step = ? AND task_id = ?", [twice.step, twice.task_id]
    ).fetchall() == [(twice.group_id,)]
    spent = "SELECT synthesis_attempts - num_signals, synthesis_questions, synthesis_prompt_tokens, synthesis_completion_tokens FROM cost"
    extra = 2 * sum(isinstance(e, SynthesisFailed) and e is not old for e in said) + 2
    assert database.execute(f"{spent} WHERE num_signals > 0").fetchall() == [(extra, 2, 200, 14)]
    assert database.execute("SELECT parent_run_id, forked_at_step, fork_mode, off_policy FROM runs").fetchall() == [
        ("run-0", 2, "retrain", True)
    ]


def test_an_export_answers_like_the_archive(run: tuple[Database, Path, list[Event]], tmp_path: Path) -> None:
    export_archive(run[1], tmp_path)
    exported = open_export(tmp_path)
    for view in SHIPPED:
        query = f"SELECT * FROM {view} ORDER BY ALL"
        assert exported.execute(query).fetchall() == run[0].execute(query).fetchall(), view
    assert exported.execute("SELECT sum(len(token_ids)) FROM trajectory_recorded").fetchone()[0] == 12 * 4 * sum(
        isinstance(e, RolloutGroupCompleted) for e in run[2]
    )


def test_only_topics_that_a_query_needs_are_read() -> None:
    assert needed_types("select 1") == ("RunStarted",)
    assert "TrajectoryRecorded" not in needed_types("select * from staleness join cost using (run_id)")
    assert set(needed_types("SELECT * FROM zone_variance")) == {"RunStarted", "RolloutGroupCompleted"}
    assert "TrajectoryRecorded" in needed_types("select len(token_ids) from trajectory_recorded")


def test_event_types_that_are_not_there_are_empty_tables(run: tuple[Database, Path, list[Event]]) -> None:
    database = open_archive(run[1], "select * from variant_rejected")
    assert database.execute("SELECT count(*) FROM variant_rejected").fetchone() == (0,)


def test_a_folder_without_an_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoExport, match="rods export"):
        open_export(tmp_path)


def test_every_shipped_view_says_what_it_shows() -> None:
    assert list(described()) == list(SHIPPED) and all(len(text) > 20 for text in described().values())
