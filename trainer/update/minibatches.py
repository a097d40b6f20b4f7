"""How a batch is cut: minibatches for optimizer steps, microbatches for memory. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainer.config import ZeroVariance
from trainer.update.engine import TrainedSequence


class Chosen(NamedTuple):
    """What a step learns from, and how many groups were left out or repeated for it."""

    sequences: list[TrainedSequence]
    num_dropped: int
    num_refilled: int


def chosen(sequences: Sequence[TrainedSequence], policy: ZeroVariance) -> Chosen:
    """Apply the zero-variance policy, group by group; a group without signal has advantage 0 in every sequence.

    ``refill`` plays nothing. It repeats the groups with a signal in batch order, under new numbers, until there are as many
    groups as before, so that a step is cut into as many minibatches as if none had been dropped. Where no group has a signal
    nothing is left.
    """
    groups = list(dict.fromkeys(sequence.group for sequence in sequences))
    with_signal = {sequence.group for sequence in sequences if sequence.advantage != 0.0}
    if policy is ZeroVariance.KEEP:
        return Chosen(list(sequences), 0, 0)
    kept = [sequence for sequence in sequences if sequence.group in with_signal]
    num_dropped = len(groups) - len(with_signal)
    if policy is ZeroVariance.DROP or not kept:
        return Chosen(kept, num_dropped, 0)
    sources = [group for group in groups if group in with_signal]
    repeated = [
        replace(sequence, group=max(groups) + 1 + number)
        for number in range(num_dropped)
        for sequence in kept
        if sequence.group == sources[number % len(sources)]
    ]
    return Chosen([*kept, *repeated], num_dropped, num_dropped)


def minibatches(sequences: Sequence[TrainedSequence], num_minibatches: int) -> list[list[TrainedSequence]]:
    """Cut into at most ``num_minibatches`` runs of whole groups, in order and as even as possible.

    Sequences without a trained token are left out; there are never more minibatches than groups.
    """
    trained = [sequence for sequence in sequences if sequence.num_trained]
    groups = list(dict.fromkeys(sequence.group for sequence in trained))
    if not groups:
        return []
    parts = np.array_split(np.array(groups), min(num_minibatches, len(groups)))
    members = [set(part.tolist()) for part in parts]
    return [[sequence for sequence in trained if sequence.group in member] for member in members]


def microbatches(lengths_B: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices of sequences for each forward pass: similar lengths together, longest first.

    Args:
        lengths_B: tokens of every sequence.
        token_budget: most tokens of one pass with padding; a longer sequence gets a pass of its own.

    >>> microbatches([3, 9, 4, 2], 9)
    [[1], [2, 0], [3]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths_B)), key=lambda b: (-lengths_B[b], b)):
        last = batches[-1] if batches else None
        if last is not None and (len(last) + 1) * lengths_B[last[0]] <= token_budget:
            last.append(index)
        else:
            batches.append([index])
    return batches


def packs(lengths_B: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices of sequences for each forward pass that lays them end to end: longest first, into the first that fits.

    Args:
        lengths_B: tokens of every sequence.
        token_budget: most tokens of one pass; a longer sequence gets a pass of its own.

    >>> packs([3, 9, 4, 2], 9)
    [[1], [2, 0, 3]]
    """
    batches: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths_B)), key=lambda b: (-lengths_B[b], b)):
        place = next((number for number, room in enumerate(free) if room >= lengths_B[index]), None)
        if place is None:
            batches.append([])
            free.append(token_budget)
            place = len(free) - 1
        batches[place].append(index)
        free[place] -= lengths_B[index]
    return batches
