"""How an episode becomes token ids: the prompt formats and nothing else.

A template promises that an episode is one growing token sequence. The start is rendered once; every later
turn, tool result and sampled message is appended at token level and nothing already shown is rendered again,
so the ids a policy sampled are the ids it is trained on. Text that comes from a user or a tool can never
become a control token. Templates are pure: the same inputs give the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from environments.episode import Incoming
from environments.interface import ToolSchema
from environments.registry import environment
from schemas.events import Call, Task

USER, CALL, CALL_END, RESULT, END = "<u>", "<c>", "</c>", "<r>", "<e>"
UNAVAILABLE, RESTORED = "<w>", "<a>"
COMPACT_TOKENS = (USER, CALL, CALL_END, RESULT, END, UNAVAILABLE, RESTORED)
CUT_MARK = "..."


class Template(Protocol):
    """A prompt format bound to a tokenizer.

    Attributes:
        name: Name of the format.
        parser: Name of the parser in ``environments.parsing`` that reads its messages.
        stop_ids: Token ids that end an assistant message; the one sampled belongs to the message.
        digest: SHA-256 of the format, hexadecimal.
    """

    name: str
    parser: str
    stop_ids: frozenset[int]
    digest: str

    def start_ids(self, task: Task, offered: Sequence[ToolSchema]) -> list[int]:
        """Ids before the first user turn."""

    def incoming_ids(self, incoming: Sequence[Incoming]) -> list[int]:
        """Ids of what the policy is shown next, including the prompt for its next message."""

    def message_text(self, ids: Sequence[int]) -> str:
        """Text of one sampled message as the parser reads it."""


class Teaching(Template, Protocol):
    """A format in which reference messages can be written down, for supervised training."""

    def target_ids(self, calls: Sequence[Call]) -> list[int]:
        """Ids of the message that makes ``calls``; no calls is the message that ends the turn."""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _plain_encoder(backend: Tokenizer) -> Tokenizer:
    """A copy of the tokenizer that reads control tokens in a text as ordinary characters."""
    plain = Tokenizer.from_str(backend.to_str())
    plain.encode_special_tokens = True
    return plain


def cut(text: str, limit_chars: int) -> str:
    """``text``, or its first ``limit_chars`` characters and a mark that something is missing."""
    return text if len(text) <= limit_chars else text[:limit_chars] + CUT_MARK


class CompactTemplate:
    """The format of the small policies: one token for every role, no tool descriptions.

    ``<w>`` names that are not available, ``<u>`` user text, ``<c>NAME{json}</c>`` a call, ``<r>`` its result
    cut to ``result_limit_chars``, ``<a>`` names that became available, ``<e>`` end of turn.
    """

    name = "compact"
    parser = "compact"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, result_limit_chars: int = 120) -> None:
        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in COMPACT_TOKENS}
        absent = [token for token, id_ in ids.items() if id_ is None or id_ == tokenizer.unk_token_id]
        if absent:
            raise ValueError(f"the tokenizer has no {' '.join(absent)}: train it with trainer.policy.train_tokenizer")
        self._tokenizer = tokenizer
        self._plain = _plain_encoder(tokenizer.backend_tokenizer)
        self._ids = ids
        self._limit_chars = result_limit_chars
        self.stop_ids = frozenset((ids[CALL_END], ids[END]))
        self.digest = _digest({"name": self.name, "version": 1, "tokens": COMPACT_TOKENS, "limit": result_limit_chars})

    def _encode(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids

    def _marked(self, token: str, text: str) -> list[int]:
        return [self._ids[token], *self._encode(text)]

    def start_ids(self, task: Task, offered: Sequence[ToolSchema]) -> list[int]:
        """``<w>`` and the names of the task's functions that are not offered; empty when all are."""
        names = {schema.name for schema in offered}
        absent = [name for name in (*task.withheld_functions, *task.excluded_functions) if name not in names]
        return self._marked(UNAVAILABLE, " ".join(absent)) if absent else []

    def incoming_ids(self, incoming: Sequence[Incoming]) -> list[int]:
        """Each piece behind its role's token; the next token is the policy's ``<c>`` or ``<e>``."""
        return [id_ for piece in incoming for id_ in self._piece(piece)]

    def _piece(self, piece: Incoming) -> list[int]:
        if piece.kind == "tools_added":
            return self._marked(RESTORED, " ".join(piece.functions))
        if piece.kind == "tool":
            return self._marked(RESULT, cut(piece.text, self._limit_chars))
        return self._marked(USER, piece.text)

    def message_text(self, ids: Sequence[int]) -> str:
        """The message with its control tokens spelled out, as the compact grammar reads it."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def target_ids(self, calls: Sequence[Call]) -> list[int]:
        """``<c>NAME{json}</c>`` or ``<e>``; the grammar has one call a message, more raise ValueError."""
        if not calls:
            return [self._ids[END]]
        if len(calls) > 1:
            raise ValueError(f"the compact format makes one call a message, got {len(calls)}")
        return [*self._marked(CALL, calls[0].name + calls[0].arguments_json), self._ids[CALL_END]]


SYSTEM_TEXT = (
    "You solve the user's requests with the offered functions. Call functions as long as they are needed; "
    "when a request is done, or cannot be done with what you have, answer in a short sentence without a call."
)
_TEXT, _REPLY = "@@text@@", "@@reply@@"


def described(schema: ToolSchema) -> dict[str, object]:
    """A function as chat templates take it."""
    function = {"name": schema.name, "description": schema.description, "parameters": schema.parameters}
    return {"type": "function", "function": function}


class ChatTemplate:
    """Any tokenizer whose chat template takes tools (Qwen3 and Hermes style by default).

    The template is only ever asked for the text *between* two assistant messages, rendered around stand-in
    messages, so templates that rewrite earlier replies (dropping their reasoning, for one) cannot change what
    was already sampled. Raises ValueError when a template does not render in that order.
    """

    name = "chat"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        parser: str = "hermes",
        stop_ids: Iterable[int] = (),
        system_text: str = SYSTEM_TEXT,
        template_options: Mapping[str, object] | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {tokenizer.name_or_path!r} has no chat template")
        ids = {*stop_ids, tokenizer.eos_token_id} - {None}
        self._tokenizer = tokenizer
        self._plain = _plain_encoder(tokenizer.backend_tokenizer)
        self._special = tuple(sorted(token.content for token in tokenizer.added_tokens_decoder.values()))
        self._system_text = system_text
        self._options = dict(template_options or {})
        self._rendered: dict[tuple[str, ...], str] = {}
        self._restorable: dict[str, ToolSchema] = {}
        self.parser = parser
        self.stop_ids = frozenset(ids)
        self._stop_texts = tuple(tokenizer.convert_ids_to_tokens(id_) for id_ in sorted(ids))
        self.digest = _digest(
            {
                "name": self.name,
                "version": 1,
                "template": tokenizer.chat_template,
                "parser": parser,
                "system": system_text,
                "options": self._options,
                "stops": self._stop_texts,
            }
        )

    def _render(self, messages: Sequence[dict], tools: Sequence[dict] | None, prompt: bool) -> str:
        return self._tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            add_generation_prompt=prompt,
            tokenize=False,
            **self._options,
        )

    def _after_reply(self, rendered: str) -> str:
        """What follows the stand-in reply's stop token."""
        reply = rendered.find(_REPLY)
        ends = [(at, at + len(stop)) for stop in self._stop_texts if (at := rendered.find(stop, reply)) >= 0]
        if reply < 0 or not ends:
            raise ValueError(
                f"the chat template of {self._tokenizer.name_or_path!r} does not close a reply "
                f"with one of its stop tokens {self._stop_texts}: pass stop_ids"
            )
        return rendered[min(ends)[1] :]

    def start_ids(self, task: Task, offered: Sequence[ToolSchema]) -> list[int]:
        """The system message with the schemas of the offered functions."""
        if task.withheld_functions:
            tools = environment(task.environment).tools(task)
            self._restorable |= {name: tools[name] for name in task.withheld_functions}
        system, user = {"role": "system", "content": self._system_text}, {"role": "user", "content": _TEXT}
        rendered = self._render([system, user], [described(schema) for schema in offered], True)
        between = self._between(["user"])
        if not rendered.endswith(between):
            raise ValueError(
                f"the chat template of {self._tokenizer.name_or_path!r} renders a first user message "
                "unlike a later one; set an option that keeps tools in the system message"
            )
        return self._tokenizer.encode(rendered[: len(rendered) - len(between)], add_special_tokens=False)

    def _between(self, roles: Sequence[str]) -> str:
        """Rendered text from a reply's stop token to the next reply, with stand-ins for the texts."""
        key = tuple(roles)
        if key not in self._rendered:
            call = {"type": "function", "function": {"name": _REPLY, "arguments": {}}}
            spoken = {"content": "", "tool_calls": [call]} if roles[0] == "tool" else {"content": _REPLY}
            shown = [{"role": role, "content": _TEXT} for role in roles]
            start = [{"role": "user", "content": "."}, {"role": "assistant", **spoken}]
            self._rendered[key] = self._after_reply(self._render([*start, *shown], None, True))
        return self._rendered[key]

    def incoming_ids(self, incoming: Sequence[Incoming]) -> list[int]:
        """The messages as the chat template separates them, then its prompt for the next reply."""
        roles = ["tool" if piece.kind == "tool" else "user" for piece in incoming]
        parts = self._between(roles).split(_TEXT)
        if len(parts) != len(incoming) + 1:
            raise ValueError(f"the chat template of {self._tokenizer.name_or_path!r} lost a message of {roles}")
        ids: list[int] = []
        pending = parts[0]
        for piece, part in zip(incoming, parts[1:], strict=True):
            text = self._shown(piece)
            if any(token in text for token in self._special):
                ids += self._tokenizer.encode(pending, add_special_tokens=False)
                ids += self._plain.encode(text, add_special_tokens=False).ids
                pending = part
            else:
                pending += text + part
        return ids + self._tokenizer.encode(pending, add_special_tokens=False)

    def _shown(self, piece: Incoming) -> str:
        """The text of a piece; restored functions are described line by line before the note about them."""
        lines = [json.dumps(described(self._restorable[name]), ensure_ascii=False) for name in piece.functions]
        return "\n".join([*lines, piece.text])

    def message_text(self, ids: Sequence[int]) -> str:
        """The message without the stop token that ended it."""
        kept = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        return self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def target_ids(self, calls: Sequence[Call]) -> list[int]:
        """Hermes-style tool calls, or a short answer, closed by the first stop token."""
        texts = [
            f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments_json}}}\n</tool_call>'
            for call in calls
        ]
        text = "\n".join(texts) or "Done."
        stop = self._tokenizer.eos_token_id if self._tokenizer.eos_token_id in self.stop_ids else min(self.stop_ids)
        return [*self._tokenizer.encode(text, add_special_tokens=False), stop]
