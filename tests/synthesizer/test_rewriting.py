"""The scripted program's text and argument machinery: dates, substitution, following arguments."""

import json
import random
from dataclasses import replace

import pytest

from schemas.events import SynthesisFailure
from synthesizer.dates import dates_in, with_day
from synthesizer.derive import rerun
from synthesizer.execution import run
from synthesizer.outcome import Failure
from synthesizer.scripted.quantities import order_kept, varied
from synthesizer.scripted.substitution import Substitution
from tests.synthesizer.building import ENVIRONMENT, call, file_task, ticket_task, turn


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on November 15th 2026.", "on November 2nd 2026."),
        ("on 2026-11-15.", "on 2026-11-02."),
        ("the 15th of November, 2026", "the 2nd of November, 2026"),
        ("on November 15, 2026,", "on November 2, 2026,"),
        ("on Nov 15th", "on Nov 2nd"),
    ],
)
def test_a_date_moves_in_the_wording_it_was_written_in(text, expected):
    (span,) = dates_in(text)
    assert span.means("2026-11-15")
    assert text[: span.start] + with_day(text, span, 2) + text[span.end :] == expected
    assert Substitution(dates={"2026-11-15": "2026-11-02"}).text(text, {}) == expected


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        ({"Apple": "Tesla", "Tesla": "Apple"}, "Sell Apple, buy Tesla.", "Sell Tesla, buy Apple."),
        ({"report.pdf": "memo.pdf"}, "final_report.pdf and report.pdf", "final_report.pdf and memo.pdf"),
        ({"notes": "memos"}, "notes.txt, notes, footnotes", "notes.txt, memos, footnotes"),
        ({"New York": "Boston", "New York City": "Boston"}, "New York City or New York", "Boston or Boston"),
        ({"Tesla": "Apple"}, "a Tesla share", "an Apple share"),
        ({"Apple": "Tesla"}, "An 'Apple' share", "A 'Tesla' share"),
        ({"Zeta Corp": "Omega Industries"}, "Zeta Corp's price", "Omega Industries' price"),
        ({"Zeta Corp": "Quasar Ltd."}, "I like Zeta Corp.", "I like Quasar Ltd."),
    ],
)
def test_words_are_exchanged_whole_and_in_one_pass(words, text, expected):
    assert Substitution(words=words).text(text, {}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100 shares at $100 each", "80 shares at $80 each"),
        ("room 100b, 100-200, 1100 and 100.5", "room 100b, 100-200, 1100 and 100.5"),
        ("pay 20,000 now", "pay 15,000 now"),
        ("pay 25.50 USD", "pay 21.80 USD"),
        ("on May 100", "on May 80"),
    ],
)
def test_numbers_change_only_where_they_stand_alone_and_keep_their_form(text, expected):
    assert Substitution(numbers={100.0: 80.0, 20000.0: 15000.0, 25.5: 21.8}).text(text, {}) == expected


def test_a_day_of_a_month_is_no_amount():
    assert Substitution(numbers={15.0: 12.0}).text("15 liters on March 15, 2026", {}) == "12 liters on March 15, 2026"


def test_state_keys_change_only_where_they_name_things():
    state = {"X": {"tweets": {"content": 1}, "orders": {"7001": {"status": "Open"}}, "status": "Open"}}
    changed = Substitution(words={"Open": "Shut", "status": "mood"}, identities={7001: 7444}).state(state)
    assert changed == {"X": {"tweets": {"content": 1}, "orders": {"7444": {"status": "Open"}}, "status": "Open"}}


def test_key_order_of_the_state_stays():
    state = {"GorillaFileSystem": {"root": {"z": {"type": "directory", "contents": {"b": {}, "a": {}}}}}}
    changed = Substitution(words={"b": "y", "z": "q"}).state(state)
    assert json.dumps(changed) == json.dumps(
        {"GorillaFileSystem": {"root": {"q": {"type": "directory", "contents": {"y": {}, "a": {}}}}}}
    )


