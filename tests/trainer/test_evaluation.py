"""Held-out suites played outside of a run."""

import pytest

from environments.evaluation import OfficialEpisode
from environments.registry import load_tasks
from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model, toy_task
from trainer.evaluation import Suite, episodes_of, evaluate, play
from trainer.policy.players import ASSET, NoPlayer, player_of
from trainer.rollouts.episodes import UnplayableTask
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import SamplingParams
from trainer.rollouts.vllm_server_sampler import VllmServerSampler

TASKS = tuple(toy_task(f"base_{n}", 1 + n % 3) for n in range(5))
PARAMS = SamplingParams(seed=5, max_message_tokens=30, max_episode_tokens=120)


def played(at_once, new_episode=ToyEpisode, **values):
    suite = Suite("toys", TASKS, 3)
    return play(suite, HFSampler(toy_model(), ToyTemplate()), PARAMS, new_episode, at_once, **values)


class Actionless(ToyEpisode):
    turn_actions = ()


def test_how_many_are_played_at_once_changes_nothing():
    results = [played(at_once, Actionless) for at_once in (1, 4, 100)]
    assert results[0] == results[1] == results[2]
    assert [each.task_id for each in results[0]] == [task.task_id for task in TASKS for _ in range(3)]
    assert 0 < sum(each.reward for each in results[0]) < 15


def test_progress_is_told_up_to_the_end():
    told = []
    played(4, Actionless, on_progress=lambda done, total: told.append((done, total)))
    assert told == sorted(set(told)) and {(4, 15), (8, 15), (12, 15), (15, 15)} <= set(told)
    assert told[-1] == (15, 15)


def test_a_task_that_cannot_start_counts_as_wrong_and_is_named():
    def new_episode(task):
        if task.task_id == "base_4":
            raise UnplayableTask("task base_4: cannot start")
        return Actionless(task)

    results = played(4, new_episode)
    broken = [each for each in results if each.task_id == "base_4"]
    assert len(results) == 15 and [each.error for each in broken] == ["task base_4: cannot start"] * 3
    assert not any(each.reward or each.is_right for each in broken)


def test_the_profiles_play_by_their_own_rules():
    task = load_tasks("val")[0]
    assert isinstance(episodes_of("bfcl", "compact")(task), OfficialEpisode)
    assert not isinstance(episodes_of("progress", "compact")(task), OfficialEpisode)


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NoPlayer, match="nowhere"):
        player_of(str(tmp_path / "nowhere"))
    with pytest.raises(NoPlayer, match="--tokenizer"):
        player_of("http://127.0.0.1:9")
    with pytest.raises(NoPlayer, match="127.0.0.1:9"):
        player_of("http://127.0.0.1:9", str(ASSET))


def test_a_served_model_is_measured_like_one_by_path():
    server = FakeVllm()
    sampler = VllmServerSampler("http://fake:1", ToyTemplate(), client=server.client(), transport=server.transport)
    results = play(Suite("toys", TASKS[:2], 2), sampler, PARAMS, Actionless, 3)
    assert [each.task_id for each in results] == ["base_0", "base_0", "base_1", "base_1"]
    assert not any(each.error for each in results) and any("/v1/completions" in path for path, _ in server.asked)


def test_in_a_run_a_task_that_cannot_start_counts_as_not_solved_and_the_others_are_measured(caplog):
    def new_episode(task):
        if task.task_id == "base_1":
            raise UnplayableTask("no such folder")
        return ToyEpisode(task)

    def measured(tasks, make_episode):
        return evaluate("run", Suite("toys", tasks, 3), 4, HFSampler(toy_model(), ToyTemplate()), PARAMS, make_episode)

    whole, rest = measured(TASKS, new_episode), measured(tuple(t for t in TASKS if t.task_id != "base_1"), ToyEpisode)
    assert (whole.num_tasks, whole.step) == (5, 4) and 0 < whole.mean_reward == pytest.approx(rest.mean_reward * 4 / 5)
    assert whole.accuracy == pytest.approx(rest.accuracy * 4 / 5)
    assert "base_1: no such folder; counted as not solved" in caplog.text
    none = measured((TASKS[1],), new_episode)
    assert (none.mean_reward, none.accuracy, none.by_category) == (0.0, 0.0, {"base": 0.0})
