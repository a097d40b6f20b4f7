"""What the trainer's loop works with, and the errors by which it stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from schemas import Event
from schemas.events import StageStarted, StepCompleted
from streams.log.port import Log
from streams.log.reader import EventReader
from trainer.config import TrainerConfig
from trainer.evaluation import Suite
from trainer.rollouts.episodes import NewEpisode
from trainer.rollouts.groups import MIN_VALID_FRAC, PlayedBy
from trainer.rollouts.sampler import Sampler, SamplingParams
from trainer.rollouts.staleness import Bound
from trainer.update.engine import Engine
from trainer.view import RunView
from trainer.weights.sync import WeightSync


class DigestMismatch(RuntimeError):
    """Learning a recorded step again gave other weights than the log says."""


class NothingCame(TimeoutError):
    """An event the trainer needs did not come in time; the text names it and who writes it."""


@dataclass(frozen=True, kw_only=True)
class PlayerSetup:
    """What whoever plays for a run works with: the trainer, or a rollout worker.

    Attributes:
        run_id: The run.
        seed: Master seed of the rollouts.
        config: Settings of the run.
        new_episode: A fresh episode of a task.
        log: Where events are written.
        reader: Where events of this run are heard, from the beginning.
        patience_s: How long to wait for an event before giving up, seconds.
        should_stop: Asked between units of work; True ends them early.
        format_hash: Hash of template, tokenizer and tool schemas; rollouts of another format are left out.
        stop_ids: Token ids that end a message; recorded with every rollout.
        max_steps: Last step of the run; 0 where only the epochs end it.
        min_valid_frac: Share of the rollouts of a group that must be valid for it to be learned from.
    """

    run_id: str
    seed: int
    config: TrainerConfig
    new_episode: NewEpisode
    log: Log
    reader: EventReader
    patience_s: float
    should_stop: Callable[[], bool] = lambda: False
    format_hash: str = ""
    stop_ids: frozenset[int] = frozenset()
    max_steps: int = 0
    min_valid_frac: float = MIN_VALID_FRAC

    @property
    def sampling(self) -> SamplingParams:
        """How the rollouts of a batch are sampled."""
        config = self.config
        return SamplingParams(
            self.seed, config.max_message_tokens, config.max_episode_tokens, config.temperature, config.top_p
        )

    @property
    def bound(self) -> Bound:
        """What may enter an update."""
        return Bound(
            self.config.max_staleness, self.config.stale_policy, self.format_hash, self.sampling.as_json(self.stop_ids)
        )

    def by(self, policy_version: int, attempt: int = 0, worker: str = "") -> PlayedBy:
        """What is recorded of rollouts that are played or closed here."""
        return PlayedBy(policy_version, attempt, worker, self.format_hash, self.sampling.as_json(self.stop_ids))


@dataclass(frozen=True, kw_only=True)
class TrainerSetup(PlayerSetup):
    """Everything the loop works with; its reader follows ``trainer.view.TOPICS``, or ``LIVE_TOPICS`` where workers play.

    Attributes:
        engine: Holds the weights.
        sampler: Plays with the same weights.
        suites: Held-out tasks to evaluate.
        tokenizer: Saved with every checkpoint.
        checkpoints: Folder of the checkpoints.
        next_stage: The curriculum stage that begins behind the last step of a stage, if one does.
        on_progress: Told (phase, finished rollouts, all rollouts).
        syncs: Where weights are brought to before anything is sampled from them.
        clock: Seconds, for deadlines.
        synthesis_wait_s: How much longer a plan may take, for an epoch that waits for the synthesizer, seconds.
    """

    engine: Engine
    sampler: Sampler
    suites: tuple[Suite, ...]
    tokenizer: PreTrainedTokenizerBase | None
    checkpoints: Path
    next_stage: Callable[[StepCompleted, RunView], StageStarted | None] = lambda done, view: None
    on_progress: Callable[[str, int, int], None] = lambda phase, finished, total: None
    syncs: tuple[WeightSync, ...] = ()
    clock: Callable[[], float] = time.monotonic
    synthesis_wait_s: float = 0.0

    def say(self, view: RunView, events: Sequence[Event]) -> None:
        """Write events and hear them."""
        if events:
            self.log.append(events)
            view.hear(events)
