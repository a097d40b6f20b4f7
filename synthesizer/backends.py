"""Backends by name; each is imported when it is asked for."""

from __future__ import annotations

from synthesizer.backend import Backend
from synthesizer.config import SynthesisConfig


class UnknownBackend(ValueError):
    """There is no backend of that name; the text lists those there are."""


def backend_named(config: SynthesisConfig) -> Backend:
    """The backend that the settings name.

    Raises:
        UnknownBackend: there is none of that name.
    """
    if config.backend == "scripted":
        from synthesizer.scripted import ScriptedBackend

        return ScriptedBackend()
    raise UnknownBackend(f"synthesis.backend {config.backend!r} does not exist; there is: scripted")
