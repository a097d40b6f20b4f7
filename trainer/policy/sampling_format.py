"""Under what a policy is shown and read: template, tokenizer, tool schemas. All processes of a run must agree on it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from schemas.events import RunStarted
from trainer.policy.loading import choose_template, tokenizer_digest
from trainer.policy.template import Template


class FormatMismatch(ValueError):
    """A process would sample or learn under another format than the run; the text names what differs."""


@dataclass(frozen=True, slots=True)
class SamplingFormat:
    """Three digests, as RunStarted holds them.

    Attributes:
        template_hash: Of the prompt format.
        tokenizer_hash: Of the tokenizer.
        tool_schema_hash: Of the schemas of every tool.
    """

    template_hash: str
    tokenizer_hash: str
    tool_schema_hash: str

    @classmethod
    def of(cls, template: Template, tokenizer: PreTrainedTokenizerBase, tool_schema_hash: str) -> SamplingFormat:
        """The format of a policy on given tools."""
        return cls(template.digest, tokenizer_digest(tokenizer), tool_schema_hash)

    @property
    def digest(self) -> str:
        """One digest of all three; recorded with every rollout."""
        text = "\x1f".join((self.template_hash, self.tokenizer_hash, self.tool_schema_hash))
        return hashlib.sha256(text.encode()).hexdigest()


def refuse_mismatch(own: SamplingFormat, started: RunStarted, who: str) -> None:
    """Check a process against the run it is about to take part in.

    Args:
        own: the format of the process.
        started: the run's opening.
        who: the process, for the text.

    Raises:
        FormatMismatch: with the first thing that differs, and both digests.
    """
    for name, hint in (
        ("template_hash", "prompt format"),
        ("tokenizer_hash", "tokenizer"),
        ("tool_schema_hash", "environment, its version or its tasks"),
    ):
        mine, theirs = getattr(own, name), getattr(started, name)
        if mine != theirs:
            raise FormatMismatch(
                f"{who}: {name} is {mine or 'empty'}, run {started.run_id} started with {theirs or 'none'}: "
                f"another {hint} than the run's"
            )


@dataclass(frozen=True, slots=True)
class _Says:
    """What of a model the choice of a template needs."""

    generation_config: GenerationConfig | None


def load_template(path: str | Path, **spoken: object) -> tuple[PreTrainedTokenizerBase, Template]:
    """Tokenizer and template of a checkpoint folder, without its weights; ``spoken`` as for ``choose_template``."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:
        generation = None
    return tokenizer, choose_template(_Says(generation), tokenizer, **spoken)
