"""What a failed attempt teaches the next: type-safe patches that add up, a blocklist, history and advice."""

import json
from dataclasses import replace

import pytest

from benchmarks.playing_server import Player, blocks
from environments.registry import environment, load_tasks
from schemas.events import SynthesisFailure, TaskSynthesized
from synthesizer.stages.patches import PatchRefused, merged, patch_of
from tests.synthesizer.playing import play

F = SynthesisFailure
STATE = {
    "TradingBot": {
        "market_status": "Closed",
        "authenticated": False,
        "account_info": {"balance": 10.5, "id": 7},
        "orders": {},
        "stocks": {"AA": {"price": 1.5, "volume": 2}, "BB": {"price": 2.5, "volume": 3}},
        "watch": ["AA"],
        "note": None,
    },
    "GorillaFileSystem": {
        "root": {
            "home": {
                "type": "directory",
                "contents": {"z": {"type": "file", "content": ""}, "a": {"type": "directory", "contents": {}}},
            }
        }
    },
}
FILES = ["root", "home", "contents"]


@pytest.mark.parametrize(
    ("owner", "path", "value"),
    [
        ("TradingBot", ["market_status"], "Open"),
        ("TradingBot", ["authenticated"], True),
        ("TradingBot", ["account_info", "balance"], 500),
        ("TradingBot", ["stocks", "CC"], {"price": 9.0, "volume": 1}),
        ("TradingBot", ["stocks", "AA", "price"], 3),
        ("TradingBot", ["watch"], ["AA", "BB"]),
        ("GorillaFileSystem", [*FILES, "new.txt"], {"type": "file", "content": "x"}),
        ("GorillaFileSystem", [*FILES, "z", "content"], "words"),
    ],
)
def test_a_change_that_keeps_the_types_is_merged_and_key_order_stays(owner, path, value):
    changed = merged(STATE, patch_of(STATE, tuple(STATE), owner, path, value))
    where = changed[owner]
    for key in path[:-1]:
        where = where[key]
    assert where[path[-1]] == value and list(changed) == list(STATE)
    assert list(changed["GorillaFileSystem"]["root"]["home"]["contents"])[:2] == ["z", "a"]
    assert STATE["TradingBot"]["market_status"] == "Closed"


@pytest.mark.parametrize(
    ("owner", "path", "value", "words"),
    [
        ("Bank", ["balance"], 1, "no class"),
        ("TradingBot", [], {}, "needs a path"),
        ("TradingBot", ["market_status"], 5, "a number instead of a text"),
        ("TradingBot", ["authenticated"], 1, "a number instead of a truth value"),
        ("TradingBot", ["account_info"], "rich", "instead of an object"),
        ("TradingBot", ["account_info", "id"], 7.5, "a number instead of a number"),
        ("TradingBot", ["account_info", "debt"], 1, "no such field"),
        ("TradingBot", ["account_info", "x", "y"], 1, "there is no 'x'"),
        ("TradingBot", ["orders", "1"], {"any": 1}, "no such field"),
        ("TradingBot", ["stocks", "CC"], {"price": 1.0}, "needs the fields price, volume"),
        ("TradingBot", ["stocks", "CC"], {"price": "dear", "volume": 1}, "a text instead of a number"),
        ("TradingBot", ["stocks", "AA", "price", "x"], 1, "no object"),
        ("TradingBot", ["watch"], [1], "a number instead of a text"),
        ("TradingBot", ["watch"], "AA", "instead of a list"),
        ("TradingBot", ["note"], "x", "a text instead of nothing"),
        ("TradingBot", ["market_status"], "x" * 5000, "longer than"),
        ("GorillaFileSystem", [*FILES, "b"], {"type": "pipe"}, "neither a file nor a directory"),
        ("GorillaFileSystem", [*FILES, "b"], {"type": "file", "contents": {}}, "a type and content"),
        (
            "GorillaFileSystem",
            [*FILES, "b"],
            {"type": "directory", "contents": {"a/b": {"type": "file", "content": ""}}},
            "no file name",
        ),
        ("GorillaFileSystem", [*FILES, "z", "contents"], {}, "no such field"),
    ],
)
def test_a_change_of_unknown_classes_fields_or_types_is_refused(owner, path, value, words):
    with pytest.raises(PatchRefused, match=words):
        patch_of(STATE, tuple(STATE), owner, path, value)


def greedy(quantity):
    """A player that takes a fixed number of spokes."""

    def parameters(prompt):
        if blocks(prompt)[2]["name"] != "take_part":
            return Player().parameters(prompt)
        return {"reason": "-", "arguments": {"part": "spoke", "quantity": quantity}}

    return parameters


def asks_for(*changes):
    return {"reason": "-", "changes": [dict(zip(("api", "path", "value"), change, strict=True)) for change in changes]}


