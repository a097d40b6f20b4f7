"""The hybrid backend; replay of recorded answers; what the events say about yield and cost."""

import asyncio
import json
from dataclasses import replace

import pytest

from analysis.index import RunIndex
from analysis.yields import synthesis_of
from benchmarks.playing_server import Player, blocks
from schemas import encode
from schemas.events import Category, SynthesisFailed, SynthesisFailure, TaskSynthesized
from synthesizer.book import TaskBook
from synthesizer.llm.recorded import RecordedModel, ReplayDiverged
from synthesizer.replay import replayed
from tests.streams.building import run_started
from tests.synthesizer.building import SEEDS, seeded
from tests.synthesizer.playing import WORKSHOP, play

F = SynthesisFailure
YES = {"reason": "-", "verdict": "accept", "fail_reason": ""}
NO = {"reason": "-", "verdict": "reject", "fail_reason": "Turn 0 sounds odd."}


def polite(prompt):
    """Texts of a hybrid draft, said politely."""
    conversation, turns = blocks(prompt)[1], blocks(prompt)[2]
    return {"reason": "-", "queries": [f"If you would be so kind: {conversation[turn]['user']}" for turn in turns]}


@pytest.mark.parametrize(
    "seed",
    [
        "multi_turn_base_130",
        "multi_turn_miss_func_130",
        "multi_turn_miss_param_130",
        "multi_turn_long_context_130",
        "multi_turn_base_156",
    ],
)
def test_the_hybrid_keeps_the_program_s_calls_and_takes_the_model_s_words(seed):
    played = play(SEEDS[seed], Player(replaced={"rewriter": polite}), backend="hybrid")
    task = played.end.task
    assert isinstance(played.end, TaskSynthesized) and played.end.backend == "hybrid"
    assert set(played.player.asked) == {"rewriter", "judge"}
    assert all(t.user_text.startswith("If you would be so kind") for t in task.turns if t.user_text)
    functions = [[item.name for item in t.ground_truth] for t in SEEDS[seed].turns]
    assert [[item.name for item in t.ground_truth] for t in task.turns] == functions
    assert [bool(t.user_text) for t in task.turns] == [bool(t.user_text) for t in SEEDS[seed].turns]


def test_a_hybrid_text_that_tells_a_withheld_value_is_refused_by_the_guard():
    def chatty(prompt):
        hidden = blocks(prompt)[3]
        assert hidden
        said = polite(prompt)["queries"]
        (turn, values), *_ = hidden.items()
        said[blocks(prompt)[2].index(int(turn))] += f" It is {values[0]}."
        return {"reason": "-", "queries": said}

    drafts = play(
        SEEDS["multi_turn_miss_param_130"], Player(replaced={"rewriter": chatty}), backend="hybrid", max_attempts=1
    )
    assert drafts.end.failure is F.GUARD_GENUINENESS


def test_a_hybrid_text_that_drops_a_value_is_refused_by_the_guard():
    vague = {"reason": "-", "queries": ["Please do as before."] * 5}
    played = play(SEEDS["multi_turn_base_130"], Player(replaced={"rewriter": vague}), backend="hybrid", max_attempts=1)
    assert played.end.failure is F.GUARD_PROVENANCE and isinstance(played.end, SynthesisFailed)


def played_again(played, completions=None, **fields):
    book = TaskBook()
    book.fold([seeded(played.seed)])
    end = played.end if completions is None else replace(played.end, completions=tuple(completions))
    config = played.config.model_copy(update=fields)
    return asyncio.run(replayed(played.signal, played.seed, end, book, config))


@pytest.mark.parametrize(
    "replaced",
    [
        {},
        {"judge": [NO, YES]},
        {"judge": NO},
        {"planner": "hm"},
        {"verifier": {"reason": "-", "verdict": "reject"}},
        {
            "parameters": {"reason": "-", "arguments": {"part": "spoke", "quantity": 99}},
            "patcher": {"reason": "-", "changes": []},
        },
        {"planner": "word " * 10_000},
    ],
)
@pytest.mark.parametrize("category", [Category.BASE, Category.MISS_PARAM])
def test_recorded_answers_give_the_identical_events_without_a_model(replaced, category):
    played = play(WORKSHOP[category], Player(replaced=dict(replaced)))
    again = played_again(played)
    assert [encode(event) for event in again] == [encode(event) for event in played.events]


