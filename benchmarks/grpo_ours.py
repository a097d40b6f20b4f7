"""Our side of ``benchmarks.grpo_step``: the pieces the trainer's loop is made of, over a real broker."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.grpo_workload import (
    MAX_EPISODE_TOKENS,
    MAX_MESSAGE_TOKENS,
    SEED,
    Clock,
    K,
    Recorded,
    large_vocabulary_model,
    long_batch,
    peak_mib,
    scored,
    small_policy,
    tasks,
    train_config,
)
from schemas import Event, make
from schemas.events import BatchPlanned, RewardKind, StepCompleted, TrajectoryRecorded
from schemas.packed import unpack_ids, unpack_logprobs, unpack_mask
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.topics import ensure_topics
from trainer.rollouts.episodes import EpisodeMaker
from trainer.rollouts.groups import batch_metrics, groups_of, play_batch, update_batch_from_events
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import SamplingParams
from trainer.update.torch_engine import TorchEngine


class TimedLog:
    """Appends to a log and adds up what that took."""

    def __init__(self, log: KafkaLog) -> None:
        self._log, self.cpu_s, self.wall_s = log, 0.0, 0.0

    def append(self, events: Sequence[Event]) -> None:
        """Append and wait until all are acknowledged."""
        clock = Clock()
        self._log.append(events)
        cpu_s, wall_s = clock.lap()
        self.cpu_s += cpu_s
        self.wall_s += wall_s


def step(num_rounds: int, folder: Path) -> dict[str, object]:
    """Whole steps: rollouts in the simulators, their events, the update, its event, the digest of the weights."""
    with tempfile.TemporaryDirectory() as place, EmbeddedBroker(Path(place) / "broker.log") as broker:
        connection = Connection(broker.bootstrap_servers, True, prefix="bench.")
        ensure_topics(connection)
        return _steps(num_rounds, folder, TimedLog(KafkaLog(connection)))


def _steps(num_rounds: int, folder: Path, log: TimedLog) -> dict[str, object]:
    config, policy = train_config(), small_policy(folder)
    engine, sampler = TorchEngine(policy.model, config), HFSampler(policy.model, policy.template)
    known, new_episode = {task.task_id: task for task in tasks()}, EpisodeMaker(policy.template.parser)
    params = SamplingParams(SEED, MAX_MESSAGE_TOKENS, MAX_EPISODE_TOKENS)
    rounds = []
    for number in range(num_rounds + 1):
        plan = make(
            BatchPlanned,
            "bench",
            step=number + 1,
            epoch=0,
            task_ids=tuple(known),
            is_last_of_epoch=False,
            input_cursor=(),
        )
        log.cpu_s = log.wall_s = 0.0
        clock = Clock()
        bodies = play_batch(plan, known, K, sampler, params, new_episode)
        log.append(bodies)
        groups = groups_of(plan, bodies)
        log.append(groups)
        by_id = {body.trajectory_id: body for body in bodies}
        batch = update_batch_from_events(plan.step, groups, by_id, RewardKind.PROGRESS, normalise_std=False)
        metrics = {**batch_metrics(groups, by_id), **engine.update(batch)}
        log.append([_announcement(plan, engine, batch, groups, metrics)])
        cpu_s, wall_s = clock.lap()
        rounds.append(
            {
                "cpu_s": cpu_s,
                "wall_s": wall_s,
                "log_cpu_s": log.cpu_s,
                "log_wall_s": log.wall_s,
                "tokens": sum(len(body.mask) for body in bodies),
            }
        )
    played = recorded(bodies)
    played.save(folder / "ours.npz")
    return {"rounds": rounds[1:], "loss": metrics["loss"], **played.facts}


def _announcement(plan: BatchPlanned, engine: TorchEngine, batch: object, groups: list, metrics: dict) -> StepCompleted:
    return make(
        StepCompleted,
        "bench",
        step=plan.step,
        epoch=0,
        stage="full",
        policy_version=plan.step,
        weights_digest=engine.digest(),
        is_last_of_epoch=False,
        num_groups=batch.num_groups,
        num_zero_variance=batch.num_zero_variance,
        num_trajectories=len(batch.sequences),
        num_trained_tokens=batch.num_trained_tokens,
        group_ids=tuple(group.group_id for group in groups),
        metrics=metrics,
    )


def recorded(bodies: Sequence[TrajectoryRecorded]) -> Recorded:
    """Trajectories as both sides can learn from them."""
    return Recorded(
        [unpack_ids(body.token_ids) for body in bodies],
        [unpack_mask(body.mask) for body in bodies],
        [unpack_logprobs(body.logprobs) for body in bodies],
        [float(body.reward or 0.0) for body in bodies],
    )


def update(num_rounds: int, folder: Path) -> dict[str, object]:
    """The update alone on recorded rollouts of the small policy."""
    engine = TorchEngine(small_policy(folder).model, train_config())
    return _updates(num_rounds, engine, Recorded.load(folder / "ours.npz"))


def large_update(num_rounds: int) -> dict[str, object]:
    """The update alone under the large vocabulary."""
    before_mib = peak_mib()
    engine = TorchEngine(large_vocabulary_model(), train_config(packing=True, max_episode_tokens=4096))
    return {"before_mib": before_mib, **_updates(num_rounds, engine, scored(long_batch(), engine.model))}


def _updates(num_rounds: int, engine: TorchEngine, batch: Recorded) -> dict[str, object]:
    rounds = []
    for number in range(num_rounds + 1):
        clock = Clock()
        metrics = engine.update(batch.as_update(number + 1))
        cpu_s, wall_s = clock.lap()
        rounds.append({"cpu_s": cpu_s, "wall_s": wall_s})
    return {
        "rounds": rounds[1:],
        "loss": metrics["loss"],
        "grad_norm": metrics["grad_norm"],
        "peak_mib": peak_mib(),
        **batch.facts,
    }


def loss_on_theirs(folder: Path) -> float:
    """Our loss on rollouts the other side played."""
    played = Recorded.load(folder / "trl.npz")
    return TorchEngine(small_policy(folder).model, train_config()).update(played.as_update())["loss"]
