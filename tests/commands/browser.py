"""A real browser without a screen: what it has drawn when the page stands."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=5000",
)


def browse(address: str, *flags: str) -> str:
    """Load a page in Chromium with a profile of its own and return its standard output."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [program, *FLAGS, f"--user-data-dir={profile}", *flags, address],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    return done.stdout


def drawn(address: str) -> str:
    """The document after scripts have run."""
    return browse(address, "--dump-dom")


def screenshot(address: str, path: Path) -> bytes:
    """A picture of the page."""
    browse(address, "--window-size=1400,2400", f"--screenshot={path}")
    return path.read_bytes()
