"""Child processes that live and die with the run."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


class ProcessFailed(RuntimeError):
    """A child process ended or did not get ready; the text names it, its exit code and its log."""


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Ask the kernel to signal this process when its parent dies (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signum)


class Child:
    """One child process with its own log file.

    Args:
        name: what it is called in messages.
        command: argument list.
        log_path: gets its output.
        env: added to the environment.
    """

    def __init__(self, name: str, command: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self.env = dict(env or {})
        self.process: subprocess.Popen | None = None

    def start(self) -> Child:
        """Start it, in a session of its own so that Ctrl-C reaches only the parent."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                start_new_session=True,
            )
        return self

    @property
    def exit_code(self) -> int | None:
        """Exit code, or ``None`` while it runs."""
        return self.process.poll() if self.process else None

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        hint = " (SIGSEGV: a client crashes so when a topic that it reads is deleted)"
        return f"ended with exit code {self.exit_code}{hint if self.exit_code == -signal.SIGSEGV else ''}"

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def last_words(self, num_lines: int = 12) -> str:
        """The end of its log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-num_lines:])

    def require_alive(self) -> None:
        """Check that it runs.

        Raises:
            ProcessFailed: it does not.
        """
        if not self.is_alive():
            raise ProcessFailed(f"{self.name} {self.ending}; see {self.log_path}\n{self.last_words()}")

    def await_file(self, path: Path, timeout_s: float) -> None:
        """Wait until the process has written a file.

        Raises:
            ProcessFailed: it ended or did not write it in time.
        """
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            self.require_alive()
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"{self.name} was not ready in {timeout_s:.0f} s; see {self.log_path}\n{self.last_words()}"
                )
            time.sleep(0.02)

    def stop(self, timeout_s: float = 10.0, signum: int = signal.SIGTERM) -> None:
        """Ask it to stop; kill it if it does not in time."""
        if not self.is_alive():
            return
        self.process.send_signal(signum)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL and wait."""
        if self.is_alive():
            self.process.kill()
            self.process.wait(10.0)
