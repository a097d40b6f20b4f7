"""A consistent exchange of entities over initial state, user texts and arguments. Pure.

Text is changed in a single pass over non-overlapping pieces (dates, then words longest first, then numbers), so two
entities can swap places and nothing is replaced by half. An article before a replaced word is put right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from synthesizer.dates import ISO, dates_in, with_day
from synthesizer.grounding import in_text
from synthesizer.scripted.tables import ENTITY_CONTAINERS, FIXED_KEYS
from synthesizer.values import NUMBER, Path, Scalar, is_number, number_like, rendered, same, word_pattern

_ARTICLE = re.compile(r"\b(?P<article>[Aa]n?)(?P<gap>\s+['\"‘“`]?)$")
_SOUNDS_LIKE_CONSONANT = ("uni", "use", "usa", "eu", "one")


@dataclass(frozen=True)
class Substitution:
    """What becomes what.

    Attributes:
        words: Words, names, ids and whole sentences; everywhere.
        numbers: Amounts the user names; in texts and arguments.
        identities: Numeric ids; everywhere, in keys too.
        dates: ISO dates; everywhere, in any wording.
        overrides: New values of state fields by path in the old state.
        aliases: Old argument values that the user names in other words (an airport by its city).
        hidden_numbers: State quantities (field, old, new), for arguments computed from them.
        labels: What was changed, in words.
    """

    words: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[float, float] = field(default_factory=dict)
    identities: Mapping[int, int] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[Path, Scalar] = field(default_factory=dict)
    aliases: frozenset[Scalar] = frozenset()
    hidden_numbers: tuple[tuple[str, float, float], ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def moves_numbers(self) -> bool:
        """Whether any amount changed."""
        return bool(self.numbers) or any(not same(old, new) for _, old, new in self.hidden_numbers)

    def names(self, value: Scalar, text: str) -> bool:
        """Whether the user's text says this value, literally or in other words."""
        return value in self.aliases or in_text(value, text)

    def value(self, value: Scalar) -> Scalar:
        """An argument leaf after the exchange."""
        if is_number(value):
            return number_like(value, self._number(float(value), identities_too=True))
        if not isinstance(value, str):
            return value
        return self.text(value, {})

    def _number(self, value: float, identities_too: bool) -> float:
        if identities_too and value.is_integer() and int(value) in self.identities:
            return self.identities[int(value)]
        return next((new for old, new in self.numbers.items() if same(old, value)), value)

    def text(self, text: str, extra: Mapping[str, str]) -> str:
        """A text after the exchange; ``extra`` words win over this substitution's own."""
        pieces = self._pieces(text, {**self.words, **extra})
        for start, end, new in sorted(pieces, reverse=True):
            new, end = _joined(new, text, end) if text[start:end] != new else (new, end)
            before = _with_article(text[:start], new) if text[start:end] != new else text[:start]
            text = before + new + text[end:]
        return text

    def _pieces(self, text: str, words: Mapping[str, str]) -> list[tuple[int, int, str]]:
        pieces: list[tuple[int, int, str]] = []

        def add(start: int, end: int, new: str) -> None:
            if not any(start < other_end and other_start < end for other_start, other_end, _ in pieces):
                pieces.append((start, end, new))

        if words:
            for match in _pattern(tuple(words)).finditer(text):
                add(match.start(), match.end(), words[match.group()])
        if self.dates:
            for span in dates_in(text):
                new = next((new for old, new in self.dates.items() if span.means(old)), None)
                if new is not None:
                    add(span.start, span.end, with_day(text, span, int(new[-2:])))
        if self.numbers or self.identities:
            for span in dates_in(text):
                add(span.start, span.end, text[span.start : span.end])
            for match in NUMBER.finditer(text):
                old = float(match.group().replace(",", ""))
                new = self._number(old, identities_too=True)
                if not same(old, new):
                    add(match.start(), match.end(), rendered(match.group(), new))
        return pieces

    def state(self, config: dict) -> dict:
        """The initial state after the exchange; key order stays."""
        return self._state(config, ())

    def _state(self, value: object, path: Path) -> object:
        if path in self.overrides:
            return self.overrides[path]
        if isinstance(value, dict):
            return {self._key(key, path): self._state(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._state(item, (*path, index)) for index, item in enumerate(value)]
        if is_number(value) and float(value).is_integer():
            return self.identities.get(int(value), value)
        if isinstance(value, str) and (not path or path[-1] not in FIXED_KEYS):
            return self._state_text(value)
        return value

    def _state_text(self, value: str) -> str:
        if ISO.fullmatch(value):
            return self.dates.get(value, value)
        return Substitution(words=self.words, identities=self.identities, dates=self.dates).text(value, {})

    def _key(self, key: str, path: Path) -> str:
        if key.isdigit() and int(key) in self.identities and key == str(int(key)):
            return str(self.identities[int(key)])
        field_name = next((part for part in reversed(path) if isinstance(part, str)), "")
        is_entity = field_name in ENTITY_CONTAINERS or "inbox" in path
        return self.words.get(key, key) if is_entity else key


def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return re.compile("|".join(word_pattern(word) for word in longest_first))


def _joined(new: str, text: str, end: int) -> tuple[str, int]:
    """The new word as it stands before what follows: one full stop, one s of possession."""
    if new.endswith(".") and text[end : end + 1] == ".":
        return new[:-1], end
    if new.endswith("s") and re.match(r"['’]s\b", text[end:]):
        return new + text[end], end + 2
    return new, end


def _with_article(before: str, new: str) -> str:
    """Text before a replaced word, with "a" or "an" as the new word wants it."""
    match = _ARTICLE.search(before)
    if match is None or not new[:1].isalpha():
        return before
    wants_n = new[0].lower() in "aeiou" and not new.lower().startswith(_SOUNDS_LIKE_CONSONANT)
    if new[:2].isupper():
        wants_n = new[0] in "AEFHILMNORSX"
    article = match["article"][0] + ("n" if wants_n else "")
    return before[: match.start()] + article + match["gap"]
