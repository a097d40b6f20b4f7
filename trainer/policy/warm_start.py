"""The supervised start of a small policy: it imitates ground-truth traces of training seeds.

A trace is an episode played with the reference calls in the real environment, so what the policy learns to
answer is exactly what it will be shown in a rollout; the loss covers only the tokens the policy must produce.
Variants of the seeds (the same calls with other names and numbers) may be mixed in, which teaches reading the
arguments from the text. Held-out tasks are refused. The result is a function of config and tasks: one thread,
seeded generators, a fixed number of steps; it is cached under the digest of both.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedModel

from environments.episode import Episode
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from schemas.codec import as_record
from schemas.events import Task
from trainer.policy.causal_lm import CausalLM, halves
from trainer.policy.loading import PolicyConfig, build_policy, save_policy, tokenizer_digest
from trainer.policy.template import COMPACT_TOKENS, CompactTemplate, Teaching
from trainer.rollouts.live_episode import LiveEpisode
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.update.logprobs import Padded, padded
from trainer.weights.digest import weights_digest

MANIFEST = "manifest.json"
UNBOUNDED = SamplingParams(seed=0, max_message_tokens=2**31, max_episode_tokens=2**31)
RECIPE = 1
"""Raise when the same config and tasks would give other weights."""


class HeldOutTask(ValueError):
    """A task that is not a training seed was asked for."""


class WarmStartConfig(BaseModel):
    """Everything that decides the warm-started weights, and where they are cached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: PolicyConfig = Field(default_factory=PolicyConfig, description="Shape of the policy.")
    environment: str = Field("bfcl-v3", description="Environment the tasks are played in.")
    task_ids: tuple[str, ...] = Field((), description="Training seeds to imitate; empty means all of them.")
    num_steps: int = Field(600, ge=1, description="Supervised optimiser steps.")
    num_copy_steps: int = Field(400, ge=0, description="Optimiser steps on repeated random tokens before them.")
    batch_size: int = Field(8, ge=1, description="Episodes a supervised step.")
    seed_frac: float = Field(0.04, ge=0, le=1, description="Share of the seeds in a batch; the rest are variants.")
    lr: float = Field(2e-3, gt=0, description="Peak learning rate of AdamW.")
    copy_lr: float = Field(1e-3, gt=0, description="Learning rate of the copy warm-up.")
    num_warmup_steps: int = Field(50, ge=0, description="Steps of linear learning-rate warm-up.")
    final_lr_frac: float = Field(0.05, ge=0, le=1, description="Last learning rate as a share of the peak (cosine).")
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of AdamW.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm is clipped to this.")
    label_smoothing: float = Field(
        0.03,
        ge=0,
        lt=1,
        description="Probability mass the imitation leaves to all other "
        "tokens, so that the policy still explores when it is sampled.",
    )
    bf16_autocast: bool = Field(False, description="Forward pass in bfloat16; slower for models this small.")
    seed: int = Field(0, ge=0, description="Seed of batch order and copy warm-up.")
    cache_dir: Path = Field(Path(".cache/warm-start"), description="Folder of finished warm starts.")


@dataclass(frozen=True, eq=False)
class TeachingTrace:
    """One reference episode as tokens; ``mask_T`` is 1 where the policy must produce the token."""

    task_id: str
    ids_T: np.ndarray
    mask_T: np.ndarray


@dataclass(frozen=True)
class Progress:
    """Where a warm start is: ``phase`` is traces, copy, imitate or done; ``loss`` is the last step's."""

    phase: str
    step: int
    num_steps: int
    loss: float


OnProgress = Callable[[Progress], None]