def test_a_replay_repeats_refusals_lost_servers_and_deadlines():
    from tests.synthesizer.test_model_client import status

    for replaced, fields in (({"planner": [status(400), Player().planner]}, {}), ({"verifier": status(500)}, {})):
        played = play(player=Player(replaced=replaced), llm={"request_retries": 0}, **fields)
        assert [encode(event) for event in played_again(played)] == [encode(event) for event in played.events]

    async def forever():
        await asyncio.sleep(60)

    late = play(player=Player(replaced={"query": lambda _: forever()}), deadline_s=0.3, llm={"request_timeout_s": 60})
    assert played_again(late)[-1] == late.end


def test_a_replay_that_asks_something_else_names_the_question():
    played = play()
    with pytest.raises(ReplayDiverged, match="question 0 was asked of planner"):
        played_again(played, max_plan_calls=2)
    with pytest.raises(ReplayDiverged, match="question 1"):
        played_again(played, [played.end.completions[0], *played.end.completions[2:]])


def test_prompts_may_be_left_out_of_events_and_are_still_checked_by_hash():
    played = play(llm={"record_prompts": False})
    assert all(not item.prompt and len(item.prompt_hash) == 64 for item in played.end.completions)
    assert played_again(played)[-1] == played.end
    assert json.loads(play().end.completions[0].prompt)[0]["role"] == "system"


def test_a_recorded_model_says_how_many_answers_nobody_asked_for():
    assert RecordedModel(play().end.completions).num_left == 13


def priced(prompt_price, completion_price):
    """The start of a run whose settings name prices."""
    prices = {"prompt_price": prompt_price, "completion_price": completion_price}
    return replace(run_started(run_id="r"), config_json=json.dumps({"synthesis": {"llm": prices}}))


def test_yields_count_stages_reasons_judges_tokens_and_costs_once():
    good = play()
    odd = play(WORKSHOP[Category.MISS_FUNC], Player(replaced={"judge": NO}), max_attempts=1)
    plain = play(WORKSHOP[Category.LONG_CONTEXT], coherence_rewrite=False)
    events = [good.signal, *good.events, odd.signal, *odd.events, plain.signal, *plain.events]
    section = synthesis_of(RunIndex().add([priced(2.0, 10.0), *events]).add(events))
    assert (section["signals"], section["admitted"], section["failed"], section["queue_depth"]) == (3, 2, 1, 0)
    assert section["failures"] == {"judge_rejected": 1} == section["rejections"]
    assert section["judge_pass_frac"] == {"with_rewrite": 0.5, "without_rewrite": 1.0}
    assert section["stages"]["judge"]["pass_frac"] == pytest.approx(2 / 3)
    assert section["stages"]["refine"] == {"passed": 0, "pass_frac": 0.0, "stopped": {"judge_rejected": 1}}
    tokens = sum(c.num_prompt_tokens + c.num_completion_tokens for p in (good, odd, plain) for c in p.end.completions)
    assert section["tokens"] == tokens and section["tokens_per_admitted"] == tokens / 2
    assert section["roles"]["planner"]["completions"] == 3 and section["model_ms_per_admitted"] > 0
    prompts = sum(c.num_prompt_tokens for p in (good, odd, plain) for c in p.end.completions)
    assert section["cost"] == pytest.approx((2.0 * prompts + 10.0 * (tokens - prompts)) / 1e6)
    assert section["cost_per_admitted"] == section["cost"] / 2 > 0
    assert json.loads(json.dumps(section)) == section


def test_yields_of_open_signals_say_how_long_the_queue_is():
    played = play()
    section = synthesis_of(RunIndex().add([played.signal]))
    assert section["queue_depth"] == 1 and section["yield_frac"] is None
    assert synthesis_of(RunIndex().add([*played.events, played.signal]))["queue_depth"] == 0


def test_a_scripted_synthesis_notes_its_stages_too():
    played = play(SEEDS["multi_turn_base_130"], backend="scripted")
    assert [stage.stage for stage in played.end.stages] == ["draft", "critique"] and not played.end.completions
    assert played.end.prompts_hash == ""
