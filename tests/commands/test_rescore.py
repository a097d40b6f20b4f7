"""Rescoring through the command: other settings and verifiers change what they must, and what cannot be meant is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from commands import rescore
from commands.config import ConfigError, load_config
from commands.folder import RunFolder
from commands.rescore import Verifier
from schemas import Event
from schemas.events import RolloutGroupCompleted
from tests.streams.recorded import record_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list[Event]]:
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run-1").create(load_config(None, {}, []))
    return folder, record_run(folder.archive)


def rescored(folder: RunFolder, capsys: pytest.CaptureFixture, verifier: str = "recorded", *overrides: str) -> dict:
    capsys.readouterr()
    rescore.show(str(folder.path), Verifier(verifier), list(overrides), Path("none"), True, Console())
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
    assert len(found["boundary_lost"]) == found["recorded"]["zones"]["boundary"] - found["rescored"]["zones"]["boundary"] > 0
    assert found["signals_lost"] and found["injected_lost"] and found["boundary_gained"] == []


def test_a_variant_whose_signal_would_not_have_been_sent_is_not_injected(
    run: tuple[RunFolder, list[Event]], capsys: pytest.CaptureFixture
) -> None:
    found = rescored(run[0], capsys, "recorded", "pool.alpha_low=0.99", "pool.alpha_high=0.995", "pool.alpha_retire=0.999")
    assert found["recorded"]["injected"] > 0 == found["rescored"]["injected"] == found["rescored"]["signals"]


def test_the_binary_verifier_looks_at_verdicts_alone(
    run: tuple[RunFolder, list[Event]], capsys: pytest.CaptureFixture
) -> None:
    found = rescored(run[0], capsys, "binary")
    assert found["rescored"]["mean_reward"] < found["recorded"]["mean_reward"]


def test_people_see_every_kind_of_change(run: tuple[RunFolder, list[Event]]) -> None:
    console = Console(record=True, width=200, quiet=False)
    rescore.show(str(run[0].path), Verifier.RECORDED, ["pool.alpha_low=0.45", "pool.alpha_high=0.55"], Path("none"), False, console)
    text = console.export_text()
    for words in ("boundary lost: ", "signals lost: ", "injected lost: ", "  epoch ", "  step "):
        assert words in text


@pytest.mark.parametrize("override", ["trainer.learning_rate=1", "alpha_low=0.1", "pool.alpha_low", "seed=3"])
def test_a_setting_that_cannot_be_read_anew_is_refused(run: tuple[RunFolder, list[Event]], override: str) -> None:
    with pytest.raises(ConfigError, match="only pool.key=value"):
        rescore.show(str(run[0].path), Verifier.RECORDED, [override], Path("none"), True, Console())
    with pytest.raises(ConfigError, match="alpha_lo: unknown key"):
        rescore.show(str(run[0].path), Verifier.RECORDED, ["pool.alpha_lo=0.1"], Path("none"), True, Console())


def test_an_unknown_verifier_and_a_missing_archive_are_named(run: tuple[RunFolder, list[Event]], tmp_path: Path) -> None:
    from commands.cli_analysis import app

    done = CliRunner().invoke(app, ["rescore", str(run[0].path), "--verifier", "x"])
    assert isinstance(done.exception, ConfigError) and "recorded, progress, binary, official" in str(done.exception)
    done = CliRunner().invoke(app, ["rescore", str(run[0].path), "--set", "pool.alpha_low=0.45", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["boundary_lost"]
    folder = RunFolder(tmp_path / "run-2").create(load_config(None, {}, []))
    shutil.rmtree(folder.archive)
    with pytest.raises(ConfigError, match="no archive folder"):
        rescore.show(str(folder.path), Verifier.RECORDED, [], Path("none"), True, Console())
    folder.archive.mkdir()
    with pytest.raises(ConfigError, match="no RunStarted"):
        rescore.show(str(folder.path), Verifier.RECORDED, [], Path("none"), True, Console())
