"""The folder of a run: what lies where, and the facts of a run from its archive."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from analysis.index import RunIndex
from commands.config import ConfigError, RunConfig, validated
from schemas import TOPICS
from streams.archive.segments import ArchiveLog
from streams.log.reader import EventReader

FACT_TOPICS = tuple(topic for topic in TOPICS if topic != "trajectories")
"""Topics of everything but bodies."""


class RunInUse(RuntimeError):
    """Another process drives this run."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``runs/<run_id>/`` with archive, checkpoints, logs, config and summary."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id is the folder's name."""
        return self.path.name

    @property
    def archive(self) -> Path:
        """Every topic as Avro container files."""
        return self.path / "archive"

    @property
    def journals(self) -> Path:
        """Write-ahead journals of the producers, on the embedded broker only."""
        return self.path / "journals"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of the trainer."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """One text file a process."""
        return self.path / "logs"

    @property
    def config_file(self) -> Path:
        """The resolved configuration as JSON."""
        return self.path / "config.json"

    @property
    def summary_file(self) -> Path:
        """The figures of the run."""
        return self.path / "summary.json"

    @property
    def report_file(self) -> Path:
        """The page about the run."""
        return self.path / "report.html"

    def create(self, config: RunConfig) -> RunFolder:
        """Make the folder and record the configuration."""
        for folder in (self.archive, self.checkpoints, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(json.dumps(json.loads(config.as_json()), indent=2) + "\n")
        return self

    def config(self) -> dict:
        """The recorded configuration.

        Raises:
            ConfigError: this is no run folder.
        """
        try:
            return json.loads(self.config_file.read_text())
        except FileNotFoundError as error:
            raise ConfigError(f"{self.path} is no run folder: {self.config_file.name} is missing") from error

    def settings(self) -> RunConfig:
        """The recorded configuration, typed.

        Raises:
            ConfigError: this is no run folder, or holds settings that this version does not know.
        """
        return validated(self.config(), str(self.config_file))

    def facts(self) -> RunIndex:
        """Every fact of the run that its archive holds."""
        archive = ArchiveLog(self.archive)
        topics = [topic for topic in FACT_TOPICS if topic in archive.partitions]
        return RunIndex().add(EventReader(archive, topics, archive.partitions, self.run_id).catch_up())

    def lock(self) -> IO:
        """Hold the run for this process; the file is released when it is closed.

        Raises:
            RunInUse: another process holds it.
        """
        handle = (self.path / "lock").open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            raise RunInUse(
                f"run {self.run_id} is driven by process {handle.read().strip() or '?'}; stop it first"
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        return handle

    def write_summary(self, summary: dict) -> None:
        """Write ``summary.json`` in one piece."""
        part = self.summary_file.with_suffix(".part")
        part.write_text(json.dumps(summary, indent=2) + "\n")
        part.replace(self.summary_file)


def find_run(name: str | None, folder: Path) -> RunFolder:
    """A run by id or path; the newest in the folder if no name is given.

    Raises:
        ConfigError: there is none.
    """
    if name:
        path = Path(name) if (Path(name) / "config.json").exists() else folder / name
        if not (path / "config.json").exists():
            raise ConfigError(f"no run {name!r}: neither {Path(name)} nor {folder / name} holds a config.json")
        return RunFolder(path.resolve())
    runs = sorted(folder.glob("*/config.json"), key=lambda file: (file.stat().st_mtime, str(file)))
    if not runs:
        raise ConfigError(f"no run in {folder}/")
    return RunFolder(runs[-1].parent.resolve())
