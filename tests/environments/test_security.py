"""Hostile model output: nothing of it is executed, it costs next to nothing, and it ends as an error outcome."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import tracemalloc

import pytest

from environments.execution import execute, make_call
from environments.interface import EXECUTION_ERROR_PREFIX
from environments.parsing import BUILT_IN, parser
from environments.registry import environment, load_tasks
from schemas.events import MessageOutcome

BFCL = environment()
TASK = next(task for task in load_tasks("all") if "MathAPI" in task.involved_classes and len(task.involved_classes) > 1)
TOOLS = BFCL.tools(TASK)
MAX_PARSE_S, MAX_PARSE_BYTES = 0.05, 10_000_000
FORBIDDEN_EVENTS = frozenset(
    {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "open", "exec", "socket.connect"}
)
MODULES = ("os", "subprocess", "sys", "builtins", "shutil", "socket", "ctypes", "importlib", "pickle", "pty")
DUNDERS = ("__class__", "__globals__", "__subclasses__", "__mro__", "__dict__", "__builtins__", "__code__", "__init__")
LOOKALIKES = ("ｅｖａｌ", "ехec", "оs", "ﬁnd", "lѕ", "ｍean", "а", "𝐞𝐱𝐢𝐭", "e\u200bval", "cd\u202e")


def call_texts() -> list[str]:
    """More than two hundred hostile texts in call position."""
    texts = [f"__import__('{module}').system('id')" for module in MODULES]
    texts += [f"__import__('{module}')" for module in MODULES]
    texts += [f"importlib.import_module('{module}').run('id')" for module in MODULES]
    texts += [f"exec('import {module}')" for module in MODULES] + [f"eval('{module}.x()')" for module in MODULES]
    texts += [f"mean.{name}()" for name in DUNDERS] + [f"mean(numbers=[].{name})" for name in DUNDERS]
    texts += [f"().{name}.{name}[0]()" for name in DUNDERS] + [f"getattr(mean, '{name}')()" for name in DUNDERS]
    texts += [f"{name}()" for name in DUNDERS] + list(DUNDERS)
    texts += [
        f"cd(folder={inner})" for inner in ("exit()", "quit()", "open('/etc/passwd').read()", "globals()", "pwd()")
    ]
    texts += ["mean(numbers=" + "sum(" * depth + "1" + ")" * depth + ")" for depth in (1, 5, 50, 500)]
    texts += ["mean" + ".x" * depth + "()" for depth in (1, 5, 50, 5_000)]
    texts += [f"mean(numbers=f'{{{inner}}}')" for inner in ("exit()", "1", "mean.__globals__", "open(0)")]
    texts += [f"mean(numbers='{{0.{name}}}'.format(mean))" for name in DUNDERS]
    texts += [f"mean(numbers='%s' % {inner})" for inner in ("1", "exit()", "open(0)")]
    texts += [
        opening * depth + closing * depth for opening, closing in ("()", "[]", "{}") for depth in (50, 5_000, 50_000)
    ]
    texts += ["mean(numbers=" + "[" * depth + "]" * depth + ")" for depth in (20, 200, 2_000, 8_000)]
    texts += ["mean(numbers=" + sign * depth + "1)" for sign in ("-", "+", "~", "not ") for depth in (2, 200, 15_000)]
    texts += ["mean(numbers=" + "9" * digits + ")" for digits in (65, 4_000, 16_000, 100_000)]
    texts += [f"power(base=9{operator}9{operator}9)" for operator in ("**", "*", "<<", "//", "%", "@", "+", "-", "|")]
    texts += [
        f"power(base={number})"
        for number in ("1e999", "-1e999", "0x" + "f" * 90, "1j", "1_000", "inf", "nan", "0b1", "1e99999999")
    ]
    texts += [f"{name}(x=1)" for name in LOOKALIKES] + [f"mean({name}=1)" for name in LOOKALIKES]
    texts += [
        f"{name}()"
        for name in ("exit", "quit", "kill", "popen", "run", "unlink", "remove", "breakpoint", "input", "compile")
    ]
    texts += ["lambda: exit()", "(lambda: 1)()", "[exit() for x in [1]]", "{exit(): 1}", "x := exit()", "await exit()"]
    texts += [
        "mean(*[1])",
        "mean(**{'numbers': [1]})",
        "mean(numbers=...)",
        "mean(numbers=b'x')",
        "mean(numbers=r'x' 'y')",
    ]
    texts += [
        "mean(numbers=[1])\nexit()",
        "mean(numbers=[1]); exit()",
        "mean(numbers=[1]) or exit()",
        "mean\x00()",
        "mean(numbers='\x00')",
    ]
    texts += [
        "mean(numbers='" + "a" * 300_000 + "')",
        "mean(numbers='" + "\\" * 30_001 + "')",
        "mean(numbers='" + "\\'" * 16_000,
    ]
    return texts


ENVELOPES = {
    "compact": lambda name: f"<c>{name}{{}}</c>",
    "strict": lambda name: f"<think>x</think><tool_call>{json.dumps({'name': name, 'arguments': {}})}</tool_call>",
    "hermes": lambda name: f"<tool_call>{json.dumps({'name': name, 'arguments': {}})}</tool_call>",
    "llama3": lambda name: json.dumps({"name": name, "parameters": {}}),
    "openai": lambda name: json.dumps([{"function": {"name": name, "arguments": "{}"}}]),
    "python": lambda name: f"[{name}]",
}
PAYLOADS = {
    "depth": "[" * 20_000 + "]" * 20_000,
    "open brackets": "[" * 32_000,
    "open objects": '{"a":' * 6_000,
    "digits": "9" * 20_000,
    "exponent": "1e" + "9" * 500,
    "quotes": '"' + '\\"' * 16_000,
    "keys": "{" + ",".join(f'"k{index}":1' for index in range(3_000)) + "}",
    "long text": json.dumps("x" * 150_000),
    "surrogate": '"\\udfff"',
    "million": "x" * 1_000_000,
    "tags": "<tool_call>" * 10_000,
    "closing tags": "</think>" * 10_000,
}


@pytest.fixture(scope="module")
def audit_log():
    """Events of the interpreter that hostile text must not cause."""
    log: list[str] = []
    switch = {"on": False}

    def hook(event, arguments):
        if switch["on"] and event in FORBIDDEN_EVENTS:
            log.append(event)

    sys.addaudithook(hook)
    yield log, switch
    switch["on"] = False


def outcome_is_error(name: str, text: str) -> bool:
    parsed = parser(name)(text, TOOLS)
    if parsed.outcome is MessageOutcome.CALLS:
        state = BFCL.start(TASK)
        results = [execute(BFCL, state, call, TOOLS) for call in parsed.calls]
        return bool(results) and all(result.startswith(EXECUTION_ERROR_PREFIX) for result in results)
    return parsed.outcome is MessageOutcome.PARSE_ERROR


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_hostile_calls_end_as_errors_and_execute_nothing(name, audit_log):
    log, switch = audit_log
    texts = call_texts()
    assert len(set(texts)) >= 200
    outcome_is_error(name, ENVELOPES[name]("warm()"))
    switch["on"] = True
    with open(os.devnull):
        assert log == ["open"], "the log hears what happens"
    log.clear()
    accepted = [text[:80] for text in texts if not outcome_is_error(name, ENVELOPES[name](text))]
    switch["on"] = False
    assert accepted == []
    assert log == []


def timed(name: str, text: str):
    """The parsed message and the CPU seconds it took, without the garbage collector's own rounds."""
    parse = parser(name)
    gc.disable()
    try:
        start_s = time.thread_time()
        parsed = parse(text, TOOLS)
        return parsed, time.thread_time() - start_s
    finally:
        gc.enable()


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_hostile_messages_cost_next_to_nothing(name):
    messages = [ENVELOPES[name](text) for text in call_texts()]
    messages += list(PAYLOADS.values()) + [wrap_arguments(name, payload) for payload in PAYLOADS.values()]
    slow = []
    for message in messages:
        _, spent_s = timed(name, message)
        if spent_s > MAX_PARSE_S:
            slow.append((message[:60], spent_s))
    assert slow == []


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_hostile_messages_take_little_memory(name):
    messages = [ENVELOPES[name](text) for text in call_texts() if len(text) > 1_000]
    messages += [wrap_arguments(name, payload) for payload in PAYLOADS.values()]
    parse = parser(name)
    tracemalloc.start()
    try:
        for message in messages:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            parse(message, TOOLS)
            assert tracemalloc.get_traced_memory()[1] - before < MAX_PARSE_BYTES, message[:60]
    finally:
        tracemalloc.stop()


