"""A rollout worker: takes planned groups from the log, plays them, writes what was played.

It holds no state that matters. What it may play, which groups are taken and which weights there are is all in the log;
killed at any point, it or another worker goes on from there. It claims a few groups at a time and plays those whose
claims came first, all their rollouts together. Every rollout is in the log as soon as it has ended, its group when all
of them have. A group that another attempt has ended meanwhile is not written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas import make
from schemas.events import GroupClaimed, TrajectoryRecorded, WeightsSynced
from streams.log.port import LogUnavailable
from trainer.rollouts.dispatch import OpenGroup, reopening, upcoming
from trainer.rollouts.groups import group_of, requests_for, trajectory_of, unplayed
from trainer.rollouts.sampler import Rollout, Sampler
from trainer.setup import NothingCame, PlayerSetup
from trainer.view import RunView

POLL_S = 0.5
logger = logging.getLogger("rods.rollout")


class HeldWeights(Protocol):
    """The weights a worker samples with.

    Attributes:
        sampler: Samples with them.
    """

    sampler: Sampler

    def follow(self, synced: Sequence[WeightsSynced]) -> int | None:
        """Go over to the newest version this worker can reach; returns the version it holds, ``None`` before the first.

        Args:
            synced: the newest version at every target.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class WorkerSetup(PlayerSetup):
    """Everything a worker works with; its reader follows ``trainer.view.WORKER_TOPICS``.

    Attributes:
        name: Name of this worker; no other worker of the run may have it.
        weights: What it samples with.
        patience_s: How long to wait for its own claims to come back, seconds.
    """

    name: str
    weights: HeldWeights
    patience_s: float = 60.0


class RolloutWorker:
    """See the module.

    Args:
        setup: what it works with.

    Attributes:
        num_groups: Groups this worker ended.
        num_late: Groups it played that others had ended by then.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._view = RunView()
        self.num_groups = self.num_late = 0

    def work(self) -> None:
        """Play until the run is finished or this worker is asked to stop.

        Raises:
            LogUnavailable: a rollout cannot be written.
            NothingCame: its own claims did not come back from the log.
        """
        setup, view = self._setup, self._view
        view.hear(setup.reader.catch_up())
        self._release_own()
        while not view.is_finished and not setup.should_stop():
            view.forget_before(view.next_step)
            version = setup.weights.follow(list(view.dispatch.synced.values()))
            openings = [] if version is None else self._claimed(version)
            if openings:
                self._play(openings, version)
            else:
                view.hear(setup.reader.poll(POLL_S))

    def _release_own(self) -> None:
        """Open what this worker had claimed before it was started again; nobody else plays it."""
        setup, view = self._setup, self._view
        lost = [key for key in view.dispatch.held_by(setup.name) if key[0] >= view.next_step and key not in view.groups]
        setup.log.append(
            [
                reopening(setup.run_id, key, view.dispatch.attempt_of(key) + 1, f"{setup.name} was started again")
                for key in lost
            ]
        )

    def _free(self, version: int) -> list[OpenGroup]:
        """Groups that may be claimed now, in plan order, as many as are played at a time."""
        view, config, found = self._view, self._setup.config, []
        for plan in upcoming(
            view.next_step, version, self._setup.bound, view.plans, view.epochs, self._setup.max_steps
        ):
            if view.missing_for(plan):
                break
            for task_id in plan.task_ids:
                key = (plan.step, task_id)
                is_free = key not in view.groups and view.dispatch.claim_of(key) is None
                if is_free and task_id not in [opening.task_id for opening in found]:
                    found.append(OpenGroup(plan, task_id, view.dispatch.attempt_of(key)))
                if len(found) == config.workers.groups_at_once:
                    return found
        return found

    def _claimed(self, version: int) -> list[OpenGroup]:
        """Claim what is free; returns the groups whose claim of this worker came first."""
        setup, view = self._setup, self._view
        free = self._free(version)
        if not free:
            return []
        setup.log.append(
            [
                make(
                    GroupClaimed,
                    setup.run_id,
                    caused_by=opening.plan.event_id,
                    step=opening.plan.step,
                    task_id=opening.task_id,
                    attempt=opening.attempt,
                    worker=setup.name,
                    policy_version=version,
                )
                for opening in free
            ]
        )
        give_up_s = time.monotonic() + setup.patience_s
        while any(self._is_open(opening) and view.dispatch.claim_of(opening.key) is None for opening in free):
            if time.monotonic() > give_up_s:
                raise NothingCame(f"{setup.name}: its claims did not come back within {setup.patience_s:.0f} s")
            view.hear(setup.reader.poll(POLL_S))
        return [opening for opening in free if self._is_mine(opening)]

    def _is_open(self, opening: OpenGroup) -> bool:
        """Whether a group has not ended and its attempt is still the one to play."""
        view = self._view
        is_current = view.dispatch.attempt_of(opening.key) == opening.attempt
        return is_current and opening.key not in view.groups and opening.plan.step >= view.next_step

    def _is_mine(self, opening: OpenGroup) -> bool:
        claim = self._view.dispatch.claim_of(opening.key)
        return self._is_open(opening) and claim is not None and claim.worker == self._setup.name

    def _play(self, openings: Sequence[OpenGroup], version: int) -> None:
        """Play all rollouts of some groups together; write each as it ends, and a group with its last rollout."""
        setup, tasks = self._setup, self._view.tasks
        group_size, of = setup.config.group_size, {opening.task_id: opening for opening in openings}
        bodies: dict[str, list[TrajectoryRecorded]] = {task_id: [] for task_id in of}

        def record(body: TrajectoryRecorded) -> None:
            setup.log.append([body])
            bodies[body.task_id].append(body)
            if len(bodies[body.task_id]) == group_size:
                self._end(of[body.task_id], bodies.pop(body.task_id))

        requests = []
        for task_id, opening in of.items():
            new, unplayable = requests_for(opening.plan, [task_id], tasks, group_size, setup.new_episode)
            requests += new
            for index in range(group_size) if unplayable else ():
                record(
                    unplayed(
                        opening.plan,
                        tasks[task_id],
                        index,
                        unplayable[task_id],
                        setup.by(version, opening.attempt, setup.name),
                    )
                )

        def on_rollout(rollout: Rollout) -> None:
            opening = of[rollout.task_id]
            record(trajectory_of(opening.plan, rollout, setup.by(version, opening.attempt, setup.name)))

        try:
            setup.weights.sampler.rollout(requests, setup.sampling, None, on_rollout)
        except* LogUnavailable as errors:  # samplers that play episodes side by side raise what happened in each
            raise errors.exceptions[0] from None

    def _end(self, opening: OpenGroup, bodies: Sequence[TrajectoryRecorded]) -> None:
        """Write a group, unless somebody else has ended it."""
        setup, view = self._setup, self._view
        view.hear(setup.reader.poll(0.0))
        if opening.key in view.groups or opening.plan.step < view.next_step:
            self.num_late += 1
            logger.info("step %d, %s: another attempt has ended it", *opening.key)
            return
        members = sorted(bodies, key=lambda body: body.rollout_index)
        end = (members, opening.attempt, setup.name, setup.min_valid_frac)
        setup.log.append([group_of(opening.plan, opening.task_id, *end)])
        self.num_groups += 1
