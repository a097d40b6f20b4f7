"""A tool call has a time limit: a runaway is an outcome and never reaches other code."""

from __future__ import annotations

import threading
import time

from environments.deadline import CallWatchdog
from environments.execution import run_call
from environments.interface import EXECUTION_ERROR_PREFIX
from schemas.events import Call


def endless():
    while True:
        pass


def stubborn():
    while True:
        try:
            endless()
        except ArithmeticError:
            continue


def test_a_function_within_the_limit_returns_its_value():
    assert CallWatchdog(5.0).run(lambda: 7, 0) == 7


def test_an_endless_function_ends_with_the_late_value():
    start_s = time.monotonic()
    assert CallWatchdog(0.1).run(endless, "late") == "late"
    assert CallWatchdog(0.1).run(stubborn, "late") == "late"
    assert time.monotonic() - start_s < 5.0


def test_functions_that_end_near_the_limit_in_many_threads_never_leak_an_exception():
    watchdog = CallWatchdog(0.03)
    outcomes: list[str] = []

    def busy(seconds):
        ends_at = time.perf_counter() + seconds
        while time.perf_counter() < ends_at:
            pass
        return "ended"

    def work():
        for number in range(15):
            outcomes.append(watchdog.run(lambda seconds=0.02 + number * 1e-3: busy(seconds), "late"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 60 and set(outcomes) <= {"ended", "late"} and "late" in outcomes


class Careless:
    """A tool that breaks its promises."""

    def call(self, state, call):
        if call.name == "raise":
            raise ZeroDivisionError("by zero")
        if call.name == "flood":
            return "x" * 2_000_000
        return endless()


def test_a_careless_tool_gives_error_texts(monkeypatch):
    monkeypatch.setattr("environments.execution.WATCHDOG", CallWatchdog(0.1))
    for name, reason in (("raise", "by zero"), ("flood", "longer than"), ("hang", "ran longer than 0.1 s")):
        result = run_call(Careless(), None, Call(name=name, arguments_json="{}"))
        assert result.startswith(EXECUTION_ERROR_PREFIX) and reason in result
