"""`rods audit-tasks` and reseeded seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from cli import app
from commands.config import ConfigError, load_config
from commands.tasks import training_tasks
from commands.warm_start import warm_start_config


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


def test_no_task_of_the_workshop_has_a_fault() -> None:
    result = CliRunner().invoke(app, ["audit-tasks", "--environment", "workshop", "--json"])
    report = json.loads(result.output.splitlines()[-1])
    assert result.exit_code == 0 and (report["num_tasks"], report["num_faulty_tasks"]) == (32, 0)


def test_the_installed_command_finds_an_environment_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "shed.py").write_text(
        "from environments.toolbox import Toolbox\nfrom environments.workshop import Jobs, Stock, load\n"
        'SHED = Toolbox("shed:SHED", "1", {"Stock": Stock, "Jobs": Jobs}, load)\n'
    )
    rods = Path(sys.executable).with_name("rods")
    done = subprocess.run(
        [rods, "audit-tasks", "--environment", "shed:SHED", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["num_tasks"] == 32, done.stderr


def test_a_warm_start_takes_the_environment_of_the_configuration_and_names_what_it_may_not_see(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[tasks]\nenvironment = "workshop"\n')
    config = load_config(tmp_path / "run.toml", {}, [])
    settings = warm_start_config(config, ["num_steps=1"])
    assert settings.environment == "workshop" and "workshop_base_0" in settings.task_ids
    wrong = [
        "warm-start",
        "--config",
        str(tmp_path / "run.toml"),
        "--out",
        str(tmp_path / "out"),
        "--num-variants",
        "0",
    ]
    result = CliRunner().invoke(app, [*wrong, "--set", "environment=bfcl-v3"])
    assert isinstance(result.exception, ConfigError) and "workshop_base_0" in str(result.exception)
