"""Parsers: one outcome per message, the raw text kept, errors with a reason and a position, nothing guessed."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.interface import EnvironmentUnavailable
from environments.parsing import BUILT_IN, parser
from environments.registry import environment, load_tasks
from schemas.events import MessageOutcome

BFCL = environment()
TASKS = load_tasks("all")
TOOLS = BFCL.tools(TASKS[0])
MOVE = {"source": "a.txt", "destination": "b"}
THINK = "<think>I move it.</think>"

WELL_FORMED = [
    ("compact", '<c>mv{"source":"a.txt","destination":"b"}</c>'),
    ("strict", THINK + '<tool_call>{"name":"mv","arguments":{"source":"a.txt","destination":"b"}}</tool_call>'),
    ("strict", '<tool_call>[{"name":"mv","arguments":{"source":"a.txt","destination":"b"}}]</tool_call>\n' + THINK),
    ("hermes", '<tool_call>\n{"name": "mv", "arguments": {"source": "a.txt", "destination": "b"}}\n</tool_call>'),
    ("hermes", "<think>\nmaybe <tool_call>?\n</think>\n\nMoving it.\n" + '<tool_call>{"name":"mv","arguments":{"source":"a.txt","destination":"b"}}</tool_call>'),
    ("hermes", 'opened by the prompt</think><tool_call>{"name":"mv","arguments":{"source":"a.txt","destination":"b"}}</tool_call>'),
    ("llama3", '{"name": "mv", "parameters": {"source": "a.txt", "destination": "b"}}'),
    ("llama3", '<|python_tag|>{"name": "mv", "arguments": {"source": "a.txt", "destination": "b"}}<|eom_id|>'),
    ("llama3", '[{"name": "mv", "parameters": {"source": "a.txt", "destination": "b"}}]'),
    ("llama3", '{"type": "function", "name": "mv", "parameters": {"source": "a.txt", "destination": "b"}}'),
    ("hermes", '<think>a </tool_call> and <tool_call>{</think><tool_call>{"name":"mv","arguments":{"source":"a.txt","destination":"b"}}</tool_call></think>'),
    ("openai", json.dumps({"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "mv", "arguments": json.dumps(MOVE)}}]})),
    ("openai", json.dumps([{"type": "function", "function": {"name": "mv", "arguments": MOVE}}])),
    ("openai", json.dumps([{"index": 0, "type": "function", "function": {"name": "mv", "arguments": MOVE}}])),
    ("openai", json.dumps({"reasoning": "-", "tool_calls": [{"function": {"name": "mv", "arguments": MOVE}}]})),
    ("openai", THINK + json.dumps([{"function": {"name": "mv", "arguments": MOVE}}])),
    ("llama3", '{"parameters": {"source": "a.txt", "destination": "b"}, "name": "mv"}'),
    ("llama3", 'Moving it. <|python_tag|>{"name": "mv", "parameters": {"source": "a.txt", "destination": "b"}}'),
    ("llama3", THINK + '\n\n{"name": "mv", "parameters": {"source": "a.txt", "destination": "b"}}'),
    ("python", THINK + "\n\n[mv(source='a.txt', destination='b')]"),
    ("python", "[mv(source='a.txt', destination='b')]"),
    ("python", 'mv("a.txt", "b")'),
    ("python", "  mv('a.txt',\n destination=\"b\")  "),
]  # fmt: skip

ANSWERS = [
    ("compact", "<e>"),
    ("strict", THINK + "<answer>Done.</answer>"),
    ("hermes", "All files are moved."),
    ("hermes", "<think>nothing to do</think>\n\nDone."),
    ("llama3", "Which file do you mean?"),
    ("openai", '{"role": "assistant", "content": "Done."}'),
    ("openai", "Done."),
    ("python", "I cannot do that."),
    ("python", "Done (3 files moved)."),
    ("python", "Done(3)."),
    ("python", "[Note] I could not find it."),
    ("python", "[see above]"),
    ("python", "[Note]"),
    ("python", "[No files found (0 matches)]"),
    ("python", "Done (3)"),
    ("python", "File(s) moved (all)"),
    ("python", "Error(s) occurred (see the log)"),
    ("python", "[Update(s)] none"),
    ("python", 'Renamed ("a" to "b").'),
    ("python", THINK + "Done (3 files moved)."),
    ("llama3", THINK + "Done."),
    ("openai", THINK + "Done."),
    ("llama3", '{"users": [{"name": "Bob"}]}'),
    ("openai", "[Note] I could not find it."),
    ("openai", "{braces} are not supported"),
    ("openai", '{"role": "assistant", "content": [{"type": "text", "text": "Done."}]}'),
    ("openai", '{"port": 80}'),
    ("llama3", "[Note] I could not find it."),
    ("llama3", "{name} is not a user"),
    ("llama3", '{"port": 80} is what the file says'),
]

MALFORMED = [
    ("compact", "", "exactly"),
    ("compact", "<e> ", "exactly"),
    ("compact", 'ok <c>mv{"source":"a"}</c>', "exactly"),
    ("compact", "<c>mv{}", "not closed"),
    ("compact", "<c></c>", "no function name"),
    ("compact", "<c>mv</c>", "exactly one JSON value"),
    ("compact", "<c>mv[]</c>", "must be a JSON object"),
    ("compact", '<c>mv{"source":"a"}{}</c>', "exactly one JSON value"),
    ("compact", '<c>mv{"source":"a","source":"b"}</c>', "appears twice"),
    ("compact", '<c>mv{"source":NaN}</c>', "NaN is not JSON"),
    ("compact", '<c>mv{"source":1e999}</c>', "too large"),
    ("compact", '<c>mv{"source":"\\ud800"}</c>', "surrogate"),
    ("compact", "<c>mv{'source':'a'}</c>", "bad JSON"),
    ("strict", '<tool_call>{"name":"mv","arguments":{}}</tool_call>', "no think block"),
    ("strict", THINK, "neither"),
    ("strict", THINK + THINK + "<answer>a</answer>", "more than one think"),
    ("strict", THINK + "<answer>a</answer><tool_call>[]</tool_call>", "both"),
    ("strict", THINK + "<answer>a</answer><answer>b</answer>", "more than one answer"),
    ("strict", THINK + "<answer>a</answer> bye", "outside"),
    ("strict", THINK + "<tool_call>{</tool_call>", "bad JSON"),
    ("strict", "<think>I use <tool_call></think><answer>a</answer>", "unexpected"),
    ("strict", THINK + '<tool_call>{"name":"mv"}</tool_call>', "'arguments' as a JSON object"),
    ("strict", THINK + '<tool_call>{"name":"mv","arguments":"source=a"}</tool_call>', "'arguments' as a JSON object"),
    ("strict", THINK + '<tool_call>[1]</tool_call>', "must be a JSON object"),
    ("hermes", '<tool_call>{"name":"mv","arguments":{}}', "never closed"),
    ("hermes", "<tool_call>mv a b</tool_call>", "bad JSON"),
    ("hermes", "<think>for ever", "never closed"),
    ("hermes", '<tool_call>{"name":"mv","arguments":{},"id":3}</tool_call>', "a call has only"),
    ("hermes", '<tool_call>{"name":7,"arguments":{}}</tool_call>', "function name"),
    ("hermes", '<tool_call>{"name":"mv","arguments":{}}</tool_call></think>', "closes nothing"),
    ("hermes", 'a <tool_call>{"name":"mv","arguments":{}}</tool_call> b </think> c', "closes nothing"),
    ("llama3", '{"name": "mv"', "bad JSON"),
    ("python", "mv ('a'", "not a call"),
    ("python", "nobody('a'", "not a call"),
    ("python", "nobody(1)", "unknown function"),
    ("python", "<think>mv('a', 'b')", "never closed"),
    ("llama3", '{"id": 1, "name": "mv", "parameters": {}}', "a call has only"),
    ("llama3", '{"tool": "mv", "parameters": {"source"', "bad JSON"),
    ("llama3", 'I do it: <|python_tag|>mv("a")', "bad JSON"),
    ("llama3", '<think>{"name": "mv", "parameters": {}}', "never closed"),
    ("openai", '{"index": 0, "function": {"name": "mv"}}', "neither content nor tool_calls"),
    ("hermes", '<tool_call>{"name": "mv}</tool_call>', "never closed outside JSON strings"),
    ("llama3", '{"function": "mv"}', "a call has only"),
    ("llama3", "<|python_tag|>", "nothing follows"),
    ("llama3", '{"name": "mv", "parameters": {}, "arguments": {}}', "a call has only"),
    ("openai", '{"role": "user", "content": "hi"}', "not the assistant"),
    ("openai", '{"tool_calls": {"a": 1}}', "must be a list"),
    ("openai", "{}", "neither content nor tool_calls"),
    ("openai", '[{"function": {"name": "mv", "arguments": "{"}}]', "bad JSON"),
    ("python", "mv('a', 'b', 'c')", "at most 2"),
    ("python", "mv(source=pwd())", "plain values"),
    ("python", "mv(source='a', source='b')", "cannot be used"),
    ("python", "mv(source=a)", "plain values"),
    ("python", "nobody('a')", "unknown function"),
    ("python", "[mv(source='a'", "not a call"),
    ("python", "[1, 2]", "expected a call"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), WELL_FORMED)
def test_a_well_formed_message_gives_its_call_in_canonical_form(name, text):
    parsed = parser(name)(text, TOOLS)
    assert parsed.outcome is MessageOutcome.CALLS, parsed.detail
    assert [call.name for call in parsed.calls] == ["mv"]
    assert parsed.calls[0].arguments_json == '{"destination":"b","source":"a.txt"}'
    assert parsed.text == text and parsed.detail == ""


@pytest.mark.parametrize(("name", "text"), ANSWERS)
def test_a_message_without_a_call_is_an_answer(name, text):
    parsed = parser(name)(text, TOOLS)
    assert (parsed.outcome, parsed.calls, parsed.text) == (MessageOutcome.ANSWER, (), text)


@pytest.mark.parametrize(("name", "text", "reason"), MALFORMED)
def test_a_malformed_message_says_why_and_where(name, text, reason):
    parsed = parser(name)(text, TOOLS)
    assert parsed.outcome is MessageOutcome.PARSE_ERROR and parsed.calls == ()
    assert reason in parsed.detail and "(at character " in parsed.detail
    assert parsed.text == text


def test_several_calls_keep_their_order():
    calls = '{"name":"cd","parameters":{"folder":"a"}}; {"name":"ls","parameters":{}}'
    assert [call.name for call in parser("llama3")(calls, TOOLS).calls] == ["cd", "ls"]
    block = '<tool_call>{"name":"NAME","arguments":{}}</tool_call>'
    text = block.replace("NAME", "cd") + "\nthen\n" + block.replace("NAME", "ls")
    assert [call.name for call in parser("hermes")(text, TOOLS).calls] == ["cd", "ls"]
    assert [call.name for call in parser("python")("[cd('a'), ls()]", TOOLS).calls] == ["cd", "ls"]


def test_an_empty_list_is_calls_without_a_call():
    for name, text in (("strict", THINK + "<tool_call>[]</tool_call>"), ("python", "[]"), ("llama3", "[]")):
        parsed = parser(name)(text, TOOLS)
        assert (parsed.outcome, parsed.calls) == (MessageOutcome.CALLS, ())


def test_the_error_position_points_into_the_message():
    text = THINK + '<tool_call>{"name": "mv", "arguments": {oops}}</tool_call>'
    detail = parser("strict")(text, TOOLS).detail
    position = int(detail.rsplit(" ", 1)[1].rstrip(")"))
    assert text[position:].startswith("oops")


def test_python_texts_with_escapes_and_brackets_are_read_as_written():
    text = r"""[echo(content='a "b" (c) [d] \'e\'\n', file_name='x.txt')]"""
    call = parser("python")(text, TOOLS).calls[0]
    assert json.loads(call.arguments_json)["content"] == "a \"b\" (c) [d] 'e'\n"


def test_python_ground_truth_survives_a_round_trip_through_its_own_syntax():
    for task in TASKS[::5]:
        tools = BFCL.tools(task)
        for turn in task.turns:
            for call in turn.ground_truth:
                arguments = json.loads(call.arguments_json).items()
                text = f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments)})"
                assert parser("python")(text, tools).calls == (call,)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(BUILT_IN)), text=st.text(max_size=200))
def test_any_text_at_all_has_exactly_one_outcome(name, text):
    parsed = parser(name)(text, TOOLS)
    assert parsed.text == text
    assert bool(parsed.detail) == (parsed.outcome is MessageOutcome.PARSE_ERROR)
    assert not parsed.calls or parsed.outcome is MessageOutcome.CALLS


@settings(max_examples=200, deadline=None)
@given(arguments=st.dictionaries(st.text(min_size=1, max_size=8), st.recursive(
    st.none() | st.booleans() | st.integers(-10**30, 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12), lambda inner: st.lists(inner, max_size=3), max_leaves=6), max_size=4))  # fmt: skip
def test_json_arguments_arrive_as_they_were_sent(arguments):
    for name, text in (
        ("compact", f"<c>f{json.dumps(arguments)}</c>"),
        ("hermes", f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"),
    ):
        parsed = parser(name)(text, TOOLS)
        assert parsed.outcome is MessageOutcome.CALLS, parsed.detail
        assert json.loads(parsed.calls[0].arguments_json) == arguments


def parse_shouting(text, tools):
    return parser("hermes")(text.lower(), tools)


def test_a_parser_can_be_named_by_module_and_attribute():
    parse = parser("tests.environments.test_parsing:parse_shouting")
    assert parse("HELLO", TOOLS).outcome is MessageOutcome.ANSWER


def test_an_unknown_parser_is_named_with_what_there_is():
    with pytest.raises(ValueError, match="no parser named 'xml'; known: compact, strict"):
        parser("xml")
    with pytest.raises(EnvironmentUnavailable, match="cannot load parser"):
        parser("tests.environments.test_parsing:absent")


@pytest.mark.parametrize("said", ["</tool_call>", "<tool_call>", "</think>", "<think>", '"</tool_call>', "\\</answer>"])
@pytest.mark.parametrize(
    ("name", "before"), [("hermes", ""), ("hermes", "Now: "), ("hermes", THINK), ("strict", THINK)]
)
def test_tags_inside_json_strings_are_text(name, before, said):
    call = {"name": "echo", "arguments": {"content": said, "file_name": "x"}}
    text = f"{before}<tool_call>{json.dumps(call)}</tool_call>"
    parsed = parser(name)(text, TOOLS)
    assert parsed.outcome is MessageOutcome.CALLS, parsed.detail
    assert json.loads(parsed.calls[0].arguments_json) == call["arguments"]


@settings(max_examples=300, deadline=None)
@given(
    contents=st.lists(st.text('<>/"\\{}[]tolcahink_ \n', max_size=30), min_size=1, max_size=3),
    reason=st.text('ab <>tool_call/"', max_size=20).filter(lambda text: "think" not in text),
)
def test_rendered_calls_are_read_back_whatever_their_texts_say(contents, reason):
    calls = [{"name": "echo", "arguments": {"content": each}} for each in contents]
    blocks = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)
    spoken = {
        "hermes": f"<think>{reason}</think>{blocks}",
        "llama3": "; ".join(json.dumps({"name": c["name"], "parameters": c["arguments"]}) for c in calls),
        "openai": json.dumps([{"function": c | {"arguments": json.dumps(c["arguments"])}} for c in calls]),
        "python": f"[{', '.join(f'echo(content={each!r})' for each in contents)}]",
    }
    for name, text in spoken.items():
        parsed = parser(name)(text, TOOLS)
        assert parsed.outcome is MessageOutcome.CALLS, (name, parsed.detail)
        assert [json.loads(call.arguments_json)["content"] for call in parsed.calls] == contents


@settings(max_examples=300, deadline=None)
@given(st.text("abcdefgh ABC.,!?()[]{}:;'0123456789\n", max_size=80))
def test_prose_is_an_answer_in_every_format_that_knows_prose(text):
    prose = f"Well, {text}"
    for name in ("hermes", "llama3", "openai", "python"):
        assert parser(name)(prose, TOOLS).outcome is MessageOutcome.ANSWER, name


def test_an_openai_call_without_arguments_may_say_so_with_an_empty_text():
    parsed = parser("openai")('[{"function": {"name": "ls", "arguments": ""}}]', TOOLS)
    assert [(call.name, call.arguments_json) for call in parsed.calls] == [("ls", "{}")]


WORDS = [
    "Done",
    "File(s)",
    "(all)",
    "(3",
    "moved)",
    "[1]",
    "[Note]",
    "[",
    "]",
    "{",
    "}",
    "a=1",
    "x,",
    "e.g.",
    "(s)",
    "1",
    "it's",
    '"b"',
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["Done", "File(s)", "(all)", "[Note]", "[1]", "{a}", "I"]), st.lists(st.sampled_from(WORDS)))
def test_prose_with_brackets_anywhere_is_an_answer(first, words):
    prose = " ".join([first, *words, "so."])
    for name in ("hermes", "llama3", "openai", "python"):
        assert parser(name)(prose, TOOLS).outcome is MessageOutcome.ANSWER, name


@settings(max_examples=200, deadline=None)
@given(
    function=st.permutations([("name", "echo"), ("arguments", json.dumps({"content": "]}"}))]),
    call=st.permutations(["function", "id", "type", "index"]),
    message=st.permutations([("role", "assistant"), ("content", None), ("audio", None), ("tool_calls", None)]),
)
def test_the_order_of_the_keys_does_not_matter(function, call, message):
    values = {"function": dict(function), "id": "c", "type": "function", "index": 0}
    calls = [{key: values[key] for key in call}]
    bare = {key if key == "name" else "parameters": json.loads(v) if key != "name" else v for key, v in function}
    for name, spoken in (
        ("openai", calls),
        ("openai", {key: calls if key == "tool_calls" else value for key, value in message}),
        ("llama3", bare),
    ):
        parsed = parser(name)(json.dumps(spoken), TOOLS)
        assert [each.arguments_json for each in parsed.calls] == ['{"content":"]}"}'], (spoken, parsed.detail)


@pytest.mark.parametrize("end", ["", "\\", "</tool_call>", "\\</tool_call>"])
@pytest.mark.parametrize(
    ("name", "start"),
    [("hermes", '<tool_call>{"'), ("strict", '<tool_call>["'), ("llama3", '{"name": "'), ("openai", '{"content": "')],
)
def test_a_text_of_quotes_that_never_end_is_refused_in_time_proportional_to_its_length(name, start, end):
    before = time.process_time()
    parsed = parser(name)(start + '\\"' * 16_000 + end, TOOLS)
    assert parsed.outcome is MessageOutcome.PARSE_ERROR
    assert time.process_time() - before < 1.0
