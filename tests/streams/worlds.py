"""Random runs for property tests: settings, group sizes and rewards, missing and not finite ones included."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from hypothesis import strategies as st

from schemas import Event
from streams.pool.pool import Pool
from tests.streams.scripted import play

NUMBERS = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1))
REWARDS = st.one_of(NUMBERS, NUMBERS, NUMBERS, st.none(), st.sampled_from([float("nan"), float("inf"), float("-inf")]))
BOTH = st.booleans()


@dataclass(frozen=True)
class World:
    """What happens in a run, whoever asks and in whatever order.

    Attributes:
        num_seeds, num_epochs: size of the run.
        settings: of the pool.
        groups: rewards of a group; each task and step takes one of them.
        failing: which signals end in a failure, one bit for each of eight kinds of task.
    """

    num_seeds: int
    num_epochs: int
    settings: dict
    groups: tuple[tuple[float | None, ...], ...]
    failing: int

    def rewards_of(self, task_id: str, step: int) -> tuple[float | None, ...]:
        """The group of a task in a step."""
        return self.groups[zlib.crc32(f"{task_id}/{step}".encode()) % len(self.groups)]

    def fails(self, task_id: str) -> bool:
        """Whether the synthesis from a task fails."""
        return bool(self.failing >> zlib.crc32(task_id.encode()) % 8 & 1)

    def play(self, rng: random.Random | None = None) -> tuple[Pool, list[Event]]:
        """The run; with ``rng`` answers arrive in any order across topics, some again."""
        return play(self.num_seeds, self.num_epochs, self.settings, self.rewards_of, self.fails, rng)


@st.composite
def thresholds(draw: st.DrawFn) -> dict[str, float]:
    """alpha_low < alpha_high <= alpha_retire."""
    low, high = draw(st.integers(0, 8)), draw(st.integers(9, 20))
    return {"alpha_low": low / 20, "alpha_high": high / 20, "alpha_retire": draw(st.integers(high, 20)) / 20}


def settings_of(await_synthesis: st.SearchStrategy[bool]) -> st.SearchStrategy[dict]:
    """Pool settings; whether epochs wait for the synthesis is given."""
    categories = ("base", "miss_func", "miss_param", "long_context")
    others = st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 6),
            "min_valid_frac": st.sampled_from([0.5, 0.1, 1.0]),
            "signal": st.sampled_from(["progress", "binary"]),
            "selection": st.sampled_from(["phi", "random"]),
            "quota": st.fixed_dictionaries({name: st.sampled_from([1, 2, 3, 0]) for name in categories}),
            "cooldown": st.integers(0, 2),
            "cooldown_unit": st.sampled_from(["steps", "epochs"]),
            "seed_from_generated": st.booleans(),
            "max_generation": st.integers(1, 3),
            "max_generated": st.sampled_from([6, 3, 2, 1, 0]),
            "injection_frac": st.sampled_from([1.0, 0.5, 0.2, 0.0]),
            "queue_order": st.sampled_from(["fifo", "freshest"]),
            "queue_expiry_epochs": st.integers(0, 2),
            "retirement": st.sampled_from([True, True, False]),
            "burn_in_observations": st.integers(0, 2),
            "mastered_observations": st.integers(1, 2),
            "hard_observations": st.integers(1, 2),
            "stale_epochs": st.integers(0, 2),
            "static_pool": st.sampled_from([False] * 9 + [True]),
            "shuffle": st.booleans(),
            "await_synthesis": await_synthesis,
        }
    )
    return st.builds(lambda first, second: first | second, others, thresholds())


def worlds(await_synthesis: st.SearchStrategy[bool] = BOTH) -> st.SearchStrategy[World]:
    """Runs of up to six seeds and five epochs."""
    mixed = st.lists(REWARDS, min_size=1, max_size=6).map(tuple)
    even = st.builds(lambda reward, size: (reward,) * size, NUMBERS, st.integers(1, 4))
    group = st.one_of(even, mixed)
    return st.builds(
        World,
        num_seeds=st.sampled_from([4, 6, 2, 1, 5, 3]),
        num_epochs=st.sampled_from([5, 4, 3, 2, 1]),
        settings=settings_of(await_synthesis),
        groups=st.lists(group, min_size=5, max_size=10).map(tuple),
        failing=st.integers(0, 255),
    )
