"""How an episode becomes token ids: the prompt formats and nothing else.

A template promises that an episode is one growing token sequence. The start is rendered once; every later
turn, tool result and sampled message is appended at token level and nothing already shown is rendered again,
so the ids a policy sampled are the ids it is trained on. Text that comes from a user or a tool can never
become a control token. Templates are pure: the same inputs give the same ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from environments.episode import Incoming
from environments.interface import ToolSchema
from environments.parsing.blocks import THINK_OPEN
from environments.registry import environment
from schemas.events import Call, Task

USER, CALL, CALL_END, RESULT, END = "<u>", "<c>", "</c>", "<r>", "<e>"
UNAVAILABLE, RESTORED = "<w>", "<a>"
COMPACT_TOKENS = (USER, CALL, CALL_END, RESULT, END, UNAVAILABLE, RESTORED)
CUT_MARK = "..."
MARK = "\ufdd0"
"""Stands inside a text that spells a control token until it is encoded; Unicode keeps it out of all texts."""


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
        """Text of one sampled message as the parser reads it.

        Raises:
            UnknownToken: an id is none of the tokenizer's.
        """


class Teaching(Template, Protocol):
    """A format in which reference messages can be written down, for supervised training."""

    def target_ids(self, calls: Sequence[Call]) -> list[int]:
        """Ids of the message that makes ``calls``; no calls is the message that ends the turn."""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Encoder:
    """A tokenizer that makes control tokens from none of the texts it is told to take as plain.

    Args:
        tokenizer: the policy's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        added = sorted((token.content for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._added = re.compile("|".join(re.escape(token) for token in added if token.strip()) or "(?!)")

    def broken(self, text: str, mark: str) -> str:
        """The text with a mark inside everything that spells an added token, special or not; blanks control nothing."""
        while (found := self._added.search(text)) is not None:
            text = text[: found.start() + 1] + mark + text[found.start() + 1 :]
        return text

    def ids(self, text: str, mark: str, behind: str = "") -> list[int]:
        """Ids of a text as it stands behind a token; marks are left out, and nothing is merged over one.

        Args:
            text: with its control tokens spelled out.
            mark: see :meth:`broken`.
            behind: an added token; empty at the start of a sequence.
        """
        num_behind = 1 if behind else 0
        return [
            id_
            for part in text.split(mark)
            for id_ in self._backend.encode(behind + part, add_special_tokens=False).ids[num_behind:]
        ]