def test_a_patchable_failure_is_mended_in_small_steps_that_add_up_and_end_in_the_candidate():
    path = ["shelf", "spoke", "quantity"]
    player = Player(
        replaced={
            "parameters": greedy(99),
            "patcher": [
                asks_for(("Stock", path, 50)),
                asks_for(("Stock", path, 150), ("Stock", ["shelf", "bell"], {"quantity": 1, "price": 1.0})),
            ],
        }
    )
    blocking = play(player=player)
    assert blocking.end.failures[0] is F.VM_EXEC_FAILED
    first, second = (
        json.loads(prompt.partition("Changes that were made")[2].split("<data>\n")[1].split("\n</data>")[0])
        for prompt in [p for r, p in zip(player.asked, player.prompts, strict=True) if r == "planner"][:2]
    )
    assert first == {} and second == {"Stock": {"shelf": {"spoke": {"quantity": 50}}}}
    (passed, detail), *_ = blocking.stage("patch")
    assert passed and "Stock.shelf.spoke.quantity = 50" in detail and " -> " in detail


def test_the_candidate_carries_the_patched_state():
    def plan(prompt):
        classes, _, sequence = blocks(prompt)[:3]
        names = (
            sequence
            if "take_part" in str(classes["Stock"])
            else [["open_job"], ["part_info"], ["add_work", "job_total"]]
        )
        owner = {"take_part": "Stock", "part_info": "Stock"}
        return {
            "reason": "-",
            "narrative": "-",
            "turns": [{"api": owner.get(n[0], "Jobs"), "functions": n} for n in names],
        }

    patch = asks_for(("Stock", ["shelf", "spoke", "quantity"], 150))
    played = play(
        player=Player(replaced={"planner": plan, "parameters": greedy(99), "patcher": patch}), profile_mode="report"
    )
    assert isinstance(played.end, TaskSynthesized) and played.end.num_attempts == 2
    assert json.loads(played.end.config_patch_json) == {"Stock": {"shelf": {"spoke": {"quantity": 150}}}}
    assert json.loads(played.end.task.initial_config_json)["Stock"]["shelf"]["spoke"] == {"quantity": 150, "price": 4.5}


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("nothing useful", "ignored"),
        (asks_for(("Bank", ["vault"], 1)), "refused 'Bank' is no class"),
        (asks_for(("Stock", ["shelf", "spoke", "quantity"], "many")), "refused Stock.shelf.spoke.quantity"),
        (asks_for(), "no change proposed"),
    ],
)
def test_a_patch_that_cannot_be_made_is_ignored_and_noted(patch, words):
    played = play(player=Player(replaced={"parameters": greedy(99), "patcher": patch}), max_attempts=2)
    (passed, detail) = played.stage("patch")[0]
    assert not passed and words in detail and played.end.config_patch_json == ""


def test_the_function_that_failed_is_blocked_and_the_planner_hears_why():
    played = play(player=Player(replaced={"parameters": greedy(99)}), max_attempts=2)
    second = [p for r, p in zip(played.player.asked, played.player.prompts, strict=True) if r == "planner"][1]
    history, advice, blocked = blocks(second)[4:7]
    assert blocked == ["take_part"] and "take_part" not in blocks(second)[0]["Stock"]["functions"]
    assert history[0].startswith("vm_exec_failed: turn 1") and "log-in" in advice[0]


def test_failures_of_the_language_block_no_function():
    no = Player(replaced={"verifier": {"reason": "-", "verdict": "reject"}})
    played = play(player=no, max_attempts=2)
    assert blocks([p for r, p in zip(no.asked, no.prompts, strict=True) if r == "planner"][1])[6] == []
    assert "patcher" not in played.player.asked


def test_without_the_feedback_loop_later_attempts_know_nothing():
    played = play(player=Player(replaced={"parameters": greedy(99)}), feedback=False)
    planner = [p for r, p in zip(played.player.asked, played.player.prompts, strict=True) if r == "planner"]
    assert len(planner) == 3 and len(set(planner)) == 1 and "patcher" not in played.player.asked


def test_a_patch_opens_a_real_market():
    seed = next(t for t in load_tasks("train") if t.task_id == "multi_turn_base_130")
    closed = {**json.loads(seed.initial_config_json)}
    closed["TradingBot"] = {**closed["TradingBot"], "authenticated": False}
    bourse, task = environment(), replace(seed, initial_config_json=json.dumps(closed))
    patch = patch_of(closed, task.involved_classes, "TradingBot", ["authenticated"], True)
    opened = replace(task, initial_config_json=json.dumps(merged(closed, patch)))
    results = [bourse.call(bourse.start(each), seed.turns[3].ground_truth[0]) for each in (task, opened)]
    assert "error" in results[0] and "balance" in results[1]
