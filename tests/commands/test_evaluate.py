"""``rods eval`` and ``rods chat`` with the shipped policy."""

import io
import json

import pytest
from rich.console import Console

from commands import evaluate as command
from commands.config import ConfigError
from commands.evaluate import Narrated, chat, evaluate, narrate, tasks_of
from environments.episode import Incoming
from environments.registry import load_tasks
from schemas.events import FinishReason

SHORT = {"max_message_tokens": 96, "max_episode_tokens": 768}


@pytest.fixture
def shown(monkeypatch):
    """The terminal."""
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(command, "console", console)
    return console


def test_a_suite_is_measured_as_json_and_file(tmp_path, capsys, shown):
    out = tmp_path / "sub" / "eval.json"
    evaluate("default", split="train", limit=8, greedy=True, as_json=True, out=out, **SHORT)
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result == json.loads(out.read_text())
    assert (result["overall"]["num_tasks"], result["mode"], result["parser"]) == (8, "greedy", "compact")
    assert list(result["categories"]) == ["base", "miss_func", "miss_param", "long_context"]
    assert result["sampling"]["greedy"] is True and result["intervals"]["accuracy"] == "Wilson"


def test_the_tables_show_every_category_with_intervals_and_how_they_were_made(shown):
    evaluate("default", split="train", profile="bfcl", limit=2, pass_k=2, category=["miss_func"], **SHORT)
    text = shown.file.getvalue()
    assert "bfcl profile" in text and "pass@2" in text and "miss_func" in text and "bootstrap over tasks" in text
    assert "turns by action class" in text and "base" not in text


def test_a_limit_takes_evenly_from_the_categories():
    chosen = tasks_of("bfcl-multi-turn", "test", limit=10)
    names = ("base", "miss_func", "long_context")
    counts = {name: sum(task.category.value == name for task in chosen) for name in names}
    assert set(counts.values()) == {3} and len(chosen) == 12
    assert len(tasks_of("bfcl-multi-turn", "test")) == 300


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"suite": "other"}, "--suite"),
        ({"split": "other"}, "--split"),
        ({"profile": "other"}, "--profile"),
        ({"category": ["other"]}, "--category"),
        ({"greedy": True, "pass_k": 2}, "--greedy"),
        ({"pass_k": 0}, "--pass-k"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(values, text):
    with pytest.raises(ConfigError, match=text):
        evaluate("default", **values)


def test_a_person_sees_a_task_played_and_may_speak_for_the_user(shown):
    answers = iter(["", "please [bold]stop[/bold]"])
    (task,) = [task for task in load_tasks("train", "bfcl-v3") if task.task_id == "multi_turn_miss_func_144"]
    reward = narrate(task, "default", greedy=True, max_message_tokens=96, ask=lambda question: next(answers, ""))
    text = shown.file.getvalue()
    assert text.count("policy") >= 3 and "result" in text and "was right" in text and f"reward {reward:.2f}" in text
    assert "you changed what the user said" in text


def test_a_task_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="multi_turn_base_9999"):
        chat("default", "multi_turn_base_9999")


class Spoken:
    """An episode with one turn, in which an error text follows the user's."""

    turn = 0
    incoming = (Incoming("user", "hello"),)

    def cut(self, reason):
        self.reason = reason


def test_a_person_is_asked_once_a_turn_and_not_about_errors(shown):
    asked, episode = [], Spoken()
    narrated = Narrated(episode, shown, lambda question: asked.append(question) or "other words")
    assert [piece.text for piece in narrated.incoming] == [piece.text for piece in narrated.incoming] == ["other words"]
    episode.incoming = (Incoming("user", "could not be read"),)
    assert [piece.text for piece in narrated.incoming] == ["could not be read"] and len(asked) == 1
    narrated.cut(FinishReason.TOKEN_LIMIT)
    assert episode.reason is FinishReason.TOKEN_LIMIT