class UnknownToken(ValueError):
    """A sampled id that the tokenizer has no token for; the text names it."""


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of sampled ids, control tokens spelled out.

    Raises:
        UnknownToken: an id is none of the tokenizer's.
    """
    ids = list(ids)
    for id_, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if token is None:
            raise UnknownToken(
                f"id {id_} is no token of the tokenizer, which has {len(tokenizer)}: the model's vocabulary is larger"
            )
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


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
        self._encoder = Encoder(tokenizer)
        self._ids = ids
        self._limit_chars = result_limit_chars
        self.stop_ids = frozenset((ids[CALL_END], ids[END]))
        self.digest = _digest({"name": self.name, "version": 1, "tokens": COMPACT_TOKENS, "limit": result_limit_chars})

    def _marked(self, token: str, text: str) -> list[int]:
        return [self._ids[token], *self._encoder.ids(self._encoder.broken(text, MARK), MARK)]

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
        return decoded(self._tokenizer, ids)

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
_REPLY, _CALL_ID = "stand_in_reply", "call00000"
DATE = "2024-07-26"
"""The day that a template which asks for the date is told, unless an option says another one."""
_AWKWARD = ('He said "hi": {"a": [1]}\n', "  blank ends  ", "Füße {{ x }} {% y %}\r\n\t<b>&amp;</b>", "1", "")
_PROBE_TOOLS = tuple(
    ToolSchema(name=name, description="Finds a thing.", parameters={"type": "object", "properties": {}}, owner="Probe")
    for name in ("probe_first", "probe_second")
)


def _behind_a_reply(group: Sequence[tuple[str, str]]) -> tuple[list[dict], list[dict]]:
    """A user message, a stand-in reply and what follows it by (kind, text); and a tool, so that templates think of tools."""
    call = {"type": "function", "id": _CALL_ID, "function": {"name": _REPLY, "arguments": {}}}
    reply = {"role": "assistant", "content": _REPLY}
    if group[0][0] == "tool":
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    messages = [
        {"role": "tool", "content": text, "tool_call_id": _CALL_ID}
        if kind == "tool"
        else {"role": "user", "content": text}
        for kind, text in group
    ]
    return [{"role": "user", "content": "."}, reply, *messages], [described(_PROBE_TOOLS[0])]


def described(schema: ToolSchema) -> dict[str, object]:
    """A function as chat templates take it."""
    function = {"name": schema.name, "description": schema.description, "parameters": schema.parameters}
    return {"type": "function", "function": function}


class ChatTemplate:
    """Any tokenizer whose chat template takes tools (Qwen3 and Hermes style by default).

    The template is asked for the text *between* two assistant messages, rendered with the real texts behind a stand-in
    reply, so templates that rewrite earlier replies (dropping their reasoning, for one) cannot change what was already
    sampled. What is encoded stands behind the token that ended the reply, as in the whole conversation. Texts are broken
    apart where they spell an added token of the tokenizer, so that only the template's own ones become control tokens.

    Args:
        tokenizer: with a chat template.
        parser: how messages are read.
        stop_ids: ids that end a message, besides the tokenizer's end of sequence.
        system_text: the system message.
        template_options: values for the template. ``date`` (ISO) is what ``strftime_now`` tells, ``2024-07-26`` if not given.

    Raises:
        ValueError: there is no chat template.
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
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._system_text = system_text
        self.options = dict(template_options or {})
        self._tells_date = "strftime_now" in json.dumps(tokenizer.chat_template)
        if self._tells_date:
            self._require_day(self.options.setdefault("date", DATE))
        self._restorable: dict[str, ToolSchema] = {}
        self._opened: str | None = None
        self.parser = parser
        self.stop_ids = frozenset({*stop_ids, tokenizer.eos_token_id} - {None})
        self._stop_texts = tuple(tokenizer.convert_ids_to_tokens(id_) for id_ in sorted(self.stop_ids))
        self.digest = _digest(
            {
                "name": self.name,
                "version": 2,
                "template": tokenizer.chat_template,
                "parser": parser,
                "system": system_text,
                "options": self.options,
                "stops": self._stop_texts,
            }
        )

    def _require_day(self, date: object) -> None:
        try:
            datetime.fromisoformat(str(date))
        except ValueError as error:
            raise ValueError(f"template option date is {date!r}, not a day such as {DATE}") from error

    def _refusal(self, what: str) -> ValueError:
        return ValueError(f"the chat template of {self._tokenizer.name_or_path!r} {what}")

    def _render(self, messages: Sequence[dict], tools: Sequence[dict]) -> str:
        """The conversation up to the next reply, marks inside the texts that spell control tokens."""

        def broken(value: object) -> object:
            if isinstance(value, str):
                return self._encoder.broken(value.replace(MARK, ""), MARK)
            if isinstance(value, dict):
                return {broken(key): broken(each) for key, each in value.items()}
            return [broken(each) for each in value] if isinstance(value, list) else value

        options = dict(self.options)
        if self._tells_date:
            options["strftime_now"] = datetime.fromisoformat(str(options.pop("date"))).strftime
        try:
            return self._tokenizer.apply_chat_template(
                broken(list(messages)), tools=broken(list(tools)), add_generation_prompt=True, tokenize=False, **options
            )
        except TemplateError as error:
            raise self._refusal(f"cannot render a conversation with tools: {error}") from error

    def _after_reply(self, messages: Sequence[dict], tools: Sequence[dict]) -> tuple[str, str]:
        """What follows the stand-in reply of a conversation, and the stop token it follows."""
        rendered = self._render(messages, tools)
        reply = rendered.find(_REPLY)
        ends = [(at, stop) for stop in self._stop_texts if (at := rendered.find(stop, reply)) >= 0]
        if reply < 0:
            raise self._refusal("drops the calls of a reply: use a model that was trained to call tools")
        if not ends:
            raise self._refusal(f"does not close a reply with one of its stop tokens {self._stop_texts}: pass stop_ids")
        at, stop = min(ends)
        return rendered[at + len(stop) :], stop

    def start_ids(self, task: Task, offered: Sequence[ToolSchema]) -> list[int]:
        """The system message with the schemas of the offered functions."""
        if task.withheld_functions:
            tools = environment(task.environment).tools(task)
            self._restorable |= {name: tools[name] for name in task.withheld_functions}
        return self._start([described(schema) for schema in offered])

    def _start(self, tools: Sequence[dict]) -> list[int]:
        user = {"role": "user", "content": "."}
        rendered = self._render([{"role": "system", "content": self._system_text}, user], tools)
        between, _ = self._after_reply([user, {"role": "assistant", "content": _REPLY}, user], tools)
        if not rendered.endswith(between):
            raise self._refusal(
                "renders a first user message unlike a later one; set a template option that keeps tools in the system message (tools_in_user_message = false)"
            )
        return self._encoder.ids(rendered.removesuffix(between), MARK)

    def incoming_ids(self, incoming: Sequence[Incoming]) -> list[int]:
        """The messages as the chat template separates them, then its prompt for the next reply."""
        text, stop = self._after_reply(*_behind_a_reply([(piece.kind, self._shown(piece)) for piece in incoming]))
        return self._encoder.ids(text, MARK, stop)

    def _shown(self, piece: Incoming) -> str:
        """The text of a piece; restored functions are described line by line before the note about them."""
        lines = [json.dumps(described(self._restorable[name]), ensure_ascii=False) for name in piece.functions]
        return "\n".join([*lines, piece.text])

    def require_fit(self) -> None:
        """Compare what is shown piece by piece with the whole of a conversation of awkward texts.

        Raises:
            ValueError: the template shows no tools, drops calls or results, or a piece is encoded unlike in the whole; the
                text says which, and what to do.
        """
        tools, user = [described(schema) for schema in _PROBE_TOOLS], ("user", _AWKWARD[0])
        shown = self._render(
            [{"role": "system", "content": self._system_text}, {"role": "user", "content": "."}], tools
        )
        if not all(schema.name in shown for schema in _PROBE_TOOLS):
            raise self._refusal("does not show the tools it is given: use a model that was trained to call tools")
        conversation = [{"role": "system", "content": self._system_text}, {"role": "user", "content": user[1]}]
        start = self._start(tools)
        self._require_equal("the first user message", start + self._pieces([user]), conversation, tools, len(start))
        for group in ([("tool", text) for text in _AWKWARD], [user, user], [("tool", _AWKWARD[1])]):
            reply, *messages = _behind_a_reply(group)[0][1:]
            conversation += [reply, *messages]
            self._require_equal(f"a {group[0][0]} message", self._pieces(group), conversation, tools, 0)
        for token in self._tokenizer.added_tokens_decoder.values():
            for kind in ("user", "tool"):
                plain, spelled = (self._pieces([(kind, f"a{text}b")]) for text in ("x", token.content))
                if self._num_added(plain) != self._num_added(spelled):
                    raise self._refusal(f"lets a {kind} message say the control token {token.content!r}")

    def _pieces(self, group: Sequence[tuple[str, str]]) -> list[int]:
        return self.incoming_ids([Incoming(kind, text) for kind, text in group])

    def _num_added(self, ids: Sequence[int]) -> int:
        return sum(id_ in self._tokenizer.added_tokens_decoder for id_ in ids)

    def _require_equal(
        self, what: str, ids: list[int], conversation: Sequence[dict], tools: Sequence[dict], num_start: int
    ) -> None:
        whole = self._encoder.ids(self._render(conversation, tools), MARK)
        place = len(whole) - len(ids)
        if whole[max(place, 0) :] != ids or (place and (num_start or whole[place - 1] not in self.stop_ids)):
            raise self._refusal(
                f"encodes {what} by itself unlike in the whole conversation: "
                f"{self._tokenizer.decode(ids)!r} against the end of {self._tokenizer.decode(whole)!r}; set "
                "policy.template_options, or use another model"
            )

    def message_text(self, ids: Sequence[int]) -> str:
        """The message without the stop token that ended it, behind the ``<think>`` that the prompt for it may have opened."""
        if self._opened is None:
            prompts = (self._after_reply(*_behind_a_reply([(kind, ".")]))[0] for kind in ("user", "tool"))
            self._opened = THINK_OPEN if all(each.rstrip().endswith(THINK_OPEN) for each in prompts) else ""
        kept = ids[:-1] if len(ids) and ids[-1] in self.stop_ids else ids
        text = decoded(self._tokenizer, kept)
        return text if text.lstrip().startswith(THINK_OPEN) else self._opened + text

    def target_ids(self, calls: Sequence[Call]) -> list[int]:
        """Hermes-style tool calls, or a short answer, closed by the first stop token."""
        texts = [
            f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments_json}}}\n</tool_call>'
            for call in calls
        ]
        text = "\n".join(texts) or "Done."
        stop = self._tokenizer.eos_token_id if self._tokenizer.eos_token_id in self.stop_ids else min(self.stop_ids)
        return [*self._tokenizer.encode(text, add_special_tokens=False), stop]
