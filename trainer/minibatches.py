"""How a batch is cut: minibatches for optimizer steps, microbatches for memory. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.engine import TrainedSequence


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
