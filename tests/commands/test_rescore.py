"""Rescoring through the command: other settings and verifiers change what they must, and what cannot be meant is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from commands import rescore
from commands.config import ConfigError, load_config
from commands.folder import RunFolder
from commands.rescore import Verifier
from environments.registry import load_tasks
from schemas import Event, make
from schemas.events import FinishReason, RolloutGroupCompleted, Task, TaskSeeded, TrajectoryRecorded
from streams.archive.segments import ArchiveLog
from streams.log.port import LogGap
from tests.streams.building import RUN, group, run_started
from tests.streams.recorded import PARTITIONS, record_run
from trainer.policy.loading import load_policy
from trainer.policy.players import ASSET
from trainer.rollouts.episodes import EpisodeMaker
from trainer.weights.checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list[Event]]:
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run-1").create(load_config(None, {}, []))
    return folder, record_run(folder.archive)


def rescored(folder: RunFolder, capsys: pytest.CaptureFixture, verifier: str = "recorded", *overrides: str) -> dict:
    capsys.readouterr()
    rescore.rescore(str(folder.path), list(overrides), Path("none"), True, verifier)
    return json.loads(capsys.readouterr().out)


def test_the_recorded_settings_give_the_recorded_figures(
    run: tuple[RunFolder, list[Event]], capsys: pytest.CaptureFixture
) -> None:
    found = rescored(run[0], capsys, "recorded", "pool.alpha_low=0.2")
    assert found["recorded"] == found["rescored"] and found["recorded"]["signals"] > 0
    assert not any(found[key] for key in found if key.endswith(("_gained", "_lost")))


def test_other_detector_settings_are_applied_to_every_group(
    run: tuple[RunFolder, list[Event]], capsys: pytest.CaptureFixture
) -> None:
    found = rescored(run[0], capsys, "recorded", "pool.alpha_low=0.45", "pool.alpha_high=0.55")
    means = [sum(e.rewards) / len(e.rewards) for e in run[1] if isinstance(e, RolloutGroupCompleted)]
    assert found["rescored"]["zones"]["boundary"] == sum(0.45 <= mean <= 0.55 for mean in means)
    assert found["rescored"]["zones"]["hard"] == sum(mean < 0.45 for mean in means)
    assert (
        len(found["boundary_lost"])
        == found["recorded"]["zones"]["boundary"] - found["rescored"]["zones"]["boundary"]
        > 0
    )
    assert found["signals_lost"] and found["injected_lost"] and found["boundary_gained"] == []


def test_a_variant_whose_signal_would_not_have_been_sent_is_not_injected(
    run: tuple[RunFolder, list[Event]], capsys: pytest.CaptureFixture
) -> None:
    found = rescored(
        run[0], capsys, "recorded", "pool.alpha_low=0.99", "pool.alpha_high=0.995", "pool.alpha_retire=0.999"
    )
    assert found["recorded"]["injected"] > 0 == found["rescored"]["injected"] == found["rescored"]["signals"]


def test_the_binary_verifier_looks_at_verdicts_alone(
    run: tuple[RunFolder, list[Event]], capsys: pytest.CaptureFixture
) -> None:
    found = rescored(run[0], capsys, "binary")
    assert found["rescored"]["mean_reward"] < found["recorded"]["mean_reward"]


def said_by_an_oracle(task: Task, end: str) -> list[str]:
    """The ground truth in the compact grammar, each turn ended by ``end``."""
    return [
        text
        for turn in task.turns
        for text in (*(f"<c>{c.name}{c.arguments_json}</c>" for c in turn.ground_truth), end)
    ]


def played(task: Task, texts: list[str], index: int) -> TrajectoryRecorded:
    """A rollout under the training protocol, in which these messages were said."""
    episode = EpisodeMaker("compact")(task)
    for text in texts:
        if not episode.done:
            episode.step(text)
    if not episode.done:
        episode.cut(FinishReason.TURN_LIMIT)
    return make(
        TrajectoryRecorded,
        RUN,
        group_id="",
        task_id=task.task_id,
        step=1,
        rollout_index=index,
        policy_version=0,
        token_ids=b"",
        logprobs=b"",
        mask=b"",
        messages=tuple(episode.messages),
        turn_verdicts=tuple(episode.turn_verdicts),
        reward=episode.reward,
        format_reward=None,
        finish_reason=episode.finish_reason,
    )


def test_the_official_verifier_plays_the_messages_again_under_the_leaderboards_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = RunFolder(tmp_path / RUN).create(load_config(None, {}, []))
    policy = load_policy(ASSET)
    write_checkpoint(folder.checkpoints, 0, policy.model, policy.tokenizer, {}, b"", 1)
    task = load_tasks("train")[0]
    bodies = [played(task, said_by_an_oracle(task, end), index) for index, end in enumerate(("<e>", "All done."))]
    assert [body.reward for body in bodies] == [1.0, 0.25], "a word instead of <e> is malformed in training only"
    one = replace(
        group(task.task_id, 1, [body.reward for body in bodies]),
        trajectory_ids=tuple(body.trajectory_id for body in bodies),
        turn_verdicts=tuple(body.turn_verdicts for body in bodies),
    )
    log = ArchiveLog(folder.archive, PARTITIONS)
    log.append([run_started(), make(TaskSeeded, RUN, task=task, position=0, is_protected=True), *bodies, one])
    log.close()
    means = {verifier: rescored(folder, capsys, verifier)["rescored"]["mean_reward"] for verifier in Verifier}
    assert means == {"recorded": 0.625, "progress": 0.625, "binary": 0.5, "official": 1.0}


def test_a_rollout_whose_messages_are_not_in_the_archive_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = RunFolder(tmp_path / RUN).create(load_config(None, {}, []))
    policy = load_policy(ASSET)
    write_checkpoint(folder.checkpoints, 0, policy.model, policy.tokenizer, {}, b"", 1)
    log = ArchiveLog(folder.archive, PARTITIONS)
    log.append([run_started(), group("nowhere", 1, [1.0])])
    log.close()
    with pytest.raises(LogGap, match="nowhere-1-0.*group .* of nowhere at step 1"):
        rescored(folder, capsys, "official")


def test_people_see_every_kind_of_change(run: tuple[RunFolder, list[Event]], monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(record=True, width=200, quiet=False)
    monkeypatch.setattr(rescore, "console", console)
    rescore.rescore(str(run[0].path), ["pool.alpha_low=0.45", "pool.alpha_high=0.55"], Path("none"))
    text = console.export_text()
    for words in ("boundary lost: ", "signals lost: ", "injected lost: ", "  epoch ", "  step "):
        assert words in text


@pytest.mark.parametrize("override", ["trainer.learning_rate=1", "alpha_low=0.1", "pool.alpha_low", "seed=3"])
def test_a_setting_that_cannot_be_read_anew_is_refused(run: tuple[RunFolder, list[Event]], override: str) -> None:
    with pytest.raises(ConfigError, match="only pool.key=value"):
        rescore.rescore(str(run[0].path), [override], Path("none"), True)
    with pytest.raises(ConfigError, match="alpha_lo: unknown key"):
        rescore.rescore(str(run[0].path), ["pool.alpha_lo=0.1"], Path("none"), True)


def test_an_unknown_verifier_and_a_missing_archive_are_named(
    run: tuple[RunFolder, list[Event]], tmp_path: Path
) -> None:
    from cli import app

    done = CliRunner().invoke(app, ["rescore", str(run[0].path), "--verifier", "x"])
    assert isinstance(done.exception, ConfigError) and "recorded, progress, binary, official" in str(done.exception)
    done = CliRunner().invoke(app, ["rescore", str(run[0].path), "--set", "pool.alpha_low=0.45", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["boundary_lost"]
    folder = RunFolder(tmp_path / "run-2").create(load_config(None, {}, []))
    shutil.rmtree(folder.archive)
    with pytest.raises(ConfigError, match="no archive folder"):
        rescore.rescore(str(folder.path), [], Path("none"), True)
    folder.archive.mkdir()
    with pytest.raises(ConfigError, match="no RunStarted"):
        rescore.rescore(str(folder.path), [], Path("none"), True)
