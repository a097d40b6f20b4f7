"""Metrics for people beside the log: TensorBoard by default, Weights & Biases where it is installed and asked for.

A tracker is shown what the trainer has just appended to the log, so a resumed run shows nothing twice. It never decides
anything and its failures never stop a run: the log is the record, a tracker is a window.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from schemas import Event
from schemas.events import EvaluationCompleted, StepCompleted
from streams.log.port import Log

logger = logging.getLogger("rods.trackers")
FAILURES = (OSError, RuntimeError, ValueError)
"""What a tracker may raise; none of it stops a run."""


class Tracker(Protocol):
    """Shows numbers."""

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Values by name at a training step."""
        ...

    def close(self) -> None:
        """Write out what is pending."""
        ...


class TensorBoard:
    """Event files for ``tensorboard --logdir FOLDER``."""

    def __init__(self, folder: Path, run_id: str, config: Mapping[str, object]) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(folder / "tensorboard"))

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar each, flushed at once so that a crash loses none."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step=step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run at wandb; the account and the host come from wandb's own settings, ``WANDB_MODE=offline`` keeps it here."""

    def __init__(self, folder: Path, run_id: str, config: Mapping[str, object]) -> None:
        import wandb

        self._error = wandb.errors.Error
        with self._told():
            self._run = wandb.init(
                project="rods-streams", id=run_id, name=run_id, dir=str(folder), resume="allow", config=dict(config)
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of wandb are of a kind of their own; here they are RuntimeErrors, as any tracker may raise."""
        try:
            yield
        except self._error as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """One record of all values."""
        with self._told():
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        with self._told():
            self._run.finish()


KINDS: dict[str, Callable[[Path, str, Mapping[str, object]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def opened(names: Iterable[str], folder: Path, run_id: str, config: Mapping[str, object]) -> list[Tracker]:
    """The trackers of some names; one whose package is missing, or that cannot start, is named in the log and left out.

    Args:
        names: keys of ``KINDS``.
        folder: of the run.
        run_id: the run.
        config: settings to show.
    """
    found: list[Tracker] = []
    for name in names:
        try:
            found.append(KINDS[name](folder, run_id, config))
        except (ImportError, *FAILURES) as error:
            logger.warning("no %s: %s", name, error)
    return found


def scalars(event: Event) -> tuple[int, dict[str, float]] | None:
    """(step, values by name) of an event worth showing, else ``None``."""
    if isinstance(event, StepCompleted):
        values = {f"train/{name}": value for name, value in event.metrics.items()}
        values |= {f"time_ms/{name}": value for name, value in event.timings_ms.items()}
        counts = {
            "zero_variance_groups": event.num_zero_variance,
            "trajectories": event.num_trajectories,
            "trained_tokens": event.num_trained_tokens,
            "epoch": event.epoch,
        }
        return event.step, values | {
            f"train/num_{name}" if name != "epoch" else "train/epoch": float(count) for name, count in counts.items()
        }
    if isinstance(event, EvaluationCompleted):
        where = f"eval/{event.suite}"
        values = {f"{where}/reward": event.mean_reward, f"{where}/accuracy": event.accuracy}
        return event.step, values | {f"{where}/{category}": value for category, value in event.by_category.items()}
    return None


class TrackedLog:
    """A log that shows trackers what was appended to it; everything else is the log's.

    Args:
        log: the log.
        trackers: who is shown what.
    """

    def __init__(self, log: Log, trackers: Sequence[Tracker]) -> None:
        self._log, self._trackers = log, list(trackers)

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    def append(self, events: Sequence[Event]) -> None:
        """Append, then show; a tracker that fails is left out from then on."""
        self._log.append(events)
        for step, values in filter(None, map(scalars, events)):
            for tracker in list(self._trackers):
                try:
                    tracker.show(step, values)
                except FAILURES as error:
                    logger.warning("%s is left out from step %d on: %s", type(tracker).__name__, step, error)
                    self._trackers.remove(tracker)

    def close(self) -> None:
        """Close the trackers; the log belongs to its owner. One that cannot close is named in the log."""
        for tracker in self._trackers:
            try:
                tracker.close()
            except FAILURES as error:
                logger.warning("%s did not close: %s", type(tracker).__name__, error)
