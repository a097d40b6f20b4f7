"""``rods replay`` on a real recorded run: equal as it is, and each thing that was changed in it is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli import app
from commands.config import ConfigError
from commands.folder import RunFolder
from commands.repeat import learning as replay_learning
from commands.repeat.report import PARTS
from commands.repeat.source import flat, origin_of
from commands.replay import parts_of, replay
from schemas import Event, Undecodable, decode, encode
from schemas.events import (
    BatchPlanned,
    RolloutGroupCompleted,
    RunFinished,
    RunStarted,
    StepCompleted,
    TrajectoryRecorded,
)
from streams.archive.archiver import restore
from streams.archive.blocks import spans_of
from streams.archive.scan import scan_archive
from streams.archive.segments import ArchiveLog, partitions_in, segments
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, Record
from streams.log.reader import dead_letter
from streams.log.topics import ensure_topics

EQUAL = dict.fromkeys(PARTS, "equal")
SKIPPED = dict.fromkeys(PARTS, "skipped")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def copied(undisturbed: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy to be tampered with."""
    shutil.copytree(undisturbed.path, tmp_path / undisturbed.run_id)
    return RunFolder(tmp_path / undisturbed.run_id)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments), "--json"])


def told(*arguments: object) -> tuple[int, dict]:
    """Exit code and what ``rods replay --json`` prints."""
    result = invoke(*arguments)
    assert result.stdout, repr(result.exception)
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


def refused(*arguments: object) -> str:
    """Why there is nothing to replay."""
    result = invoke(*arguments)
    assert isinstance(result.exception, LogGap | ConfigError), (result.exception, result.stdout)
    return str(result.exception)


def rewrite(folder: RunFolder, change: Callable[[Record, Event], Record | Event | None]) -> None:
    """Write the archive anew with each record changed; dropped where nothing comes back. It has no manifest then."""
    old, counts = folder.archive.with_name("old"), partitions_in(folder.archive)
    folder.archive.rename(old)
    log = ArchiveLog(folder.archive, counts)
    for record in scan_archive(old, counts):
        new = change(record, decode(record.value))
        if new is not None:
            changed = new if isinstance(new, Record) else record._replace(value=encode(new))
            log.mirror([changed._replace(offset=log.next_offsets()[record.place])])
    log.close()
    shutil.rmtree(old)
    folder.path.joinpath("archive-ends.json").unlink()


def change_one(folder: RunFolder, kind: type, index: int, **values: object) -> Event:
    """Change fields of the n-th event of a type, and give it back as it was."""
    seen: list[Event] = []

    def change(record: Record, event: Event) -> Event | Record:
        if isinstance(event, kind):
            seen.append(event)
            if len(seen) == index + 1:
                return replace(event, **values)
        return record

    rewrite(folder, change)
    return seen[index]


def nth(folder: RunFolder, kind: type, index: int) -> Event:
    events = (decode(record.value) for record in scan_archive(folder.archive, partitions_in(folder.archive)))
    return [event for event in events if isinstance(event, kind)][index]


def test_an_unchanged_run_is_equal_in_all_parts_wherever_its_folder_lies(
    undisturbed: RunFolder, copied: RunFolder
) -> None:
    code, found = told(undisturbed.path)
    assert code == 0 and found["verdicts"] == EQUAL and not found["divergence"] and not found["damage"]
    steps = nth(undisturbed, RunFinished, 0).step
    assert (
        found["counts"]["learning"] == steps
        and found["counts"]["rewards"] > steps
        and found["counts"]["decisions"] > steps
    )
    renamed = copied.path.rename(copied.path.with_name("elsewhere"))
    code, found = told(renamed, "--parts", "decisions")
    assert code == 0 and found["run_id"] == undisturbed.run_id
    assert found["verdicts"] == SKIPPED | {"decisions": "equal"}