def followed(old, **changes):
    substitution = Substitution(**changes)
    state = json.dumps(substitution.state(json.loads(old.initial_config_json)))
    turns = tuple(replace(item, user_text=substitution.text(item.user_text, {})) for item in old.turns)
    new = replace(old, initial_config_json=state, turns=turns)
    return rerun(ENVIRONMENT, old, run(ENVIRONMENT, old), new, substitution)


def test_an_argument_that_quotes_a_result_takes_the_new_result():
    old = ticket_task(
        turn("Open a ticket 'Broken chair'.", call("create_ticket", title="Broken chair", priority=1)),
        turn("Show it.", call("get_ticket", ticket_id=8000)),
    )
    task, trace = followed(old, overrides={("TicketAPI", "ticket_counter"): 8123})
    assert trace.steps[1].arguments == {"ticket_id": 8123} and '"title": "Broken chair"' in trace.steps[1].result
    assert task.turns[1].ground_truth == (trace.steps[1].call,)


def test_a_named_value_changes_as_its_text_changes():
    old = file_task(turn("Show 'a.txt'.", call("cat", file_name="a.txt")))
    task, _ = followed(old, words={"a.txt": "z.txt"})
    assert task.turns[0].user_text == "Show 'z.txt'." and '"z.txt"' in task.turns[0].ground_truth[0].arguments_json
    assert '"z.txt"' in task.initial_config_json


def test_a_file_s_counted_size_is_followed_into_the_text_that_is_written():
    old = file_task(
        turn("Count the characters of a.txt.", call("wc", file_name="a.txt", mode="c")),
        turn(
            "Write the number into a new file n.txt.",
            call("touch", file_name="n.txt"),
            call("echo", content="10", file_name="n.txt"),
        ),
    )
    path = ("GorillaFileSystem", "root", "home", "contents", "a.txt", "content")
    _, trace = followed(old, overrides={path: "a longer text"})
    assert trace.steps[-1].arguments["content"] == "13"


def test_a_call_that_fails_in_the_new_world_ends_the_attempt():
    old = ticket_task(turn("Show ticket 7001.", call("get_ticket", ticket_id=7001)))
    failure = followed(old, overrides={("TicketAPI", "ticket_queue", 0, "id"): 9})
    assert isinstance(failure, Failure) and failure.failure is SynthesisFailure.VM_EXEC_FAILED
    assert "turn 0, call 0, get_ticket" in failure.detail


def test_a_computed_number_is_not_guessed():
    old = file_task(
        turn("Count the characters of a.txt.", call("wc", file_name="a.txt", mode="c")),
        turn("Give me the mean of seven times that.", call("mean", numbers=[70])),
    )
    path = ("GorillaFileSystem", "root", "home", "contents", "a.txt", "content")
    old = replace(old, involved_classes=("GorillaFileSystem", "MathAPI"))
    failure = followed(old, overrides={path: "a longer text"})
    assert isinstance(failure, Failure) and failure.failure is SynthesisFailure.PARAM_GEN_FAILED
    assert "numbers = 70" in failure.detail


def test_a_comparison_that_would_come_out_otherwise_is_named():
    assert order_kept([(400.0, 700.0)], [(500.0, 500.0)]) == "400 against 500 became 700 against 500"
    assert order_kept([(400.0, 450.0), (500.0, 9.0)], [(500.0, 500.0)]) == ""


@pytest.mark.parametrize("value", [4.0, 15.0, 100.0, 15400.0, 25.5, 3.14, 769.0])
def test_an_amount_keeps_its_size_and_roundness(value):
    for seed in range(50):
        new = varied(value, random.Random(seed))
        assert 0.5 * value <= new <= 1.5 * value
        assert len(f"{new:g}".rstrip("0")) <= max(2, len(f"{value:g}".rstrip("0")) + 1)
