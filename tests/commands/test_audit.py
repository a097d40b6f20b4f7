"""`rods audit-tasks` and reseeded seeds."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from cli import app
from commands.config import load_config
from commands.tasks import training_tasks


def test_the_audit_names_known_faults_for_people_and_machines(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit-tasks", "--json", "--out", str(tmp_path / "findings.jsonl")])
    report = json.loads(result.output.splitlines()[-1])
    assert result.exit_code == 0 and report["num_tasks"] == 800
    faults = {(row["task_id"], row["kind"]) for row in report["faults"]}
    assert ("multi_turn_base_4", "underivable_text") in faults
    assert ("multi_turn_miss_func_49", "withheld_function_used") in faults
    assert report["counts"]["failing_call"] == 0 and report["counts"]["config_crosses_split"] > 0
    assert len((tmp_path / "findings.jsonl").read_text().splitlines()) == sum(report["counts"].values())
    assert "multi_turn_base_4 turn" in CliRunner().invoke(app, ["audit-tasks"], env={"COLUMNS": "200"}).output


def test_seeds_with_drawn_ids_are_other_tasks_with_the_same_names() -> None:
    plain = training_tasks(load_config(None, {}, []))
    drawn = training_tasks(load_config(None, {}, ["tasks.id_seed=5"]))
    assert [t.task_id for t in plain] == [t.task_id for t in drawn]
    assert all(t.id_seed == 0 for t in plain) and sum(t.id_seed != 0 for t in drawn) > len(drawn) / 2
