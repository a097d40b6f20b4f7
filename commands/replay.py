"""``rods replay``: decide, learn and play a recorded run again, and say where the first difference is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from commands.config import ConfigError, RunConfig, validated
from commands.folder import RunFolder, find_run
from schemas.events import RunFinished, RunStarted
from streams.archive import ArchiveLog
from streams.connection import Connection
from streams.fork import ForkMode
from streams.kafka_log import KafkaLog
from streams.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from streams.log import Log, LogGap, advanced
from streams.observer import Observer
from streams.replay import Divergence, Recording, Repetition
from streams.topics import partitions_of

EQUAL, DIFFERS, TOLERANCE, SKIPPED = "equal", "differs", "tolerance", "skipped"
WEIGHT_TOLERANCE = 1e-4


@dataclass(slots=True)
class Report:
    """What a replay found.

    Attributes:
        verdicts: by part: equal, differs, tolerance or skipped.
        divergence: the first difference of each part that has one.
        notes: in words.
        counts: how much was compared, by part.
    """

    verdicts: dict[str, str] = field(default_factory=dict)
    divergence: dict[str, Divergence] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether every part that was asked for is equal, bit for bit."""
        return all(verdict in (EQUAL, SKIPPED) for verdict in self.verdicts.values())

    def set(self, part: str, difference: Divergence | None, count: int, note: str = "") -> None:
        """Record a part's outcome."""
        self.verdicts[part] = EQUAL if difference is None else DIFFERS
        self.counts[part], self.notes[part] = count, note
        if difference is not None:
            self.divergence[part] = difference


@dataclass(frozen=True, slots=True)
class Source:
    """Where a recorded run is read from."""

    folder: RunFolder
    config: RunConfig
    log: Log
    partitions: dict[str, int]

    def reader(self, topics: tuple[str, ...]) -> Observer:
        """Events of the run from the beginning; a broken record is passed over here and named by the decisions part."""
        return Observer(self.log, topics, self.partitions, self.folder.run_id)


def source_of(name: str | None, runs: Path, bootstrap_servers: str) -> Source:
    """The archive of a run folder, or the topics of a broker."""
    folder = find_run(name, runs)
    config = validated(folder.config(), str(folder.config_file))
    if bootstrap_servers:
        connection: Connection = config.kafka.connection(bootstrap_servers)
        return Source(folder, config, KafkaLog(connection), partitions_of(connection))
    archive = ArchiveLog(folder.archive)
    if not archive.partitions:
        raise ConfigError(f"{folder.archive} holds no topic")
    return Source(folder, config, archive, dict(archive.partitions))


def replay(source: Source, parts: tuple[str, ...], progress: Progress) -> Report:
    """Run the parts asked for, in order: decisions, learning, rewards."""
    report = Report()
    for part, work in (("decisions", decisions), ("learning", learning), ("rewards", rewards)):
        if part in parts:
            try:
                work(source, report, progress)
            except LogGap as error:
                report.set(part, Divergence("the log", "missing range", str(error), "-"), 0)
        else:
            report.verdicts[part] = SKIPPED
    return report


def decisions(source: Source, report: Report, progress: Progress) -> None:
    """Zones, signals, injections, retirements and batches."""
    topics = [t for t in INPUT_TOPICS + OUTPUT_TOPICS if t in source.partitions]
    ends = source.log.end_offsets(topics)
    cursor = dict.fromkeys(ends, 0)
    recording = Recording(source.folder.run_id)
    reading = progress.add_task("reading", total=sum(ends.values()))
    while any(cursor[place] < end for place, end in ends.items()):
        records = source.log.read(cursor, timeout_s=5.0)
        if not records:
            behind = {f"{p.topic}-{p.partition}": f"{cursor[p]} to {end - 1}" for p, end in ends.items() if cursor[p] < end}
            raise LogGap(f"offsets cannot be read: {behind}")
        cursor = advanced(cursor, records)
        recording.add(records)
        progress.advance(reading, len(records))
    if recording.unreadable:
        place = recording.unreadable[0]
        report.set("decisions", Divergence(place.partition(": ")[0], "unreadable record", place, "-"), 0)
        return
    finished = any(isinstance(h.event, RunFinished) for lane in recording.inputs.values() for h in lane)
    deciding = progress.add_task("decisions", total=len(recording.plans))
    difference = Repetition(recording).run(finished, lambda: progress.advance(deciding))
    report.set("decisions", difference, len(recording.decided))