FLOODS = {
    "compact": "<c>a{}</c>" * 20_000,
    "strict": "<think>x</think><tool_call>[" + ",".join(['{"name":"a","arguments":{}}'] * 1_100) + "]</tool_call>",
    "hermes": '<tool_call>{"name":"a","arguments":{}}</tool_call>' * 4_000,
    "llama3": '{"name":"a","parameters":{}};' * 1_100,
    "openai": "[" + ",".join(['{"function":{"name":"a","arguments":"{}"}}'] * 700) + "]",
    "python": "[" + "a()," * 2_000 + "]",
}


@pytest.mark.parametrize("name", sorted(FLOODS))
def test_a_flood_of_calls_is_refused_before_they_are_read(name):
    parsed, spent_s = timed(name, FLOODS[name])
    assert spent_s < MAX_PARSE_S
    assert parsed.outcome is MessageOutcome.PARSE_ERROR


def wrap_arguments(name: str, payload: str) -> str:
    """The payload in the place of the arguments, unescaped."""
    call = '{"name":"mean","arguments":' + payload + "}"
    return {
        "compact": f"<c>mean{payload}</c>",
        "strict": f"<think>x</think><tool_call>{call}</tool_call>",
        "hermes": f"<tool_call>{call}</tool_call>",
        "llama3": call,
        "openai": f'[{{"function":{call}}}]',
        "python": f"mean(numbers={payload})",
    }[name]


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"python"}))
@pytest.mark.parametrize("payload", sorted(set(PAYLOADS) - {"keys"}))
def test_oversized_and_broken_arguments_are_parse_errors(name, payload):
    assert parser(name)(wrap_arguments(name, PAYLOADS[payload]), TOOLS).outcome is MessageOutcome.PARSE_ERROR


