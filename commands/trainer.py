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
from schemas import HELDOUT, Event, make
from schemas.events import RunOutcome, RunStarted, StageStarted, StepCompleted, Task, TaskSeeded
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from trainer.curriculum import Opening, StagePlan, first_opening, next_opening, planned_epochs
from trainer.evaluation import Suite
from trainer.loop import train
from trainer.policy.loading import Policy, load_policy
from trainer.policy.sampling_format import FormatMismatch, SamplingFormat, refuse_mismatch
from trainer.rollouts.episodes import EpisodeMaker, UnplayableTask
from trainer.rollouts.live_episode import NotWhatWasAsked
from trainer.rollouts.token_choice import NonFiniteLogits
from trainer.rollouts.vllm_client import VllmError
from trainer.setup import DigestMismatch, NothingCame, TrainerSetup
from trainer.trackers import TrackedLog, opened
from trainer.update.engines import EngineUnavailable, engine_of, is_follower
from trainer.view import LIVE_TOPICS, TOPICS, RunView
from trainer.weights.checkpoint import BrokenCheckpoint
from trainer.weights.digest import weights_digest
from trainer.weights.sync import WeightSyncFailed

logger = logging.getLogger("rods.trainer")
ASSET = Path(__file__).parent.parent / "trainer" / "assets" / "default-policy"
FAILURES = (
    BrokenCheckpoint,
    DigestMismatch,
    EngineUnavailable,
    FormatMismatch,
    LogGap,
    LogUnavailable,
    NonFiniteLogits,
    NotWhatWasAsked,
    NothingCame,
    UnplayableTask,
    VllmError,
    WeightSyncFailed,
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
    found["cpu"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {processor_name()}"
    return found


def processor_name() -> str:
    """The processor's model as the system names it: another one may give other last bits."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def tool_schema_hash(tasks: Sequence[Task]) -> str:
    """SHA-256 over the schemas of every tool of every seed."""
    tools = {}
    for task in tasks:
        for name, schema in environment(task.environment).tools(task).items():
            tools[f"{schema.owner}.{name}"] = [schema.description, schema.parameters]
    return hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()


def stage_plans(config: RunConfig) -> list[StagePlan]:
    """The configured curriculum."""
    return [StagePlan(stage.name, stage.epochs, stage.advance) for stage in config.stages]


def stage_started(
    config: RunConfig,
    run_id: str,
    opening: Opening,
    begun: Sequence[StageStarted],
    first_step: int,
    tasks: Sequence[Task],
) -> StageStarted:
    """The event of one curriculum stage, or of a further piece of one that has not converged.

    Args:
        config: the run's settings.
        run_id: the run.
        opening: which stage, under which name, for how many epochs.
        begun: stages begun so far.
        first_step: its first training step.
        tasks: every seed of the run.
    """
    stage = config.stages[opening.stage]
    return make(
        StageStarted,
        run_id,
        stage=opening.name,
        ordinal=len(begun),
        reward=stage.reward,
        synthesis=stage.synthesis,
        first_step=first_step,
        first_epoch=planned_epochs(begun),
        num_epochs=opening.num_epochs,
        task_ids=tuple(task.task_id for task in tasks if task.category.value in stage.categories),
    )


def stage_after(done: StepCompleted, view: RunView, config: RunConfig, tasks: Sequence[Task]) -> StageStarted | None:
    """What begins behind the last step of a stage, if anything does."""
    begun = tuple(view.stages.values())
    evaluations = [event for (suite, _), event in view.evaluations.items() if suite == HELDOUT]
    opening = next_opening(done, stage_plans(config), begun, evaluations, tuple(view.steps.values()))
    return None if opening is None else stage_started(config, done.run_id, opening, begun, done.step + 1, tasks)


def opening(context: ProcessContext, policy: Policy, tasks: Sequence[Task]) -> list[Event]:
    """RunStarted and every seed."""
    config, run_id = context.config, context.folder.run_id
    started = make(
        RunStarted,
        run_id,
        config_json=config.as_json(),
        seed=config.run.seed,
        versions=installed_versions(config.tasks.environment),
        template_hash=policy.template.digest,
        tokenizer_hash=hashlib.sha256(policy.tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        tool_schema_hash=tool_schema_hash(tasks),
        weights_digest=weights_digest(policy.model),
    )
    seeded = [
        make(TaskSeeded, run_id, caused_by=started.event_id, task=task, position=position)
        for position, task in enumerate(tasks)
    ]
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
    policy = load_policy(policy_folder(config), **config.policy.spoken)
    engine = engine_of(policy.model, config.trainer, reference_policy(config, policy))
    if is_follower(config.trainer):
        engine.follow()
        return RunOutcome.COMPLETED
    tasks = training_tasks(config)
    log = TrackedLog(
        context.producer("trainer"),
        opened(config.trainer.trackers, context.folder.path, run_id, json.loads(config.as_json())),
    )
    partitions = partitions_of(context.connection)
    heard = {
        event.event_id: event for event in EventReader(log, ("runs", "tasks"), partitions, run_id, "trainer").catch_up()
    }
    first = [
        *opening(context, policy, tasks),
        stage_started(config, run_id, first_opening(stage_plans(config)), (), 1, tasks),
    ]
    own = SamplingFormat(first[0].template_hash, first[0].tokenizer_hash, first[0].tool_schema_hash)
    refuse_mismatch(own, heard.get(first[0].event_id, first[0]), "trainer")
    log.append([event for event in first if event.event_id not in heard])
    sampler, syncs = of_trainer(config, run_id, context.folder.path, policy)
    topics = LIVE_TOPICS if config.trainer.rollouts == "workers" else TOPICS
    setup = TrainerSetup(
        run_id=run_id,
        seed=config.run.seed,
        config=config.trainer,
        max_steps=config.pool.max_steps,
        engine=engine,
        sampler=sampler,
        new_episode=EpisodeMaker(policy.template.parser),
        suites=suites(config),
        tokenizer=policy.tokenizer,
        checkpoints=context.folder.checkpoints,
        log=log,
        reader=EventReader(KafkaLog(context.connection), topics, partitions, run_id, "trainer"),
        patience_s=config.trainer.patience_s,
        should_stop=context.stop.is_set,
        next_stage=lambda done, view: stage_after(done, view, config, tasks),
        syncs=syncs,
        format_hash=own.digest,
        stop_ids=policy.template.stop_ids,
    )
    context.ready()
    try:
        return train(setup)
    finally:
        engine.close()
        log.close()


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
