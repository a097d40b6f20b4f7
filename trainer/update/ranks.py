"""The processes that share one update, and how they divide it; a single process is the usual case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """Divides forward passes among processes and brings results together."""

    def share(self, passes: Sequence[T]) -> list[tuple[T, bool]]:
        """What this process runs, and whether the result counts; every process runs equally many."""
        ...

    def merged(self, found: Mapping[int, T]) -> dict[int, T]:
        """The results of all processes."""
        ...


class SingleRank:
    """One process: everything is its own."""

    def share(self, passes: Sequence[T]) -> list[tuple[T, bool]]:
        """All passes."""
        return [(each, True) for each in passes]

    def merged(self, found: Mapping[int, T]) -> dict[int, T]:
        """The same."""
        return dict(found)


SINGLE_RANK = SingleRank()


def shares(passes: Sequence[T], rank: int, size: int) -> list[tuple[T, bool]]:
    """The passes of one rank: every ``size``-th; where there are too few it runs the first one without effect.

    >>> shares(["a", "b", "c"], 1, 2)
    [('b', True), ('a', False)]
    """
    own: list[tuple[T, bool]] = [(each, True) for each in passes[rank::size]]
    num_each = -(-len(passes) // size)
    return own + [(first, False) for first in passes[:1]] * (num_each - len(own))
