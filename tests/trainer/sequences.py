"""Sequences as an engine is given them, sampled by nobody: random tokens scored by a model."""

from __future__ import annotations

import numpy as np
import torch

from tests.trainer.toys import NUM_IDS
from trainer.config import TrainerConfig
from trainer.policy.causal_lm import halves
from trainer.update.engine import TrainedSequence, UpdateBatch
from trainer.update.logprobs import padded, score


def some_sequences(model, seed=0, num_groups=3, advantages=(1.0, -0.5, 0.0, -0.5)):
    """Groups of four random sequences with the log-probabilities of the model."""
    rng = np.random.default_rng(seed)
    sequences = []
    for group in range(num_groups):
        for advantage in advantages:
            ids_T = rng.integers(0, NUM_IDS, rng.integers(8, 30)).astype(np.int32)
            mask_T = (rng.random(len(ids_T)) < 0.5).astype(np.uint8)
            mask_T[0], mask_T[-1] = 0, 1
            with torch.no_grad():
                own_N = score(halves(model), padded([ids_T], [mask_T], model.device)).logprobs_N
            logprobs_T = np.zeros(len(ids_T), np.float32)
            logprobs_T[mask_T == 1] = own_N
            sequences.append(TrainedSequence(group, ids_T, logprobs_T, mask_T, advantage))
    return sequences


def batch_of(sequences, step=1):
    return UpdateBatch(step, tuple(sequences), len({s.group for s in sequences}), 0)


def settings(**values):
    return TrainerConfig(**{"learning_rate": 1e-2, "warmup_steps": 0, "num_minibatches": 1, **values})


def logprob_of(model, sequence):
    with torch.no_grad():
        return score(halves(model), padded([sequence.token_ids], [sequence.mask], model.device)).logprobs_N.sum().item()