def view_of(source: Source) -> object:
    """Everything the trainer heard, without bodies."""
    from trainer.view import TOPICS, RunView

    view = RunView()
    view.hear(source.reader(tuple(t for t in TOPICS if t != "trajectories")).catch_up())
    return view


def learning(source: Source, report: Report, progress: Progress) -> None:
    """Every update from the recorded trajectories, from the recorded initial weights."""
    from trainer.reopen import initial_engine
    from trainer.repeat import Bodies, learn_again, weights_divergence

    view = view_of(source)
    start = inherited_steps(source)
    steps = [step for step in sorted(view.steps) if step > start]
    opened = initial_engine(source.folder.checkpoints, source.config.trainer, start)
    task = progress.add_task("learning", total=len(steps))
    bodies = Bodies(source.reader(("trajectories",)))
    for learned in learn_again(view, bodies.take, opened.engine, source.config.trainer, steps):
        difference = weights_divergence(learned, view)
        progress.advance(task)
        if difference is not None:
            report.set("learning", difference, learned.step, f"threads {source.config.trainer.num_threads}")
            _allow_tolerance(source, report, opened, learned.step)
            return
    report.set("learning", None, len(steps), f"bit for bit, {source.config.trainer.num_threads} torch thread(s)")


def inherited_steps(source: Source) -> int:
    """Steps that a continuing fork took over with their weights; 0 for a run of its own."""
    started = next((e for e in source.reader(("runs",)).catch_up() if isinstance(e, RunStarted)), None)
    return started.forked_at_step if started is not None and started.fork_mode == ForkMode.CONTINUE.value else 0


def _allow_tolerance(source: Source, report: Report, opened: object, step: int) -> None:
    """On another machine, weights within a tolerance of a checkpoint of that step are as good as it gets."""
    from trainer.reopen import largest_difference

    gap = largest_difference(opened.engine.model, source.folder.checkpoints, step)
    if gap is not None and gap <= WEIGHT_TOLERANCE:
        report.verdicts["learning"] = TOLERANCE
        report.notes["learning"] = f"largest weight difference {gap:.1e} at step {step}, tolerance {WEIGHT_TOLERANCE:.0e}"


def rewards(source: Source, report: Report, progress: Progress) -> None:
    """Every recorded call in fresh simulators."""
    from trainer.episodes import EpisodeMaker
    from trainer.reopen import initial_policy
    from trainer.repeat import Bodies, rewards_again

    view = view_of(source)
    task = progress.add_task("rewards", total=len(view.groups))
    new_episode = EpisodeMaker(initial_policy(source.folder.checkpoints).template.parser)
    difference = rewards_again(view, Bodies(source.reader(("trajectories",))), new_episode, lambda: progress.advance(task))
    report.set("rewards", difference, len(view.groups))


def show(name: str | None, runs: Path, bootstrap_servers: str, parts: tuple[str, ...], as_json: bool, console: Console) -> bool:
    """Replay a run and print the verdicts; returns whether all are equal."""
    source = source_of(name, runs, bootstrap_servers)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=as_json) as progress:
        report = replay(source, parts, progress)
    if as_json:
        print(json.dumps({
            "run_id": source.folder.run_id, "verdicts": report.verdicts, "counts": report.counts, "notes": report.notes,
            "divergence": {part: asdict(difference) for part, difference in report.divergence.items()}}))
        return report.is_equal
    table = Table(box=None, pad_edge=False, title=f"replay of {source.folder.run_id}", title_justify="left")
    for heading in ("part", "verdict", "compared", "note"):
        table.add_column(heading)
    units = {"decisions": "decisions", "learning": "steps", "rewards": "groups"}
    for part, verdict in report.verdicts.items():
        style = "green" if verdict == EQUAL else "dim" if verdict == SKIPPED else "red"
        count = f"{report.counts[part]} {units[part]}" if part in report.counts else ""
        table.add_row(part, f"[{style}]{verdict}[/{style}]", count, report.notes.get(part, ""))
    console.print(table)
    for part, difference in report.divergence.items():
        console.print(f"first difference in {part}:\n{difference}", highlight=False, soft_wrap=True, markup=False)
    return report.is_equal