RUNAWAYS = [
    ("MathAPI", "power", {"base": 10, "exponent": 10**9}),
    ("MathAPI", "power", {"base": 9**40, "exponent": 9**40}),
    ("MathAPI", "power", {"base": -3, "exponent": 10**12}),
    ("MathAPI", "power", {"base": 1e300, "exponent": 1e300}),
    ("MathAPI", "logarithm", {"value": 2, "base": 3, "precision": 10**9}),
    ("MathAPI", "square_root", {"number": 2, "precision": 10**17}),
    ("MathAPI", "round_number", {"number": 5, "decimal_places": -(10**9)}),
    ("MathAPI", "multiply", {"a": 10**60, "b": 10**60}),
    ("MathAPI", "logarithm", {"value": 0, "base": 0, "precision": -5}),
    ("GorillaFileSystem", "tail", {"file_name": "log.txt", "lines": 10**18}),
    ("GorillaFileSystem", "find", {"path": "/" * 5_000, "name": "x"}),
    ("GorillaFileSystem", "cd", {"folder": "../" * 5_000}),
    ("MessageAPI", "search_messages", {"keyword": "a" * 30_000}),
    ("TradingBot", "get_transaction_history", {"start_date": "9" * 30_000}),
    ("TradingBot", "place_order", {"order_type": "Buy", "symbol": "AAPL", "price": 1e308, "amount": 10**40}),
]


@pytest.mark.parametrize(("owner", "name", "arguments"), RUNAWAYS)
def test_a_runaway_call_is_an_outcome(owner, name, arguments):
    task = next(task for task in load_tasks("all") if owner in task.involved_classes)
    state, tools = BFCL.start(task), BFCL.tools(task)
    tracemalloc.start()
    start_s = time.thread_time()
    result = execute(BFCL, state, make_call(name, arguments), tools)
    spent_s, (_, peak) = time.thread_time() - start_s, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(result, str) and len(result) < 100_000
    assert spent_s < 0.5 and peak < MAX_PARSE_BYTES


def test_a_file_tree_that_doubles_with_every_copy_stays_bounded():
    task = next(task for task in load_tasks("all") if "GorillaFileSystem" in task.involved_classes)
    state, tools = BFCL.start(task), BFCL.tools(task)
    execute(BFCL, state, make_call("mkdir", {"dir_name": "a"}), tools)
    execute(BFCL, state, make_call("mkdir", {"dir_name": "b"}), tools)
    start_s = time.thread_time()
    for _ in range(30):
        for source, destination in (("a", "b"), ("b", "a")):
            execute(BFCL, state, make_call("cp", {"source": source, "destination": destination}), tools)
            for path in (source, destination):
                execute(BFCL, state, make_call("mv", {"source": path, "destination": path + "x"}), tools)
                execute(BFCL, state, make_call("mv", {"source": path + "x", "destination": path}), tools)
        execute(BFCL, state, make_call("find", {}), tools)
        execute(BFCL, state, make_call("du", {}), tools)
    BFCL.digest(state)
    assert time.thread_time() - start_s < 2.0
