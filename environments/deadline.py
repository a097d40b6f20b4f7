"""A time bound on one tool call: a call that runs over is an outcome, not a hang.

A watchdog thread looks at the running calls and raises ``CallOverrun`` inside the thread of one that is late. This stops
Python code anywhere, in any thread; a single call into C code that never returns cannot be stopped from inside a process,
so tools bound the arguments of such calls (``environments/bfcl/guards.py`` does).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
CALL_LIMIT_S = 5.0
POLL_S = 0.02


class CallOverrun(BaseException):
    """Raised inside a late call; no tool is expected to catch it."""


@dataclass(slots=True)
class _Running:
    ends_at_s: float
    fired: bool = False


class CallWatchdog:
    """Runs functions under a time limit. One thread per process, started at first use, idle while nothing runs."""

    def __init__(self, limit_s: float = CALL_LIMIT_S) -> None:
        self.limit_s = limit_s
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[[], T], late: T) -> T:
        """The function's result, or ``late`` when it ran over the limit. Not re-entrant within one thread.

        Where the watchdog fires just as the function returns, the exception on its way is awaited here, so that it never
        reaches other code.
        """
        entry = _Running(time.monotonic() + self.limit_s)
        try:
            self._enter(entry)
            result = function()
            self._leave()
            while entry.fired:
                time.sleep(0)
            return result
        except CallOverrun:
            return late
        finally:
            self._leave()

    def _enter(self, entry: _Running) -> None:
        with self._lock:
            self._running[threading.get_ident()] = entry
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="call-deadline", daemon=True)
                self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    def _leave(self) -> None:
        with self._lock:
            self._running.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        while True:
            self._wake.wait()
            time.sleep(POLL_S)
            with self._lock:
                if not self._running:
                    self._wake.clear()
                now_s = time.monotonic()
                for ident, entry in self._running.items():
                    if now_s > entry.ends_at_s and not entry.fired:
                        entry.fired = True
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(CallOverrun))


WATCHDOG = CallWatchdog()
os.register_at_fork(after_in_child=WATCHDOG._reset)
