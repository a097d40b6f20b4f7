"""How questions are written down: the text and the hash of a prompt. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from synthesizer.llm.model import Message


def prompt_text(messages: Sequence[Message]) -> str:
    """The messages as JSON."""
    return json.dumps([dict(message) for message in messages], ensure_ascii=False, separators=(",", ":"))


def prompt_hash(messages: Sequence[Message]) -> str:
    """SHA-256 of the messages, 64 hex digits."""
    return hashlib.sha256(prompt_text(messages).encode("utf-8", "replace")).hexdigest()
