"""TRL's side of ``benchmarks.grpo_step``: ``GRPOTrainer`` with a rollout function, as its documentation asks for.

TRL has no path for several user turns, so the episodes are driven by a rollout function, in the manner of TRL's own
tool loop: all live episodes generate one message with ``_generate_single_turn``, then every episode hears its answer,
and the next message is generated from the whole history. What a tool or user said is masked with ``env_mask``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, TrainerCallback

from benchmarks.grpo_workload import (
    MAX_EPISODE_TOKENS,
    MAX_MESSAGE_TOKENS,
    NUM_TASKS,
    Clock,
    K,
    Recorded,
    large_vocabulary_model,
    long_batch,
    peak_mib,
    scored,
    small_policy,
    tasks,
    tokenizer,
)
from schemas.events import FinishReason
from trainer.rollouts.episodes import EpisodeMaker

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
Rollout = Callable[[list, object], dict]


class Laps(TrainerCallback):
    """Times whole optimizer steps."""

    def __init__(self) -> None:
        self.clock, self.steps = Clock(), []

    def on_step_begin(self, *args: object, **kwargs: object) -> None:
        """A step begins with generating its batch."""
        self.clock.lap()

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """It ends behind the optimizer."""
        self.steps.append(self.clock.lap())


def run(
    model: PreTrainedModel, rollout: Rollout, prompts: list[str], num_steps: int, rows_at_once: int
) -> dict[str, object]:
    """Train some steps; per step CPU and wall seconds in all and without making the batch, and the last loss."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    laps, making = Laps(), []
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=num_steps,
            num_generations=K,
            per_device_train_batch_size=rows_at_once,
            gradient_accumulation_steps=len(prompts) * K // rows_at_once,
            max_completion_length=MAX_EPISODE_TOKENS,
            generation_kwargs={"max_new_tokens": MAX_MESSAGE_TOKENS},
            temperature=1.0,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            scale_rewards="none",
            loss_type="dapo",
            learning_rate=0.0,
            weight_decay=0.0,
            lr_scheduler_type="constant",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda prompts, completions, reward, **rest: reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer(),
            rollout_func=rollout,
            callbacks=[laps],
        )
        make_batch = trainer._generate_and_score_completions

        def timed(inputs: list) -> dict:
            clock = Clock()
            made = make_batch(inputs)
            making.append(clock.lap())
            return made

        trainer._generate_and_score_completions = timed
        trainer.train()
        log = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    rounds = [
        {"cpu_s": step[0], "wall_s": step[1], "update_cpu_s": step[0] - made[0], "update_wall_s": step[1] - made[1]}
        for step, made in zip(laps.steps, making, strict=True)
    ]
    return {"rounds": rounds[1:], "loss": log["loss"], "grad_norm": log["grad_norm"]}


def step(num_rounds: int, folder: Path) -> dict[str, object]:
    """Whole steps, rollouts in the simulators included."""
    policy = small_policy(folder)
    template, new_episode = policy.template, EpisodeMaker(policy.template.parser)
    policy.model.generation_config.eos_token_id = sorted(template.stop_ids)
    known = {task.task_id: task for task in tasks()}
    played: list[tuple] = []

    def rollout(prompts: list[str], trainer: object) -> dict:
        episodes = [new_episode(known[task_id]) for task_id in prompts]
        ids = [
            [*template.start_ids(known[task_id], tuple(e.offered.values())), *template.incoming_ids(e.incoming)]
            for task_id, e in zip(prompts, episodes, strict=True)
        ]
        masks = [[0] * len(shown) for shown in ids]
        starts = [len(shown) for shown in ids]
        while live := [i for i, episode in enumerate(episodes) if not episode.done]:
            messages, _ = trainer._generate_single_turn([ids[i] for i in live], None, {}, 1)
            for i, message in zip(live, messages, strict=True):
                _take(episodes[i], ids[i], masks[i], message, template)
        rewards = [episode.reward for episode in episodes]
        played.append((ids, masks, rewards))
        return _output(ids, masks, starts, rewards)

    found = run(policy.model, rollout, list(known), num_rounds + 1, K)
    for entry, (ids, *_) in zip(found["rounds"], played[1:], strict=True):
        entry["tokens"] = sum(len(each) for each in ids)
    ids, masks, rewards = played[-1]
    raw = Recorded([np.array(i, np.int32) for i in ids], [np.array(m, np.uint8) for m in masks], [], rewards)
    batch = scored(raw, small_policy(folder).model)
    batch.save(folder / "trl.npz")
    return {**found, **batch.facts}


def _take(episode: object, ids: list[int], mask: list[int], message: list[int], template: object) -> None:
    """One sampled message goes to its episode; what the environment answers is appended."""
    room = MAX_EPISODE_TOKENS - len(ids)
    ids += message[:room]
    mask += [1] * len(message[:room])
    if len(message) > room or message[-1] not in template.stop_ids:
        episode.cut(FinishReason.TOKEN_LIMIT)
        return
    episode.step(template.message_text(message))
    if episode.done:
        return
    shown = template.incoming_ids(episode.incoming)
    if len(ids) + len(shown) >= MAX_EPISODE_TOKENS:
        episode.cut(FinishReason.TOKEN_LIMIT)
        return
    ids += shown
    mask += [0] * len(shown)


def _output(ids: list[list[int]], masks: list[list[int]], starts: list[int], rewards: list[float]) -> dict:
    return {
        "prompt_ids": [each[:start] for each, start in zip(ids, starts, strict=True)],
        "completion_ids": [each[start:] for each, start in zip(ids, starts, strict=True)],
        "env_mask": [each[start:] for each, start in zip(masks, starts, strict=True)],
        "logprobs": None,
        "reward": rewards,
    }


def _replayed(batch: Recorded) -> Rollout:
    ids, masks = [i.tolist() for i in batch.ids], [m.tolist() for m in batch.masks]
    starts = [mask.index(1) for mask in masks]
    return lambda prompts, trainer: _output(ids, masks, starts, batch.rewards)


def update(num_rounds: int, folder: Path) -> dict[str, object]:
    """The update alone on recorded rollouts of the small policy."""
    batch = Recorded.load(folder / "ours.npz")
    prompts = [str(number) for number in range(NUM_TASKS)]
    return {**run(small_policy(folder).model, _replayed(batch), prompts, num_rounds + 1, K), **batch.facts}


def large_update(num_rounds: int, rows_at_once: int = 8) -> dict[str, object]:
    """The update alone under the large vocabulary; eight rows at once are TRL's default."""
    import datasets
    import trl  # noqa: F401

    before_mib = peak_mib() + 0 * len(datasets.__version__)
    found = run(large_vocabulary_model(), _replayed(long_batch()), ["0"], num_rounds + 1, rows_at_once)
    return {"before_mib": before_mib, **found, "peak_mib": peak_mib(), **long_batch().facts}