def test_an_archive_alone_replays_at_another_path(copied: RunFolder, tmp_path: Path) -> None:
    alone = copied.archive.rename(tmp_path / "alone")
    shutil.rmtree(copied.path)
    code, found = told(alone, "--runs", tmp_path / "none")
    assert code == 0 and found["verdicts"] == EQUAL and found["run_id"] == copied.run_id


def test_a_run_replays_from_the_topics_of_a_broker(
    copied: RunFolder, own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    connection = Connection(own_broker.bootstrap_servers, True)
    ensure_topics(connection)
    log = KafkaLog(connection)
    restore(ArchiveLog(copied.archive), log)
    log.close()
    nowhere = ("--runs", tmp_path / "none", "--from", own_broker.bootstrap_servers)
    code, found = told(*nowhere)
    assert code == 0 and found["verdicts"] == EQUAL and found["run_id"] == copied.run_id
    code, found = told(copied.path, "--from", own_broker.bootstrap_servers, "--parts", "decisions,rewards")
    assert code == 0 and found["verdicts"] == SKIPPED | {"decisions": "equal", "rewards": "equal"}
    assert "no RunStarted of another-run" in refused("another-run", *nowhere)


def test_without_weights_learning_and_rewards_are_not_called_equal(
    copied: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_learning, "policy_folder", lambda config: "not/a/folder")
    kept = copied.checkpoints.rename(tmp_path / "kept")
    code, found = told(copied.path)
    assert code == 1 and found["verdicts"] == EQUAL | {"learning": "skipped", "rewards": "skipped"}
    assert "--checkpoints" in found["notes"]["learning"] and "initial weights" in found["notes"]["rewards"]
    code, found = told(copied.path, "--checkpoints", kept)
    assert code == 0 and found["verdicts"] == EQUAL


@pytest.mark.parametrize("topic", ["batches", "rollouts", "runs", "steps", "tasks", "trajectories"])
def test_a_flipped_byte_of_one_event_is_named_by_segment_and_offsets(copied: RunFolder, topic: str) -> None:
    path = segments(copied.archive / topic / "0")[0]
    data = bytearray(path.read_bytes())
    span = spans_of(bytes(data), 0)[-1]
    data[span.end - 40] ^= 4
    path.write_bytes(data)
    code, found = told(copied.path, "--parts", "decisions" if topic != "trajectories" else "rewards")
    part = "decisions" if topic != "trajectories" else "rewards"
    assert code == 1 and found["verdicts"][part] == "differs"
    assert found["damage"] == [
        f"{topic}-0 offsets {span.first_offset} to {span.last_offset}: segment {path.name} is damaged at bytes "
        f"{span.start} to {span.end - 1}"
    ]
    assert found["divergence"][part]["what"]


def test_a_truncated_or_missing_segment_is_refused_with_its_range(copied: RunFolder) -> None:
    path = segments(copied.archive / "steps" / "0")[0]
    data = path.read_bytes()
    last = spans_of(data, 0)[-1]
    os.truncate(path, last.start)
    for what in (f"segment {path.name} is cut at byte {last.start} of {len(data)}", f"segment {path.name} is missing"):
        code, found = told(copied.path, "--parts", "decisions,learning")
        first = last.first_offset if "cut" in what else 0
        assert code == 1 and found["damage"] == [f"steps-0 offsets {first} to {last.last_offset}: {what}"]
        assert found["verdicts"] == SKIPPED | {"decisions": "differs", "learning": "differs"}
        path.unlink(missing_ok=True)


def test_damage_of_a_topic_that_a_part_does_not_read_does_not_touch_its_verdict(copied: RunFolder) -> None:
    path = segments(copied.archive / "trajectories" / "1")[0]
    data = bytearray(path.read_bytes())
    data[-40] ^= 4
    path.write_bytes(data)
    code, found = told(copied.path, "--parts", "decisions")
    assert code == 1 and found["verdicts"]["decisions"] == "equal" and len(found["damage"]) == 1


def test_another_reward_is_named_by_group_and_rollout(copied: RunFolder) -> None:
    group = nth(copied, RolloutGroupCompleted, 5)
    index = next(i for i, reward in enumerate(group.rewards) if reward is not None)
    rewards = (*group.rewards[:index], group.rewards[index] + 0.25, *group.rewards[index + 1 :])
    change_one(copied, RolloutGroupCompleted, 5, rewards=rewards)
    code, found = told(copied.path, "--parts", "rewards")
    assert code == 1 and found["verdicts"]["rewards"] == "differs"
    assert found["divergence"]["rewards"] == {
        "where": f"group {group.group_id} ({group.task_id}, step {group.step})",
        "what": f"reward of rollout {index}",
        "recorded": repr(rewards[index]),
        "repeated": repr(group.rewards[index]),
        "cause": f"trajectory {group.trajectory_ids[index]}",
    }


@pytest.mark.parametrize("name", ["format_rewards", "turn_verdicts", "codes"])
def test_what_else_a_group_says_of_its_rollouts_is_compared_with_them(copied: RunFolder, name: str) -> None:
    group = nth(copied, RolloutGroupCompleted, 4)
    other = {"format_rewards": 1.9375, "turn_verdicts": (7,), "codes": (77,)}[name]
    change_one(copied, RolloutGroupCompleted, 4, **{name: (*getattr(group, name)[:-1], other)})
    code, found = told(copied.path, "--parts", "rewards")
    what = {"format_rewards": "format reward", "turn_verdicts": "turn verdicts", "codes": "codes"}[name]
    assert code == 1 and found["divergence"]["rewards"]["what"] == f"{what} of rollout {len(group.rewards) - 1}"


def test_another_batch_order_is_named_by_its_place_and_field(copied: RunFolder) -> None:
    batch = nth(copied, BatchPlanned, 3)
    change_one(copied, BatchPlanned, 3, task_ids=batch.task_ids[::-1])
    code, found = told(copied.path, "--parts", "decisions")
    difference = found["divergence"]["decisions"]
    assert code == 1 and found["verdicts"]["decisions"] == "differs"
    assert difference["where"].startswith("batches-0@")
    assert difference["what"] == f"BatchPlanned {batch.event_id}, field task_ids"
    assert difference["recorded"] == repr(batch.task_ids[::-1]) and difference["repeated"] == repr(batch.task_ids)


@pytest.mark.parametrize("where", ["file", "event"])
def test_another_setting_is_named_before_anything_is_repeated(copied: RunFolder, where: str) -> None:
    if where == "file":
        tree = copied.config()
        tree["trainer"]["learning_rate"] = 0.25
        copied.config_file.write_text(json.dumps(tree))
    else:
        tree = json.loads(nth(copied, RunStarted, 0).config_json)
        tree["trainer"]["learning_rate"] = 0.25
        change_one(copied, RunStarted, 0, config_json=json.dumps(tree))
    code, found = told(copied.path)
    assert code == 1 and set(found["verdicts"].values()) == {"differs"}
    for difference in found["divergence"].values():
        assert difference["where"] == "runs-0@0" and difference["what"] == "setting trainer.learning_rate"
        assert ("0.25" in difference["repeated"]) is (where == "file") and ("0.25" in difference["recorded"]) is (
            where == "event"
        )


def test_another_setting_of_the_log_alone_shows_in_what_it_decides(copied: RunFolder, tmp_path: Path) -> None:
    tree = json.loads(nth(copied, RunStarted, 0).config_json)
    tree["pool"]["batch_size"] = 3
    change_one(copied, RunStarted, 0, config_json=json.dumps(tree))
    alone = copied.archive.rename(tmp_path / "alone")
    code, found = told(alone, "--runs", tmp_path / "none", "--parts", "decisions")
    assert code == 1 and "EpochPlanned" in found["divergence"]["decisions"]["what"]


def test_another_token_probability_changes_the_weights_from_its_step_on(copied: RunFolder) -> None:
    step = next(s for s in range(1, 8) if nth(copied, StepCompleted, s - 1).metrics["num_optimizer_steps"])
    done = nth(copied, StepCompleted, step - 1)

    def change(record: Record, event: Event) -> Event | Record:
        if isinstance(event, TrajectoryRecorded) and event.step == step:
            return replace(event, logprobs=b"\0" * len(event.logprobs))
        return record

    rewrite(copied, change)
    code, found = told(copied.path, "--parts", "learning")
    difference = found["divergence"]["learning"]
    assert code == 1 and found["verdicts"]["learning"] == "differs"
    assert (difference["where"], difference["what"], difference["recorded"]) == (
        f"step {step}",
        "weights digest",
        done.weights_digest,
    )
    assert "largest weight difference" in found["notes"]["learning"]


def test_another_number_in_a_completed_step_is_named(copied: RunFolder) -> None:
    done = nth(copied, StepCompleted, 2)
    change_one(copied, StepCompleted, 2, num_trained_tokens=done.num_trained_tokens + 1)
    code, found = told(copied.path, "--parts", "learning")
    assert (
        code == 1 and found["divergence"]["learning"]["what"] == f"num_trained_tokens of StepCompleted {done.event_id}"
    )
    assert found["divergence"]["learning"]["repeated"] == str(done.num_trained_tokens)


@pytest.mark.parametrize("kind", [RunStarted, RunFinished])
def test_other_weights_at_the_start_or_the_end_are_named(copied: RunFolder, kind: type) -> None:
    change_one(copied, kind, 0, weights_digest="0" * 64)
    code, found = told(copied.path, "--parts", "learning")
    assert code == 1 and found["divergence"]["learning"]["what"].startswith("weights_digest of Run")
    assert found["divergence"]["learning"]["recorded"] == "0" * 64


def other_digests(folder: RunFolder) -> None:
    """Every weights digest from step 2 on as another machine would have given it."""
    rewrite(
        folder,
        lambda record, event: (
            replace(event, weights_digest=event.weights_digest[::-1])
            if isinstance(event, RunFinished) or (isinstance(event, StepCompleted) and event.step > 1)
            else record
        ),
    )


def test_weights_within_the_tolerance_count_as_such_on_another_machine_only(
    copied: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_digests(copied)
    code, found = told(copied.path, "--parts", "learning")
    assert (
        code == 1
        and found["verdicts"]["learning"] == "differs"
        and "equal bits are asked for" in found["notes"]["learning"]
    )
    versions = replay_learning.installed_versions("bfcl-v3") | {"cpu": "abacus", "torch": "9.9"}
    monkeypatch.setattr(replay_learning, "installed_versions", lambda environment: versions)
    code, found = told(copied.path, "--parts", "learning")
    note = found["notes"]["learning"]
    assert (
        code == 1
        and found["verdicts"]["learning"] == "tolerance"
        and found["divergence"]["learning"]["where"] == "step 2"
    )
    kept = [int(path.name.removeprefix("step-")) for path in sorted(copied.checkpoints.glob("step-*"))]
    assert f"at the kept checkpoints of step {', '.join(str(step) for step in kept if step > 1)}" in note
    assert "-> abacus" in note and "-> 9.9" in note
    monkeypatch.setattr(replay_learning, "WEIGHT_TOLERANCE", -1.0)
    assert told(copied.path, "--parts", "learning")[1]["verdicts"]["learning"] == "differs"


@pytest.mark.parametrize("part", ["learning", "rewards"])
def test_a_missing_trajectory_is_named(copied: RunFolder, part: str) -> None:
    gone = nth(copied, TrajectoryRecorded, 9)
    rewrite(copied, lambda record, event: None if event == gone else record)
    code, found = told(copied.path, "--parts", part)
    assert code == 1 and found["divergence"][part]["what"] == "missing range"
    assert gone.trajectory_id in found["divergence"][part]["recorded"]


def test_a_trajectory_that_cannot_be_read_is_named_by_its_place(copied: RunFolder) -> None:
    gone = nth(copied, TrajectoryRecorded, 3)
    rewrite(copied, lambda record, event: record._replace(value=record.value[:-9]) if event == gone else record)
    code, found = told(copied.path, "--parts", "rewards")
    assert code == 1 and "cannot be read: trajectories-" in found["divergence"]["rewards"]["recorded"]


def test_a_missing_step_is_named(copied: RunFolder) -> None:
    rewrite(copied, lambda record, event: None if isinstance(event, StepCompleted) and event.step == 4 else record)
    code, found = told(copied.path, "--parts", "learning")
    assert code == 1 and found["divergence"]["learning"]["recorded"] == "StepCompleted of step 4 is not in the log"


def test_a_record_that_the_pool_agent_dead_lettered_changes_no_verdict(copied: RunFolder) -> None:
    log = ArchiveLog(copied.archive)
    end = log.end_offsets(["rollouts"])
    place = next(iter(end))
    spoilt = Record(place.topic, place.partition, end[place], 1, copied.run_id.encode(), b"no event")
    log.append_raw(spoilt)
    log.close()
    code, found = told(copied.path, "--parts", "decisions")
    assert code == 1 and found["divergence"]["decisions"]["where"] == f"rollouts-0@{end[place]}"
    log = ArchiveLog(copied.archive)
    log.append([dead_letter(spoilt, Undecodable("no event"), copied.run_id, "pool")])
    log.close()
    code, found = told(copied.path, "--parts", "decisions,rewards")
    assert code == 0 and found["verdicts"] == SKIPPED | {"decisions": "equal", "rewards": "equal"}


def test_an_empty_or_foreign_log_is_no_equal_run(copied: RunFolder, tmp_path: Path) -> None:
    rewrite(copied, lambda record, event: None if isinstance(event, RunStarted) else record)
    assert "no RunStarted" in refused(copied.path)
    shutil.rmtree(copied.archive)
    ArchiveLog(copied.archive, {"runs": 1, "batches": 1}).next_offsets()
    assert "no RunStarted" in refused(copied.path)


def test_parts_that_do_not_exist_are_refused_and_blanks_do_not_matter(undisturbed: RunFolder) -> None:
    for wrong in ("decision", "", " , ", "decisions,reward"):
        assert "--parts" in refused(undisturbed.path, "--parts", wrong)
    assert parts_of(" rewards , decisions,") == ("decisions", "rewards")


class Bars:
    """Stands in for the progress display."""

    def __init__(self) -> None:
        self.totals: list[float | None] = []
        self.names: list[str] = []
        self.done: list[float] = []

    def add_task(self, description: str, total: float | None = None) -> int:
        self.names.append(description)
        self.totals.append(total)
        self.done.append(0)
        return len(self.totals) - 1

    def advance(self, task: int, advance: float = 1) -> None:
        self.done[task] += advance


def test_every_bar_knows_its_total_and_reaches_it(undisturbed: RunFolder) -> None:
    bars = Bars()
    _, report = replay(origin_of(str(undisturbed.path), Path("runs"), ""), PARTS, None, bars)
    assert report.is_equal and bars.names == ["reading", *PARTS]
    assert bars.done == bars.totals and all(bars.totals)


def test_leaves_of_a_configuration() -> None:
    assert flat({"a": {"b": 1, "c": []}, "d": [1, {"e": None}]}) == {"a.b": 1, "a.c": [], "d.0": 1, "d.1.e": None}


def test_a_difference_that_all_parts_share_is_printed_once(copied: RunFolder) -> None:
    tree = copied.config()
    tree["pool"]["cooldown"] = 99
    copied.config_file.write_text(json.dumps(tree))
    result = CliRunner().invoke(app, ["replay", str(copied.path)])
    assert result.exit_code == 1 and result.stdout.count("setting pool.cooldown") == 1
    assert "first difference in decisions, learning, rewards, synthesis:" in result.stdout
