"""The trainer process of a run: opens the run in the log, then trains to its end."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from commands.config import RunConfig
from commands.process import ProcessContext, context_from_arguments
from commands.sampling import of_trainer
from commands.seeds import heldout_tasks, training_tasks
from environments.registry import environment
from schemas import Event, make
from schemas.events import RunOutcome, RunStarted, StageStarted, StepCompleted, Task, TaskSeeded
from streams.kafka_log import KafkaLog
from streams.log import LogGap, LogUnavailable
from streams.reader import EventReader
from streams.summary import HELDOUT
from streams.topics import partitions_of
from trainer.checkpoint import BrokenCheckpoint
from trainer.episodes import EpisodeMaker, UnplayableTask
from trainer.evaluation import Suite
from trainer.live_episode import NotWhatWasAsked
from trainer.loop import train
from trainer.policy import Policy, load_policy
from trainer.sampling_format import FormatMismatch, SamplingFormat, refuse_mismatch
from trainer.setup import DigestMismatch, NothingCame, TrainerSetup
from trainer.token_choice import NonFiniteLogits
from trainer.torch_engine import TorchEngine
from trainer.view import LIVE_TOPICS, TOPICS
from trainer.vllm_client import VllmError
from trainer.weight_sync import WeightSyncFailed
from trainer.weights import weights_digest

logger = logging.getLogger("rods.trainer")
ASSET = Path(__file__).parent.parent / "trainer" / "assets" / "default-policy"
FAILURES = (
    BrokenCheckpoint, DigestMismatch, FormatMismatch, LogGap, LogUnavailable, NonFiniteLogits, NotWhatWasAsked, NothingCame,
    UnplayableTask, VllmError, WeightSyncFailed,
)
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "fastavro", "bfcl-eval")


def policy_folder(config: RunConfig) -> str:
    """Where the model lies."""
    return str(ASSET) if config.policy.path == "default" else config.policy.path


def installed_versions(environment_name: str) -> dict[str, str]:
    """Versions that decide whether a run can be repeated."""
    found = {"python": platform.python_version(), environment_name: environment(environment_name).version}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["cpu"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return found


def tool_schema_hash(tasks: Sequence[Task]) -> str:
    """SHA-256 over the schemas of every tool of every seed."""
    tools = {}
    for task in tasks:
        for name, schema in environment(task.environment).tools(task).items():
            tools[f"{schema.owner}.{name}"] = [schema.description, schema.parameters]
    return hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()


def stage_started(config: RunConfig, run_id: str, ordinal: int, first_step: int, tasks: Sequence[Task]) -> StageStarted:
    """The event of one curriculum stage."""
    stage = config.stages[ordinal]
    first_epoch = sum(earlier.epochs for earlier in config.stages[:ordinal])
    return make(
        StageStarted, run_id, stage=stage.name, ordinal=ordinal, reward=stage.reward, synthesis=stage.synthesis,
        first_step=first_step, first_epoch=first_epoch, num_epochs=stage.epochs,
        task_ids=tuple(task.task_id for task in tasks if task.category.value in stage.categories),
    )


def stage_after(done: StepCompleted, config: RunConfig, tasks: Sequence[Task]) -> StageStarted | None:
    """The stage that begins behind the last step of an epoch, if one does."""
    ends = [sum(stage.epochs for stage in config.stages[: number + 1]) for number in range(len(config.stages))]
    if done.epoch + 1 not in ends[:-1]:
        return None
    return stage_started(config, done.run_id, ends.index(done.epoch + 1) + 1, done.step + 1, tasks)


def opening(context: ProcessContext, policy: Policy, tasks: Sequence[Task]) -> list[Event]:
    """RunStarted and every seed."""
    config, run_id = context.config, context.folder.run_id
    started = make(
        RunStarted, run_id, config_json=config.as_json(), seed=config.run.seed,
        versions=installed_versions(config.tasks.environment), template_hash=policy.template.digest,
        tokenizer_hash=hashlib.sha256(policy.tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        tool_schema_hash=tool_schema_hash(tasks), weights_digest=weights_digest(policy.model),
    )
    seeded = [make(TaskSeeded, run_id, caused_by=started.event_id, task=task, position=position)
              for position, task in enumerate(tasks)]
    return [started, *seeded]


def suites(config: RunConfig) -> tuple[Suite, ...]:
    """The fixed held-out evaluation."""
    if not config.trainer.eval_rollouts:
        return ()
    return (Suite(HELDOUT, heldout_tasks(config), config.trainer.eval_rollouts),)


def reference_policy(config: RunConfig, policy: Policy) -> object:
    """A frozen copy of the initial weights where the KL term needs one."""
    return load_policy(policy_folder(config)).model.eval() if config.trainer.kl_coef > 0 else None


def work(context: ProcessContext) -> RunOutcome:
    """Open the run if the log does not hold it yet, then train."""
    config, run_id = context.config, context.folder.run_id
    disable_progress_bar()
    policy = load_policy(policy_folder(config))
    tasks = training_tasks(config)
    log = context.producer("trainer")
    partitions = partitions_of(context.connection)
    heard = {event.event_id: event for event in EventReader(log, ("runs", "tasks"), partitions, run_id, "trainer").catch_up()}
    first = [*opening(context, policy, tasks), stage_started(config, run_id, 0, 1, tasks)]
    own = SamplingFormat(first[0].template_hash, first[0].tokenizer_hash, first[0].tool_schema_hash)
    refuse_mismatch(own, heard.get(first[0].event_id, first[0]), "trainer")
    log.append([event for event in first if event.event_id not in heard])
    sampler, syncs = of_trainer(config, run_id, context.folder.path, policy)
    topics = LIVE_TOPICS if config.trainer.rollouts == "workers" else TOPICS
    setup = TrainerSetup(
        run_id=run_id, seed=config.run.seed, num_epochs=sum(stage.epochs for stage in config.stages),
        config=config.trainer, engine=TorchEngine(policy.model, config.trainer, reference_policy(config, policy)),
        sampler=sampler, new_episode=EpisodeMaker(policy.template.parser),
        suites=suites(config), tokenizer=policy.tokenizer, checkpoints=context.folder.checkpoints, log=log,
        reader=EventReader(KafkaLog(context.connection), topics, partitions, run_id, "trainer"),
        should_stop=context.stop.is_set, next_stage=lambda done: stage_after(done, config, tasks),
        syncs=syncs, format_hash=own.digest, stop_ids=policy.template.stop_ids,
    )
    context.ready()
    return train(setup)


def main() -> None:
    """Entry of the process: exit code 0 when the run is complete, 3 when it was stopped."""
    context = context_from_arguments(__doc__)
    try:
        outcome = work(context)
    except FAILURES as error:
        logger.error("%s", error)
        raise SystemExit(1) from error
    logger.info("%s", outcome.value)
    raise SystemExit(0 if outcome is RunOutcome.COMPLETED else 3)


if __name__ == "__main__":
    main()
