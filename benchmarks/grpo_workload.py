"""What both sides of ``benchmarks.grpo_step`` work on: the same policies, tasks, batches and settings.

Both learn from the mean-centred reward without dividing by the standard deviation, where the two definitions would
differ in a constant, with one optimizer step a batch, the clip range 0.2 / 0.28, no KL and no entropy term. The
learning rate is next to nothing: every part of a step is done, but the policy stays the same, so all rounds do the same
work.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from environments.registry import load_tasks
from schemas.events import Task
from trainer.config import TrainerConfig
from trainer.policy.causal_lm import halves
from trainer.policy.loading import Policy, load_policy
from trainer.policy.players import ASSET
from trainer.update.engine import TrainedSequence, UpdateBatch
from trainer.update.logprobs import padded, score

QUICK = "RODS_BENCH_QUICK"
"""Variable that, if set, makes everything small: it then shows only that both sides work and agree."""
IS_QUICK = bool(os.environ.get(QUICK))
K = 16
NUM_TASKS = 2 if IS_QUICK else 8
SEED = 7
MAX_MESSAGE_TOKENS, MAX_EPISODE_TOKENS = 96, 768
NUMBERS = (144, 45)
LARGE_VOCABULARY = 8_192 if IS_QUICK else 151_936
SHORTEST, LONGEST = (100, 200) if IS_QUICK else (512, 1024)
POLICY = "policy"


def train_config(**values: object) -> TrainerConfig:
    """Our settings."""
    return TrainerConfig(
        **{
            "group_size": K,
            "max_message_tokens": MAX_MESSAGE_TOKENS,
            "max_episode_tokens": MAX_EPISODE_TOKENS,
            "learning_rate": 1e-30,
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "num_minibatches": 1,
            "normalise_std": False,
            "dual_clip": float("inf"),
            **values,
        }
    )


def tasks() -> tuple[Task, ...]:
    """Eight training tasks, two of each category."""
    wanted = [
        f"multi_turn_{kind}_{number}"
        for number in NUMBERS
        for kind in ("base", "miss_func", "miss_param", "long_context")
    ]
    found = {task.task_id: task for task in load_tasks("train")}
    return tuple(found[task_id] for task_id in wanted[:NUM_TASKS])


def keep_policy(folder: Path) -> None:
    """Lay the shipped policy into a folder, so that all parts of a run take the same one."""
    shutil.copytree(ASSET, folder / POLICY)


def small_policy(folder: Path) -> Policy:
    """The shipped policy: 0.42 million parameters, 1,000 tokens."""
    return load_policy(folder / POLICY)


def large_vocabulary_model() -> PreTrainedModel:
    """Two layers of width 64 under a vocabulary of 151,936, random weights."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=LARGE_VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
        )
    ).eval()


@dataclass(frozen=True, eq=False)
class Recorded:
    """Played rollouts: token ids, masks, log-probabilities and rewards, group by group."""

    ids: list[np.ndarray]
    masks: list[np.ndarray]
    logprobs: list[np.ndarray]
    rewards: list[float]

    def save(self, path: Path) -> None:
        """Write an npz file."""
        np.savez(
            path,
            ids=np.concatenate(self.ids),
            masks=np.concatenate(self.masks),
            rewards=np.array(self.rewards),
            logprobs=np.concatenate(self.logprobs),
            lengths=np.array([len(ids) for ids in self.ids]),
        )

    @classmethod
    def load(cls, path: Path) -> Recorded:
        """Read it back."""
        stored = np.load(path)
        ends = np.cumsum(stored["lengths"])[:-1]
        parts = [np.split(stored[name], ends) for name in ("ids", "masks", "logprobs")]
        return cls(*parts, stored["rewards"].tolist())

    def as_update(self, step: int = 1) -> UpdateBatch:
        """As our engines take it."""
        sequences = []
        for number in range(len(self.ids) // K):
            group = slice(number * K, (number + 1) * K)
            mean = float(np.mean(self.rewards[group]))
            members = zip(self.ids[group], self.logprobs[group], self.masks[group], self.rewards[group], strict=True)
            sequences += [
                TrainedSequence(number, ids, logprobs, mask, reward - mean) for ids, logprobs, mask, reward in members
            ]
        return UpdateBatch(step, tuple(sequences), len(self.ids) // K, 0)

    @property
    def facts(self) -> dict[str, float]:
        """Sizes, for the report."""
        lengths = [len(ids) for ids in self.ids]
        return {
            "sequences": len(lengths),
            "tokens": sum(lengths),
            "tokens_max": max(lengths),
            "trained_tokens": int(sum(int(mask[1:].sum()) for mask in self.masks)),
        }


def long_batch() -> Recorded:
    """One group of K multi-turn rollouts of 512 to 1,024 random tokens over the large vocabulary, about a third of them
    sampled, in messages of 20 to 80 tokens between longer pieces of environment text."""
    rng = np.random.default_rng(SEED)
    ids, masks = [], []
    for _ in range(K):
        length = int(rng.integers(SHORTEST, LONGEST + 1))
        mask = np.zeros(length, np.uint8)
        at = int(rng.integers(SHORTEST // 5, SHORTEST // 3))
        while at < length:
            end = at + int(rng.integers(20, 81))
            mask[at:end] = 1
            at = end + int(rng.integers(60, 141))
        ids.append(rng.integers(2, LARGE_VOCABULARY, length).astype(np.int32))
        masks.append(mask)
    rewards = [float(reward) for reward in rng.integers(0, 5, K) / 4]
    return Recorded(ids, masks, [np.zeros(len(own), np.float32) for own in ids], rewards)


def scored(batch: Recorded, model: PreTrainedModel) -> Recorded:
    """The same rollouts with the log-probabilities a model gives them."""
    policy, logprobs = halves(model), []
    for ids, mask in zip(batch.ids, batch.masks, strict=True):
        with torch.no_grad():
            own_N = score(policy, padded([ids], [mask], policy.device)).logprobs_N.numpy()
        values = np.zeros(len(ids), np.float32)
        values[mask == 1] = own_N
        logprobs.append(values)
    return replace(batch, logprobs=logprobs)


def tokenizer() -> object:
    """The shipped policy's tokenizer; TRL wants one in every part."""
    return AutoTokenizer.from_pretrained(ASSET)


class Clock:
    """CPU and wall seconds of this process since the last lap."""

    def __init__(self) -> None:
        self.lap()

    def lap(self) -> tuple[float, float]:
        """(CPU, wall) seconds since the last lap."""
        now = time.process_time(), time.perf_counter()
        before, self._at = getattr(self, "_at", now), now
        return now[0] - before[0], now[1] - before[1]


def peak_mib() -> float:
    """Largest resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
