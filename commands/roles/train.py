"""The trainer: opens a run in the log, then trains it to its end, from the start or from its last checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers.utils.logging import disable_progress_bar

from commands.config import ConfigError, RunConfig
from commands.folder import RunFolder
from commands.options import Broker, ConfigFile, OfRun, Overrides, ReadyFile
from commands.roles.process import Process, begin, tell_end, was_left
from commands.roles.sampling import of_trainer
from commands.tasks import heldout_tasks, training_tasks
from environments.registry import environment
from schemas import HELDOUT, Event, make
from schemas.events import RunOutcome, RunStarted, StageStarted, StepCompleted, Task, TaskSeeded
from streams.health import serve_if_asked
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from trainer import loop
from trainer.curriculum import StageOpening, StagePlan, first_opening, next_opening, planned_epochs
from trainer.evaluation import Suite
from trainer.policy.loading import Policy, load_model, load_policy
from trainer.policy.sampling_format import SamplingFormat, refuse_mismatch
from trainer.rollouts.episodes import EpisodeMaker
from trainer.setup import TrainerSetup
from trainer.trackers import TrackedLog, opened
from trainer.update.engines import engine_of, is_follower
from trainer.view import LIVE_TOPICS, TOPICS, RunView
from trainer.weights.digest import weights_digest

logger = logging.getLogger("rods.trainer")
ASSET = Path(__file__).parent.parent.parent / "trainer" / "assets" / "default-policy"
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "fastavro", "bfcl-eval")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


def train(
    run_id: Annotated[str, typer.Argument(envvar="RODS_RUN_ID", help="Id of the run; the same id goes on with it.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    connection: Broker = "",
    folder: OfRun = None,
    ready_file: ReadyFile = None,
) -> None:
    """Train one run to its end, from the start or from its last checkpoint; exit code 3 if it was stopped before."""
    process = begin(config, overrides, connection, folder, ready_file)
    if process.folder is None:
        found = run_folder(process.config, run_id)
        process = replace(process, folder=found, config=found.settings())
    serve_if_asked("trainer", os.environ)
    drives = not process.is_child and os.environ.get("RANK", "0") == "0"
    outcome = RunOutcome.FAILED
    with process.folder.lock() if drives else nullcontext():
        try:
            outcome = work(process)
        finally:
            error = sys.exception()
            if drives and outcome is not RunOutcome.COMPLETED and not isinstance(error, LogUnavailable):
                with suppress(LogUnavailable):
                    tell_end(process.connection, run_id, outcome, str(error) if error else "asked to stop")
    logger.info("%s", outcome.value)
    if outcome is not RunOutcome.COMPLETED:
        raise typer.Exit(3)


def run_folder(config: RunConfig, run_id: str) -> RunFolder:
    """The folder of a run that a stack's trainer drives; made on the first start, found again on the next.

    Raises:
        ConfigError: the id cannot be a folder's name.
    """
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"run id {run_id!r}: letters, digits, dots, hyphens and underscores, at most 81 (RODS_RUN_ID)"
        )
    folder = RunFolder((config.run.folder / run_id).resolve())
    return folder if folder.config_file.exists() else folder.create(config)


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
    tasks: Sequence[Task],
    opening: StageOpening,
    begun: Sequence[StageStarted] = (),
    first_step: int = 1,
) -> StageStarted:
    """The event of a curriculum stage, or of a further piece of one that has not converged, behind those begun so far."""
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
    return None if opening is None else stage_started(config, done.run_id, tasks, opening, begun, done.step + 1)


def opening(process: Process, policy: Policy, own: SamplingFormat, tasks: Sequence[Task]) -> list[Event]:
    """RunStarted, every seed, and the first stage."""
    config, run_id = process.config, process.folder.run_id
    started = make(
        RunStarted,
        run_id,
        config_json=config.as_json(),
        seed=config.run.seed,
        versions=installed_versions(config.tasks.environment),
        template_hash=own.template_hash,
        tokenizer_hash=own.tokenizer_hash,
        tool_schema_hash=own.tool_schema_hash,
        weights_digest=weights_digest(policy.model),
    )
    cause = started.event_id
    seeded = [make(TaskSeeded, run_id, caused_by=cause, task=task, position=at) for at, task in enumerate(tasks)]
    return [started, *seeded, stage_started(config, run_id, tasks, first_opening(stage_plans(config)))]


def work(process: Process) -> RunOutcome:
    """Open the run if the log does not hold it yet, or say once more that it is driven if it was left; then train."""
    config, folder, run_id = process.config, process.folder, process.folder.run_id
    trainer = config.trainer
    disable_progress_bar()
    policy = load_policy(policy_folder(config), **config.policy.spoken)
    reference = load_model(policy_folder(config)).eval() if trainer.kl_coef > 0 else None
    engine = engine_of(policy.model, trainer, reference)
    if is_follower(trainer):
        engine.follow()
        return RunOutcome.COMPLETED
    tasks, partitions = training_tasks(config), partitions_of(process.connection)
    with ExitStack() as closing:
        closing.callback(engine.close)
        producer, reading = process.producer("trainer"), KafkaLog(process.connection)
        closing.callback(reading.close)
        closing.callback(producer.close)
        log = TrackedLog(producer, opened(trainer.trackers, folder.path, run_id, json.loads(config.as_json())))
        closing.callback(log.close)
        events = EventReader(reading, ("runs", "tasks"), partitions, run_id).catch_up()
        heard = {event.event_id: event for event in events}
        own = SamplingFormat.of(policy.template, policy.tokenizer, tool_schema_hash(tasks))
        first = opening(process, policy, own, tasks)
        started = heard.get(first[0].event_id, first[0])
        refuse_mismatch(own, started, "trainer")
        log.append([event for event in first if event.event_id not in heard])
        if was_left(events):
            log.append([started])
        sampler, syncs = of_trainer(config, run_id, folder.path, policy)
        suite = Suite(HELDOUT, heldout_tasks(config), trainer.eval_rollouts) if trainer.eval_rollouts else None
        topics = LIVE_TOPICS if trainer.rollouts == "workers" else TOPICS
        setup = TrainerSetup(
            run_id=run_id,
            seed=config.run.seed,
            config=trainer,
            max_steps=config.pool.max_steps,
            min_valid_frac=config.pool.min_valid_frac,
            engine=engine,
            sampler=sampler,
            new_episode=EpisodeMaker(policy.template.parser),
            suites=(suite,) if suite else (),
            tokenizer=policy.tokenizer,
            checkpoints=folder.checkpoints,
            log=log,
            reader=EventReader(reading, topics, partitions, run_id, "trainer"),
            patience_s=trainer.patience_s,
            synthesis_wait_s=config.synthesis_wait_s,
            should_stop=process.stop.is_set,
            next_stage=lambda done, view: stage_after(done, view, config, tasks),
            syncs=syncs,
            format_hash=own.digest,
            stop_ids=policy.template.stop_ids,
        )
        process.ready()
        return loop.train(setup)