def warm_start(config: WarmStartConfig, on_progress: OnProgress | None = None, variants: Sequence[Task] = ()) -> Path:
    """The checkpoint folder of a warm-started policy, from the cache when it was made before.

    ``variants`` are tasks made from training seeds. Raises ``HeldOutTask`` for an id, or a variant of one,
    outside the training split and ``ValueError`` when no reference episode can be made.
    """
    report = on_progress or (lambda progress: None)
    tasks = training_tasks(config)
    refuse_foreign(variants, config)
    data_digest = digest_of(tasks, variants)
    folder = config.cache_dir / cache_key(config, data_digest)
    if (folder / MANIFEST).exists():
        return folder
    with one_thread():
        model, tokenizer = build_policy(config.policy, texts_of([*tasks, *variants]))
        template = CompactTemplate(tokenizer)
        seeds = traces(tasks, template, config.environment, report)
        others = traces(variants, template, config.environment, report)
        if not seeds:
            raise ValueError("no ground truth of the chosen tasks earns the full reward: choose other task_ids")
        loss = _teach(model, config, seeds, others, report)
    manifest = {
        "command": "rods warm-start",
        "config": config.model_dump(mode="json", exclude={"cache_dir"}),
        "recipe": RECIPE,
        "data_digest": data_digest,
        "num_seed_traces": len(seeds),
        "num_variant_traces": len(others),
        "num_tokens_mean": round(sum(len(t.ids_T) for t in seeds) / len(seeds), 1),
        "final_loss": round(loss, 4),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "template_digest": template.digest,
        "tokenizer_digest": tokenizer_digest(tokenizer),
        "task_ids": [task.task_id for task in tasks],
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    _publish(folder, model, tokenizer, manifest)
    report(Progress("done", config.num_steps, config.num_steps, loss))
    return folder


def training_tasks(config: WarmStartConfig) -> tuple[Task, ...]:
    """The chosen training seeds in split order; an id outside the training split raises HeldOutTask."""
    tasks = load_tasks("train", config.environment)
    if not config.task_ids:
        return tasks
    unknown = sorted(set(config.task_ids) - {task.task_id for task in tasks})
    if unknown:
        raise HeldOutTask(
            f"not training seeds of {config.environment}: {', '.join(unknown)}; a warm start may only "
            "see the training split"
        )
    return tuple(task for task in tasks if task.task_id in config.task_ids)


def refuse_foreign(variants: Sequence[Task], config: WarmStartConfig) -> None:
    """HeldOutTask for a variant whose id does not begin with a training seed's, as lineage writes it (``seed~...``)."""
    known = {task.task_id for task in load_tasks("train", config.environment)}
    foreign = sorted(task.task_id for task in variants if task.task_id.partition("~")[0] not in known)
    if foreign:
        raise HeldOutTask(f"not variants of training seeds of {config.environment}: {', '.join(foreign)}")


def digest_of(tasks: Sequence[Task], variants: Sequence[Task]) -> str:
    """SHA-256 over everything the tasks say, hexadecimal."""
    rows = [[as_record(task) for task in group] for group in (tasks, variants)]
    return hashlib.sha256(json.dumps(rows, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def cache_key(config: WarmStartConfig, data_digest: str) -> str:
    """Folder name: 16 hex digits over recipe, config and data; the cache folder itself does not count."""
    value = [RECIPE, config.model_dump(mode="json", exclude={"cache_dir"}), data_digest]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def texts_of(tasks: Sequence[Task]) -> Iterator[str]:
    """What the tokenizer is trained on: user texts, calls and initial states."""
    for task in tasks:
        yield task.initial_config_json
        for turn in task.turns:
            yield turn.user_text
            yield from (call.name + call.arguments_json for call in turn.ground_truth)


def traces(
    tasks: Sequence[Task], template: Teaching, environment_name: str, report: OnProgress = lambda progress: None
) -> list[TeachingTrace]:
    """Reference episodes in the order of ``tasks``; those that do not earn the full reward are left out."""
    found = []
    for number, task in enumerate(tasks, 1):
        made = trace(task, template, environment_name)
        found += [made] if made else []
        report(Progress("traces", number, len(tasks), math.nan))
    return found


def trace(task: Task, template: Teaching, environment_name: str) -> TeachingTrace | None:
    """The episode in which the policy makes exactly the reference calls; None when it earns less than 1."""
    world = environment(environment_name)
    episode = Episode(world, task, parser(template.parser), Reference.of(world, task))
    live = LiveEpisode(RolloutRequest(task, episode, 0, ()), template, UNBOUNDED, UNBOUNDED.max_episode_tokens)
    for number, turn in enumerate(task.turns):
        for calls in [*((call,) for call in turn.ground_truth), ()]:
            if not live.is_over and episode.turn == number:
                ids = template.target_ids(calls)
                live.accept(live.ids, ids, [0.0] * len(ids), "stop", None)
    if not episode.done or live.error or episode.reward < 1:
        return None
    played = live.rollout()
    return TeachingTrace(task.task_id, played.token_ids, played.mask)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, so that sums have one order; the old number is restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _teach(
    model: PreTrainedModel,
    config: WarmStartConfig,
    seeds: Sequence[TeachingTrace],
    variants: Sequence[TeachingTrace],
    report: OnProgress,
) -> float:
    """Copy warm-up, then imitation; the model is changed in place and the last loss returned."""
    policy = halves(model.train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(config.seed)
    for step in range(config.num_copy_steps):
        batch = copy_batch(generator, model.config.vocab_size)
        loss = _update(policy, optimizer, batch, config.copy_lr * min(1.0, (step + 1) / 20), 0.0, config)
        report(Progress("copy", step + 1, config.num_copy_steps, loss))
    rng = random.Random(config.seed)
    for step in range(config.num_steps):
        drawn = draw(rng, seeds, variants, config.batch_size, config.seed_frac)
        batch = padded([item.ids_T for item in drawn], [item.mask_T for item in drawn], model.device)
        loss = _update(policy, optimizer, batch, learning_rate(step, config), config.label_smoothing, config)
        report(Progress("imitate", step + 1, config.num_steps, loss))
    model.eval()
    return loss


def draw(
    rng: random.Random, seeds: Sequence[TeachingTrace], variants: Sequence[TeachingTrace], num: int, seed_frac: float
) -> list[TeachingTrace]:
    """``num`` traces with replacement, each a seed with probability ``seed_frac`` (1 without variants)."""
    return [rng.choice(seeds if not variants or rng.random() < seed_frac else variants) for _ in range(num)]


def learning_rate(step: int, config: WarmStartConfig) -> float:
    """Linear warm-up, then cosine from ``lr`` to ``lr * final_lr_frac`` at the last step."""
    rise = min(1.0, (step + 1) / max(1, config.num_warmup_steps))
    fall = 0.5 * (1 + math.cos(math.pi * step / config.num_steps))
    return config.lr * rise * (config.final_lr_frac + (1 - config.final_lr_frac) * fall)


def copy_batch(generator: torch.Generator, vocab_size: int, *, num: int = 16, half: int = 64) -> Padded:
    """Random ids said twice, [num, 2 half]; only the second saying is to be predicted.

    Predicting it takes finding the token's first occurrence and reading what followed, the very circuit that
    copies an argument out of a user's text.
    """
    first = torch.randint(len(COMPACT_TOKENS) + 1, vocab_size, (num, half), generator=generator)
    mask = torch.zeros(num, 2 * half, dtype=torch.bool)
    mask[:, half + 1 :] = True
    return Padded(torch.cat([first, first], dim=1), mask)


def _update(
    policy: CausalLM,
    optimizer: torch.optim.Optimizer,
    batch: Padded,
    lr: float,
    label_smoothing: float,
    config: WarmStartConfig,
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = lr
    wanted_BT = batch.mask_BT[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.bf16_autocast):
        hidden_BTH = policy.decoder(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
        logits_NV = policy.head(hidden_BTH[:, :-1][wanted_BT])
    loss = F.cross_entropy(logits_NV.float(), batch.ids_BT[:, 1:][wanted_BT], label_smoothing=label_smoothing)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), config.max_grad_norm)
    optimizer.step()
    return loss.item()


def _publish(folder: Path, model: torch.nn.Module, tokenizer: object, manifest: dict) -> None:
    """Write beside the goal and rename, so that a folder with a manifest is always complete."""
    building = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    save_policy(model, tokenizer, building)
    text = json.dumps(manifest | {"weights_digest": weights_digest(model)}, indent=1, ensure_ascii=False)
    (building / MANIFEST).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
