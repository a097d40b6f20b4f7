"""Workers that sample from a vLLM server while the trainer brings it every version: the server here is one in memory."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from schemas.events import (
    GroupClaimed,
    RolloutGroupCompleted,
    RunOutcome,
    StepCompleted,
    TrajectoryRecorded,
    WeightsSynced,
)
from schemas.packed import unpack_ids, unpack_logprobs
from tests.trainer.fake_vllm import Broken, FakeVllm
from tests.trainer.toys import ToyTemplate
from tests.trainer.workers import events_of, new_log, trainer_of, worker_config, worker_of
from trainer.loop import train
from trainer.rollouts.held_weights import ServerWeights
from trainer.rollouts.vllm_client import VllmError, split
from trainer.rollouts.vllm_server_sampler import VllmServerSampler
from trainer.weights.sync import ServerSettings, VllmSync, WeightSyncFailed, by_files

TARGET = "http://fake:1"


def sampler_of(server):
    return VllmServerSampler(
        TARGET, ToyTemplate(), 10.0, client=server.client(), transport=server.transport, needs_version=True
    )


def trainer(server, log, folder, config=None, **values):
    sync = VllmSync(server.client(), ServerSettings(10.0), "vllm-files", by_files(folder / "shm"))
    return trainer_of(log, folder, config or worker_config(), sampler=sampler_of(server), syncs=(sync,), **values)


@contextmanager
def worker(server, log, config=None, failures=None):
    """A worker in a thread; what it raises is in ``failures``, or fails the test."""
    stop, found = threading.Event(), [] if failures is None else failures
    worker = worker_of(log, config=config, weights=ServerWeights(sampler_of(server)), should_stop=stop.is_set)

    def work():
        try:
            worker.work()
        except VllmError as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    assert failures is not None or found == []


def is_marked(server):
    """Whether the server has negated weights; those of its norms start at 1."""
    return float(server.model.model.norm.weight.detach().mean()) < 0


def holds(body, choice):
    """Whether a recorded body has this very message, log-probabilities included."""
    begin, end = len(choice["prompt_token_ids"]), len(choice["prompt_token_ids"]) + len(choice["token_ids"])
    logprobs = unpack_logprobs(body.logprobs)[begin:end]
    is_same = unpack_ids(body.token_ids)[:end].tolist() == [*choice["prompt_token_ids"], *choice["token_ids"]]
    return is_same and np.allclose(logprobs, choice["logprobs"]["token_logprobs"], atol=1e-6)


def assert_whole(log, most_stale=0):
    """Every step was learned from rollouts of the weights they name."""
    steps = events_of(log, StepCompleted)
    assert [step.step for step in steps] == [1, 2, 3, 4] and len({step.weights_digest for step in steps}) == 4
    assert [event.policy_version for event in events_of(log, WeightsSynced) if event.probe_gap < 1e-4][-1] == 4
    bodies = events_of(log, TrajectoryRecorded)
    assert all(0 <= body.step - 1 - body.policy_version <= most_stale for body in bodies)
    learned = {body for group in events_of(log, RolloutGroupCompleted) for body in group.trajectory_ids}
    assert learned <= {body.trajectory_id for body in bodies} and len(learned) == 4 * 2 * 3
    if not most_stale:
        assert max(step.metrics["logprob_gap_max"] for step in steps) < 1e-3
    assert all(step.metrics["staleness_max"] <= most_stale for step in steps)


def test_a_run_is_learned_from_what_a_worker_samples_from_a_server(tmp_path):
    server, log = FakeVllm(), new_log()
    with worker(server, log):
        assert train(trainer(server, log, tmp_path)) is RunOutcome.COMPLETED
    assert_whole(log)
    assert server.label.startswith("4/") and {event.target for event in events_of(log, WeightsSynced)} == {TARGET}
    assert [event.policy_version for event in events_of(log, WeightsSynced)] == [0, 1, 2, 3, 4]


def test_a_worker_that_plays_ahead_samples_only_from_weights_that_are_proven(tmp_path):
    server, log, config = FakeVllm(), new_log(), worker_config(1, groups_at_once=1)
    marked = []
    server.change_answer = lambda choice: is_marked(server) and marked.append(choice) or choice
    with worker(server, log, config):
        stopped = trainer(server, log, tmp_path, config, should_stop=lambda: len(events_of(log, StepCompleted)) >= 2)
        assert train(stopped) is RunOutcome.INTERRUPTED
        assert train(trainer(server, log, tmp_path, config)) is RunOutcome.COMPLETED
    assert_whole(log, most_stale=1)
    assert len(marked) >= 2
    assert not any(holds(body, choice) for body in events_of(log, TrajectoryRecorded) for choice in marked)


def test_a_failed_update_ends_the_trainer_and_nobody_samples_until_the_run_is_resumed(tmp_path):
    server, log = FakeVllm(), new_log()

    def fails_once(body):
        if len(events_of(log, StepCompleted)) == 2:
            server.do_collective_rpc = lambda body: FakeVllm.do_collective_rpc(server, body)
            raise Broken("Worker failed with error 'out of memory'")
        return FakeVllm.do_collective_rpc(server, body)

    server.do_collective_rpc = fails_once
    with worker(server, log):
        with pytest.raises(WeightSyncFailed, match="version 2: .*HTTP 500: Worker failed with error 'out of memory'"):
            train(trainer(server, log, tmp_path))
        num_claims = len(events_of(log, GroupClaimed))
        assert server.is_paused and server.label == "unproven" and num_claims == 4
        assert train(trainer(server, log, tmp_path)) is RunOutcome.COMPLETED
    assert_whole(log)
    assert {claim.policy_version for claim in events_of(log, GroupClaimed)[num_claims:]} == {2, 3}


def test_a_server_that_is_started_again_between_two_steps_is_brought_up_to_date_before_anybody_plays(tmp_path):
    server, log = FakeVllm(), new_log()
    restarts = [2]

    def on_completion(body):
        if not body.get("stop_token_ids"):
            return
        assert split(server.label)[0] is not None

    server.on_completion = on_completion
    appended = log.append

    def append(events):
        appended(events)
        if restarts and any(isinstance(e, StepCompleted) and e.step == restarts[0] for e in events):
            restarts.pop()
            server.restart()

    log.append = append
    with worker(server, log):
        assert train(trainer(server, log, tmp_path)) is RunOutcome.COMPLETED
    assert not restarts
    assert_whole(log)


def test_a_server_that_is_started_again_within_a_message_ends_its_worker_and_nothing_of_it_is_learned_from(tmp_path):
    server, log, failures = FakeVllm(), new_log(), []

    def restarts(body):
        if server.label.startswith("2/"):
            server.restart()

    server.on_completion = restarts
    with worker(server, log, failures=failures):
        setup = trainer(server, log, tmp_path, should_stop=lambda: bool(failures))
        assert train(setup) is RunOutcome.INTERRUPTED
    assert "carries the label 'default'" in str(failures[0])
    assert [step.step for step in events_of(log, StepCompleted)] == [1, 2]
    server.on_completion = lambda body: None
    with worker(server, log):
        assert train(trainer(server, log, tmp_path)) is RunOutcome.COMPLETED
    assert_whole(log)
