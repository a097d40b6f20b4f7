"""Plays a whole run in memory against the pure decider: pool, trainer and synthesizer as functions."""

from __future__ import annotations

import random
from collections.abc import Callable

from schemas import BY_NAME, Event
from streams.pool.decide import decide
from streams.pool.pool import Pool, apply, initial
from tests.streams.building import opening, reply


def play(
    num_seeds: int,
    num_epochs: int,
    settings: dict,
    mean_of: Callable[[str, int], float],
    fails: Callable[[str], bool] = lambda _: False,
    rng: random.Random | None = None,
) -> tuple[Pool, list[Event]]:
    """Pool and every event of a run, in the order in which it was said.

    With ``rng`` the answers arrive in any order across topics, and some are heard again.
    """
    pool, log = initial(), []
    waiting = opening(num_seeds, num_epochs, settings)
    while waiting:
        event = waiting.pop(next_to_arrive(waiting, rng))
        if rng is not None and log and rng.random() < 0.3:
            pool = apply(pool, rng.choice(log))
        pool, said = apply(pool, event), []
        log.append(event)
        for decided in decide(pool):
            pool = apply(pool, decided)
            log.append(decided)
            said.append(decided)
        for decided in said:
            waiting += reply(decided, mean_of, fails)
    return pool, log


def next_to_arrive(waiting: list[Event], rng: random.Random | None) -> int:
    """Position of the next event: the first one, or the first one of a random topic."""
    if rng is None:
        return 0
    topics = [BY_NAME[type(event).__name__].topic for event in waiting]
    return topics.index(rng.choice(sorted(set(topics))))


def of(log: list[Event], kind: type) -> list:
    return [event for event in log if isinstance(event, kind)]
