"""The processes of a run: broker, archiver, pool worker, synthesizer, trainer; started, watched, stopped."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from commands.config import RunConfig
from commands.folder import RunFolder
from commands.roles.process import role_command, tell_end
from schemas.events import RunOutcome
from streams.archive.archiver import restore
from streams.archive.journal import clear, fill_in
from streams.archive.segments import ArchiveLog
from streams.health import PORT, PORT_FILE
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.topics import ensure_topics, partitions_of
from streams.processes import Child, ProcessFailed

READY_TIMEOUT_S = 90.0
POLL_S = 0.05
DRAIN_TIMEOUT_S = 120.0
PROCESSES = ("archiver", "worker", "synthesizer", "trainer")


class BrokerLost(ConnectionError):
    """The embedded broker died while the run went on."""


class Fleet(AbstractContextManager):
    """Everything that runs beside the view.

    Args:
        folder: the run's folder.
        config: its configuration.
        say: gets one sentence a milestone.
    """

    def __init__(self, folder: RunFolder, config: RunConfig, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.config = config
        self.say = say
        self.broker: EmbeddedBroker | None = None
        self.connection: Connection | None = None
        self.children: dict[str, Child] = {}
        self.restarts: dict[str, int] = {}
        self._scratch = Path(tempfile.mkdtemp(prefix="rods-run-"))

    def start(self, resume: bool) -> None:
        """Broker, topics, restored archive, then every process.

        Raises:
            BrokerNotStarted, LogUnavailable, UnsafeTopic, LogGap, ProcessFailed: with the reason.
        """
        if self.config.kafka.bootstrap_servers:
            self.connection = self.config.kafka.connection()
            ensure_topics(self.connection)
        else:
            self.start_broker(resume)
        for name in (*PROCESSES, *self.rollout_workers()):
            self.launch(name)
        self.await_ready()

    def await_ready(self) -> None:
        """Wait until every process listens; one that dies meanwhile is started again.

        Raises:
            BrokerLost: the embedded broker died meanwhile.
            ProcessFailed: a process is not ready in time, or died too often.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while waiting := [name for name in PROCESSES[:-1] if not self.ready_file(name).exists()]:
            self.watch()
            if time.monotonic() > deadline:
                child = self.children[waiting[0]]
                raise ProcessFailed(
                    f"{child.name} was not ready in {READY_TIMEOUT_S:.0f} s; see {child.log_path}\n{child.last_words()}"
                )
            time.sleep(POLL_S)

    def start_broker(self, restore_archive: bool) -> None:
        """A fresh embedded broker with our topics, filled from archive and journals if asked for."""
        self.broker = EmbeddedBroker(self.folder.logs / "broker.log", self.config.kafka.port).start()
        self.connection = self.config.kafka.connection(self.broker.bootstrap_servers)
        self.say(f"broker: embedded, on {self.broker.bootstrap_servers}")
        ensure_topics(self.connection)
        if restore_archive:
            log, archive = KafkaLog(self.connection), ArchiveLog(self.folder.archive, partitions_of(self.connection))
            num_restored, num_filled = restore(archive, log), fill_in(self.folder.journals, archive, log)
            self.say(f"archive: {num_restored} records restored, {num_filled} filled in from the journals")
            log.close()

    def recover(self) -> None:
        """The embedded broker died: end what hangs on it, restore a fresh one, start every process again."""
        for child in self.children.values():
            child.kill()
        self.broker.stop()
        self.start(resume=True)

    def rollout_workers(self) -> list[str]:
        """Names of the rollout workers of this machine; none while the trainer plays itself."""
        trainer = self.config.trainer
        num = trainer.workers.num_local if trainer.rollouts == "workers" else 0
        return [f"rollout-{number}" for number in range(num)]

    def ready_file(self, name: str) -> Path:
        """Written by a process when it listens."""
        return self._scratch / f"{name}.ready"

    def command(self, name: str) -> list[str]:
        """The command line of a process: `rods ROLE`, under ``torchrun`` for a trainer whose updates several processes share."""
        role, more = name, []
        if name == "trainer":
            role, more = "train", [self.folder.run_id]
        elif name.startswith("rollout-"):
            role, more = "rollout", [self.folder.run_id, "--name", name]
        elif name == "worker":
            more = ["--datadir", str(self._scratch / "faust"), "--app-id", self.connection.full_name("pool")]
        num, starter = self.config.trainer.num_processes, []
        if name == "trainer" and self.config.trainer.engine == "deepspeed" and num > 1:
            starter = ["-m", "torch.distributed.run", "--nproc-per-node", str(num), "--standalone"]
        more += ["--run-folder", str(self.folder.path), "--ready-file", str(self.ready_file(name))]
        return role_command(role, self.connection, *more, starter=starter)

    def launch(self, name: str) -> None:
        """Start one process; its ready file goes first."""
        self.ready_file(name).unlink(missing_ok=True)
        env = {
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONUNBUFFERED": "1",
            PORT: "0",
            PORT_FILE: str(self.folder.logs / f"{name}.port"),
        }
        self.children[name] = Child(name, self.command(name), self.folder.logs / f"{name}.log", env).start()

    def watch(self) -> bool:
        """Restart what crashed; returns whether the trainer has finished.

        Raises:
            BrokerLost: the embedded broker is gone.
            ProcessFailed: a process crashed more often than ``run.restarts`` allows.
        """
        if self.broker is not None and not self.broker.is_alive():
            self.count_restart("broker")
            raise BrokerLost(f"the embedded broker died, see {self.folder.logs / 'broker.log'}")
        for name, child in self.children.items():
            if child.is_alive():
                continue
            if name == "trainer" and child.exit_code == 0:
                return True
            if name.startswith("rollout-") and child.exit_code == 0:
                continue
            if self.count_restart(name) > self.config.run.restarts:
                self.give_up(name)
                continue
            self.say(f"{name} {child.ending} and is started again ({self.restarts[name]})")
            self.launch(name)
        return False

    def give_up(self, name: str) -> None:
        """What a process that crashes again and again ends: the run, or only itself while other rollout workers go on.

        Raises:
            ProcessFailed: with the last words of the process.
        """
        others = [other for other in self.rollout_workers() if other != name and self.children[other].is_alive()]
        if name not in self.rollout_workers() or not others:
            self.children[name].require_alive()
        if self.restarts[name] == self.config.run.restarts + 1:
            self.say(
                f"{name} crashed {self.restarts[name]} times and is not started again; {', '.join(others)} go on; "
                f"see {self.children[name].log_path}"
            )

    def count_restart(self, name: str) -> int:
        """How often a process was started again, this time included."""
        self.restarts[name] = self.restarts.get(name, 0) + 1
        return self.restarts[name]

    @property
    def may_recover(self) -> bool:
        """Whether the broker may be started once more."""
        return self.restarts.get("broker", 0) <= self.config.run.restarts

    def stop(self, outcome: RunOutcome | None = None, reason: str = "") -> None:
        """Writers first, then the archiver, which drains to the end of the log, then the broker.

        Args:
            outcome: how the run was left, if that is to be told.
            reason: why, in words.
        """
        for name in (*self.rollout_workers(), "trainer", "synthesizer", "worker"):
            if name in self.children:
                self.children[name].stop()
        broker_lives = self.broker is None or self.broker.is_alive()
        if outcome is not None and self.children and broker_lives:
            with suppress(LogUnavailable):
                tell_end(self.connection, self.folder.run_id, outcome, reason)
        if "archiver" in self.children:
            self.children["archiver"].stop(DRAIN_TIMEOUT_S if broker_lives else 5.0)
            if self.children["archiver"].exit_code == 0:
                clear(self.folder.journals)
        if self.broker is not None:
            self.broker.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or issubclass(kind, LogUnavailable):
            self.stop()
        elif issubclass(kind, KeyboardInterrupt):
            self.stop(RunOutcome.INTERRUPTED, "stopped by Ctrl-C or SIGTERM")
        else:
            self.stop(RunOutcome.FAILED, str(error).partition("\n")[0])
