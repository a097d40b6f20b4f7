"""A run in memory whose rollouts workers play: its log, its trainer, its workers."""

from __future__ import annotations

from dataclasses import replace

from schemas import BY_NAME, TOPICS
from streams.log.port import MemoryLog, partition_counts
from streams.log.reader import EventReader
from tests.trainer.test_loop import CONFIG, RUN, planned_events
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model
from trainer.config import TrainerConfig
from trainer.rollouts.held_weights import FolderWeights
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.worker import RolloutWorker, WorkerSetup
from trainer.setup import TrainerSetup
from trainer.update.torch_engine import TorchEngine
from trainer.view import LIVE_TOPICS, WORKER_TOPICS
from trainer.weights.sync import FolderSync

PARTITIONS = partition_counts(TOPICS, 1, 3)


def worker_config(max_staleness: int = 0, **workers: object) -> TrainerConfig:
    """The loop tests' settings, with workers."""
    return CONFIG.model_copy(
        update={
            "rollouts": "workers",
            "max_staleness": max_staleness,
            "workers": CONFIG.workers.model_copy(update=workers),
        }
    )


def new_log(events=None) -> MemoryLog:
    """A log with what seeder and pool have said."""
    log = MemoryLog(PARTITIONS, clock=lambda: 1)
    log.append(list(planned_events()) if events is None else events)
    return log


def reader_of(log, topics) -> EventReader:
    """Events of the run from the beginning."""
    return EventReader(log, topics, PARTITIONS, RUN, "test")


def events_of(log, kind) -> list:
    """Events of one type in log order."""
    return [e for e in reader_of(log, [BY_NAME[kind.__name__].topic]).catch_up() if isinstance(e, kind)]


def trainer_of(log, folder, config=None, **values) -> TrainerSetup:
    """A trainer that lays its weights in a folder and waits for workers."""
    model, config = toy_model(), config or worker_config()
    return TrainerSetup(
        **{
            "run_id": RUN,
            "seed": 11,
            "config": config,
            "engine": TorchEngine(model, config),
            "sampler": HFSampler(model, ToyTemplate()),
            "new_episode": ToyEpisode,
            "suites": (),
            "tokenizer": None,
            "checkpoints": folder / "checkpoints",
            "log": log,
            "reader": reader_of(log, LIVE_TOPICS),
            "patience_s": 20.0,
            "syncs": (FolderSync(folder / "weights", None, 8),),
            "format_hash": "f",
            **values,
        }
    )


def worker_of(log, name="w0", config=None, **values) -> RolloutWorker:
    """A worker that follows the trainer's folder of weights."""
    return RolloutWorker(worker_setup(log, name, config, **values))


def worker_setup(log, name="w0", config=None, **values) -> WorkerSetup:
    """What a worker works with."""
    setup = WorkerSetup(
        run_id=RUN,
        name=name,
        config=config or worker_config(),
        seed=11,
        weights=FolderWeights(toy_model(seed=5), ToyTemplate()),
        new_episode=ToyEpisode,
        log=log,
        reader=reader_of(log, WORKER_TOPICS),
        format_hash="f",
    )
    return replace(setup, **values)
