"""Backends and model clients by name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from synthesizer.backend import Backend
from synthesizer.config import SynthesisConfig
from synthesizer.llm.model import LanguageModel

BACKENDS = ("scripted", "llm", "hybrid")


class UnknownBackend(ValueError):
    """There is no backend of that name; the text lists those there are."""


def backend_named(
    config: SynthesisConfig, environ: Mapping[str, str] | None = None, model: LanguageModel | None = None
) -> Backend:
    """The backend that the settings name.

    Args:
        config: settings.
        environ: where an API key is looked up.
        model: answers instead of the one that the settings name.

    Raises:
        UnknownBackend: there is none of that name.
        synthesizer.llm.model.ModelRefused: the API key's variable is not set.
    """
    if config.backend not in BACKENDS:
        raise UnknownBackend(f"synthesis.backend {config.backend!r} does not exist; there are: {', '.join(BACKENDS)}")
    if config.backend == "scripted":
        from synthesizer.scripted import ScriptedBackend

        return ScriptedBackend()
    from synthesizer.llm.backend import HybridBackend, LlmBackend

    kind = LlmBackend if config.backend == "llm" else HybridBackend
    return kind(model or model_named(config, environ or {}), config)


def model_named(config: SynthesisConfig, environ: Mapping[str, str]) -> LanguageModel:
    """The model client that the settings name."""
    if config.llm.client == "vllm":
        from synthesizer.llm.in_process import InProcessModel

        return InProcessModel(config.llm)
    from synthesizer.llm.http import HttpModel

    return HttpModel(config.llm, environ)
