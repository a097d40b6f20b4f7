"""A rollout worker or a trainer of the toy run as a process of its own: ``python -m tests.trainer.worker_process``.

A worker may be told to stand still inside an episode as soon as it has written some bodies: it waits for a line from a
named pipe, so that a test can kill it or let it go on at exactly that point.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from schemas.events import TrajectoryRecorded
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from streams.processes import end_with_parent
from tests.trainer.test_loop import RUN
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model
from tests.trainer.workers import worker_config
from trainer.config import TrainerConfig
from trainer.loop import train
from trainer.rollouts.held_weights import FolderWeights
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.worker import RolloutWorker, WorkerSetup
from trainer.setup import TrainerSetup
from trainer.update.torch_engine import TorchEngine
from trainer.view import LIVE_TOPICS, WORKER_TOPICS
from trainer.weights.sync import FolderSync


class CountingLog:
    """Counts the bodies it passes on."""

    def __init__(self, log: KafkaLog) -> None:
        self._log, self.num_bodies = log, 0

    def append(self, events) -> None:
        self._log.append(events)
        self.num_bodies += sum(isinstance(event, TrajectoryRecorded) for event in events)


def standing_still(log: CountingLog, pipe: Path | None, num_bodies: int):
    """Episodes of which the first one to be stepped behind ``num_bodies`` bodies waits for the pipe."""
    passed = []

    class Waits(ToyEpisode):
        def step(self, text):
            if pipe is not None and log.num_bodies >= num_bodies and not passed:
                passed.append(True)
                Path(f"{pipe}.reached").write_text("")
                with pipe.open() as line:
                    line.read()
            return super().step(text)

    return Waits


def config_of(text: str) -> TrainerConfig:
    """The settings, with a deadline for groups."""
    return worker_config(group_deadline_s=float(text), max_attempts=5, groups_at_once=2)


def worker(options: argparse.Namespace, connection: Connection) -> None:
    """Play until the run is finished; the exit code says how many groups came too late."""
    log = CountingLog(KafkaLog(connection))
    reader = EventReader(KafkaLog(connection), WORKER_TOPICS, partitions_of(connection), RUN, options.name)
    playing = RolloutWorker(
        WorkerSetup(
            run_id=RUN,
            name=options.name,
            config=config_of(options.deadline_s),
            seed=11,
            weights=FolderWeights(toy_model(seed=5), ToyTemplate()),
            new_episode=standing_still(log, options.pipe, options.num_bodies),
            log=log,
            reader=reader,
            format_hash="f",
        )
    )
    playing.work()
    print(f"num_late {playing.num_late}", flush=True)


def trainer(options: argparse.Namespace, connection: Connection) -> None:
    """Train to the end."""
    model, config = toy_model(), config_of(options.deadline_s)
    train(
        TrainerSetup(
            run_id=RUN,
            seed=11,
            config=config,
            engine=TorchEngine(model, config),
            sampler=HFSampler(model, ToyTemplate()),
            new_episode=ToyEpisode,
            suites=(),
            tokenizer=None,
            checkpoints=options.folder / "checkpoints",
            log=KafkaLog(connection),
            reader=EventReader(KafkaLog(connection), LIVE_TOPICS, partitions_of(connection), RUN, "trainer"),
            syncs=(FolderSync(options.folder / "weights", None, 8),),
            format_hash="f",
            patience_s=200.0,
        )
    )


def main() -> None:
    """Read the command line."""
    end_with_parent(signal.SIGKILL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("worker", "trainer"))
    parser.add_argument("--connection", required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--name", default="w0")
    parser.add_argument("--pipe", type=Path)
    parser.add_argument("--num-bodies", type=int, default=0)
    parser.add_argument("--deadline-s", default="600")
    options = parser.parse_args()
    {"worker": worker, "trainer": trainer}[options.role](options, Connection.from_json(options.connection))


if __name__ == "__main__":
    main()
