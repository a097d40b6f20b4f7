"""Configuration: sources in order, and every fault refused with key and reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
from commands.config import ConfigError, RunConfig, load_config, validated
from commands.folder import RunFolder, RunInUse, find_run


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[pool]\nbatch_size = 5\ncooldown = 6\n[trainer]\ngroup_size = 9\n")
    config = load_config(
        file, {"RODS_POOL__COOLDOWN": "7", "RODS_TRAINER__GROUP_SIZE": "8", "HOME": "x"}, ["trainer.group_size=4"]
    )
    assert (config.pool.batch_size, config.pool.cooldown, config.trainer.group_size) == (5, 7, 4)
    assert config.pool.alpha_high == 0.85


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pool.batch_siz=3", "pool.batch_siz: unknown key"),
        ("pols.x=3", "pols: unknown key"),
        ("trainer.group_size=many", "trainer.group_size: .*integer"),
        ("pool.alpha_low=0.9", "pool: .*alpha_low < alpha_high"),
        ("pool.quota.other=3", "pool.quota"),
        ("run.name=A B", "run.name"),
        ("nonsense", "expected section.key=value"),
        ("kafka.port=99999", "kafka.port"),
        ("stages=[]", "expected section.key=value"),
        ("trainer.kl_coef=-1", "trainer.kl_coef"),
        ("trainer.learning_rate=inf", "trainer.learning_rate: .*finite"),
        ("trainer.learning_rate=nan", "trainer.learning_rate"),
        ("trainer.learning_rate=2.0", "trainer.learning_rate"),
        ("trainer.weight_decay=1e4", "trainer: .*weight_decay.*sign"),
        ("trainer.group_size=1", "trainer.group_size: .*greater than or equal to 2"),
        ("trainer.temperature=inf", "trainer.temperature: .*finite"),
        ("trainer.max_message_tokens=2000", "trainer: .*no room for a prompt"),
        ("trainer.num_processes=2", "trainer: .*needs engine = deepspeed"),
        ("trainer.workers.group_deadline_s=inf", "trainer.workers.group_deadline_s: .*finite"),
        ("pool.quota.base=-1", "pool.quota.base"),
        ("pool.zone_slack=0.5", "pool.zone_slack"),
        ("pool.max_steps=-1", "pool.max_steps"),
        ("synthesis.max_generation=3", "synthesis.max_generation: there is pool.max_generation instead"),
        ("synthesis.deadline_s=inf", "synthesis.deadline_s: .*finite"),
        ("synthesis.llm.retry_wait_s=nan", "synthesis.llm.retry_wait_s: .*finite"),
        ("synthesis.min_plan_turns=9", "synthesis: .*min_plan_turns 9 is above"),
        (
            'tasks.train=["multi_turn_base_13", "multi_turn_base_13"]',
            "tasks.train: .*more than once: multi_turn_base_13",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_the_reason(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, {}, [override])


def test_settings_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kafka.port belongs to the embedded broker"):
        load_config(None, {}, ["kafka.port=9999", "kafka.bootstrap_servers=kafka:9092"])
    file = tmp_path / "c.toml"
    file.write_text('[[stages]]\nname = "a"\nepochs = 1\n[[stages]]\nname = "a"\nepochs = 2\n')
    with pytest.raises(ConfigError, match="distinct names"):
        load_config(file, {}, [])


def test_a_ratio_without_a_bound_may_be_asked_for() -> None:
    assert load_config(None, {}, ["trainer.dual_clip=inf"]).trainer.dual_clip == float("inf")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"\xef\xbb\xbf[pool]\nbatch_size = 5\n")
    assert load_config(file, {}, []).pool.batch_size == 5


def test_a_stage_that_waits_for_held_out_reward_needs_an_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[[stages]]\nname = "a"\nepochs = 3\nsynthesis = false\nadvance = { by = "converged" }\n')
    assert load_config(file, {}, []).stages[0].name == "a"
    with pytest.raises(ConfigError, match="stage a: .*trainer.eval_rollouts is 0"):
        load_config(file, {}, ["trainer.eval_rollouts=0"])


def test_a_run_of_an_earlier_version_opens_although_a_setting_of_it_is_gone() -> None:
    recorded = json.loads(load_config(None, {}, []).as_json())
    recorded["synthesis"]["max_generation"] = 4
    assert validated(recorded, "RunStarted") == validated(json.loads(load_config(None, {}, []).as_json()), "RunStarted")


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {}, ["pool.batch_siz=3", "trainer.group_size=x", "kafka.port=-1"])
    assert all(key in str(caught.value) for key in ("pool.batch_siz", "trainer.group_size", "kafka.port"))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.toml", {}, [])
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="bad.toml"):
        load_config(tmp_path / "bad.toml", {}, [])


def test_the_recorded_configuration_gives_the_same_run_and_holds_no_client_settings() -> None:
    config = load_config(None, {}, ["kafka.client.sasl_password=secret"])
    assert "secret" not in config.as_json()
    assert RunConfig.model_validate_json(config.as_json()).as_json() == config.as_json()


def test_every_setting_says_what_it_means() -> None:
    from commands.config import settings_of

    unexplained = [key for key, _, meaning in settings_of(load_config(None, {}, [])) if not meaning and key != "stages"]
    assert not unexplained


def test_the_command_line_turns_a_wrong_setting_into_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from cli import main

    monkeypatch.setattr("sys.argv", ["rods", "run", "--set", "pool.batch_siz=3"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "pool.batch_siz: unknown key" in capsys.readouterr().err


def test_topics_and_config_print_for_people_and_machines() -> None:
    runner = CliRunner()
    assert "RolloutGroupCompleted" in runner.invoke(app, ["topics"], env={"COLUMNS": "200"}).output
    assert '"topic": "rollouts"' in runner.invoke(app, ["topics", "--json"]).output
    assert "trainer.group_size" in runner.invoke(app, ["config"], env={"COLUMNS": "200"}).output


def test_a_run_is_driven_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1").create(load_config(None, {}, []))
    with folder.lock(), pytest.raises(RunInUse, match="driven by process"):
        RunFolder(tmp_path / "r1").lock()
    folder.lock().close()


def test_runs_are_found_by_id_by_path_or_as_the_newest(tmp_path: Path) -> None:
    config = load_config(None, {}, [])
    for name in ("r1", "r2"):
        RunFolder(tmp_path / name).create(config)
    assert find_run("r1", tmp_path).run_id == "r1"
    assert find_run(str(tmp_path / "r2"), Path("elsewhere")).run_id == "r2"
    assert find_run(None, tmp_path).run_id in {"r1", "r2"}
    with pytest.raises(ConfigError, match="no run 'r3'"):
        find_run("r3", tmp_path)
    with pytest.raises(ConfigError, match="no run in"):
        find_run(None, tmp_path / "empty")
