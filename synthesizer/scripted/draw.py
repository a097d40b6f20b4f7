"""Collects the exchanges of one attempt and refuses those that would clash with each other or with the seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from synthesizer.scripted.substitution import Substitution
from synthesizer.scripted.tables import STATE_QUANTITIES
from synthesizer.scripted.view import SeedView
from synthesizer.values import Path, Scalar, has_word, is_number


class Draw:
    """A substitution in the making.

    Args:
        view: the seed.
        rng: seeded by signal and attempt; nothing else decides.
    """

    def __init__(self, view: SeedView, rng: random.Random) -> None:
        self.view = view
        self.rng = rng
        self.config = view.config
        self.words: dict[str, str] = {}
        self.numbers: dict[float, float] = {}
        self.identities: dict[int, int] = {}
        self.dates: dict[str, str] = {}
        self.overrides: dict[Path, Scalar] = {}
        self.aliases: set[Scalar] = set()
        self.labels: list[str] = []

    def word(self, old: str, new: str, label: str = "") -> bool:
        """Exchange a word everywhere; refused if one side is taken or the new word is in the seed already."""
        if old == new or old in self.words or not old or not new:
            return False
        if new in self.words.values() or self.view.knows(new):
            return False
        self.words[old] = new
        if label:
            self.labels.append(f"{label}: {old} -> {new}")
        return True

    def permutation(self, pairs: Iterable[tuple[str, str]], label: str) -> None:
        """Exchange words that may stand in the seed already; the caller makes the mapping one to one."""
        for old, new in pairs:
            if old != new and old not in self.words:
                self.words[old] = new
                self.labels.append(f"{label}: {old} -> {new}")

    def pick(self, old: str, pool: Sequence[str], label: str) -> str:
        """Exchange a word for one of a pool; empty if none fits."""
        for new in self.rng.sample(list(pool), len(pool)):
            if self.word(old, new, label):
                return new
        return ""

    def number(self, old: float, new: float, label: str) -> bool:
        """Exchange an amount that the user names; refused if either side is taken."""
        if old in self.numbers or new in self.numbers.values() or old == new:
            return False
        self.numbers[old] = new
        self.labels.append(f"{label}: {old:g} -> {new:g}")
        return True

    def identity(self, old: int, new: int, label: str) -> bool:
        """Exchange a numeric id everywhere."""
        if old in self.identities or old == new or has_word(str(new), self.view.state_text):
            return False
        self.identities[old] = new
        self.labels.append(f"{label}: {old} -> {new}")
        return True

    def override(self, path: Path, new: Scalar, label: str = "") -> None:
        """Set a state field."""
        self.overrides[path] = new
        if label:
            self.labels.append(f"{label}: {path[-1]} -> {new}")

    def touches(self, text: str) -> bool:
        """Whether a text holds a word that is exchanged already."""
        return any(has_word(old, text) for old in self.words)

    def substitution(self) -> Substitution:
        """The finished substitution."""
        return Substitution(
            dict(self.words),
            dict(self.numbers),
            dict(self.identities),
            dict(self.dates),
            dict(self.overrides),
            frozenset(self.aliases),
            self._hidden_numbers(),
            tuple(self.labels),
        )

    def _hidden_numbers(self) -> tuple[tuple[str, float, float], ...]:
        """Every quantity of the state, old and new."""
        return tuple(
            (str(path[-1]), float(value), float(self.overrides.get(path, value)))
            for path, value in self.view.state_leaves
            if path[-1] in STATE_QUANTITIES and is_number(value)
        )
