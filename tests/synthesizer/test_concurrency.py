"""Many signals at once: bounded work, back pressure, order, drain, takeover by another member."""

import asyncio
from dataclasses import replace

import pytest

from benchmarks.playing_server import Player
from schemas.events import SynthesisFailed, SynthesisFailure, TaskSynthesized
from synthesizer.book import TaskBook
from synthesizer.config import SynthesisConfig
from synthesizer.outcome import Failure
from synthesizer.service import SynthesisService
from tests.synthesizer.building import call, drafted, seeded, signal_for, ticket_task, turn
from tests.synthesizer.doubles import ListLog, ListReader

NO = Failure(SynthesisFailure.NO_PATTERN, "no idea")
SEEDS = [
    replace(ticket_task(turn("Show it.", call("get_ticket", ticket_id=7001))), task_id=f"seed-{n}_base")
    for n in range(12)
]
SIGNALS = [signal_for(seed) for seed in SEEDS]


class Slow:
    """A backend that waits for a go; counts what is under way."""

    name, is_sequential, prompts_hash = "slow", False, ""

    def __init__(self, answer=NO):
        self.go = asyncio.Event()
        self.answer, self.num_now, self.most, self.done, self.closed = answer, 0, 0, [], False

    async def draft(self, seed, attempt):
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        try:
            await self.go.wait()
        finally:
            self.num_now -= 1
        self.done.append(seed.task.task_id)
        return self.answer

    async def review(self, seed, draft, attempt):
        return draft

    async def learn(self, seed, attempt, failure):
        pass

    async def close(self):
        self.closed = True


class Counted(ListReader):
    """Counts polls."""

    num_polls = 0

    def poll(self, timeout_s):
        self.num_polls += 1
        return super().poll(timeout_s)


class Group:
    """A membership that a test moves by hand."""

    def __init__(self):
        self.owned, self.num_changes, self.commits = frozenset(range(8)), 1, []

    def poll(self):
        pass

    def commit(self, offsets):
        self.commits.append(dict(offsets))


def terminals(log):
    return [event for event in log.events() if isinstance(event, (TaskSynthesized, SynthesisFailed))]


async def until(condition):
    """Let the loop run until something is so; a minute at most."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def config(**fields):
    return SynthesisConfig(**{"max_in_flight": 4, "max_attempts": 1, **fields})


def started(log, backend, stop, settings=None, member=None):
    reader = Counted(log)
    service = SynthesisService(log, reader, backend, TaskBook(), settings or config(), member)
    return service, reader, asyncio.create_task(service.run(lambda: bool(stop)))


def test_no_more_signals_are_in_flight_than_allowed_and_meanwhile_nothing_is_read():
    async def main():
        log, backend, stop = ListLog([*map(seeded, SEEDS), *SIGNALS]), Slow(), []
        service, reader, running = started(log, backend, stop)
        await until(lambda: backend.num_now == 4)
        polls = reader.num_polls
        for _ in range(200):
            await asyncio.sleep(0)
        assert (service.num_in_flight, reader.num_polls, backend.num_now) == (4, polls, 4)
        backend.go.set()
        await until(lambda: len(terminals(log)) == 12)
        stop.append(True)
        await running
        assert backend.most == 4 and backend.closed and service.num_answered == 12
        assert len({event.signal_id for event in terminals(log)}) == 12

    asyncio.run(main())


def test_after_a_stop_nothing_new_starts_work_in_flight_ends_and_the_rest_stays_open():
    async def main():
        log, backend, stop = ListLog([*map(seeded, SEEDS), *SIGNALS]), Slow(), []
        service, _, running = started(log, backend, stop)
        await until(lambda: backend.num_now == 4)
        stop.append(True)
        await asyncio.sleep(0)
        backend.go.set()
        await running
        assert len(terminals(log)) == 4 and service.num_answered == 4
        again, _, running = started(log, backend, stop := [])
        await until(lambda: len(terminals(log)) == 12)
        stop.append(True)
        await running
        assert again.num_answered == 8 and len(backend.done) == 12

    asyncio.run(main())


def test_work_that_does_not_end_in_time_is_given_up_and_done_by_the_next_start():
    async def main():
        log, backend, stop = ListLog([*map(seeded, SEEDS[:2]), *SIGNALS[:2]]), Slow(), []
        _, _, running = started(log, backend, stop, config(drain_s=0.05))
        await until(lambda: backend.num_now == 2)
        stop.append(True)
        await running
        assert not terminals(log) and backend.num_now == 0
        backend.go.set()
        _, _, running = started(log, backend, stop := [])
        await until(lambda: len(terminals(log)) == 2)
        stop.append(True)
        await running

    asyncio.run(main())


def test_two_signals_that_come_to_the_same_variant_admit_it_once():
    seed = ticket_task(turn("Open 'Loose wire'.", call("create_ticket", title="Loose wire", priority=1)))
    twin = drafted(
        replace(seed, turns=(turn("Open 'Cold room'.", call("create_ticket", title="Cold room", priority=1)),))
    )

    async def main():
        log, backend, stop = ListLog([seeded(seed), *(signal_for(seed, step) for step in (1, 2, 3))]), Slow(twin), []
        _, _, running = started(log, backend, stop)
        await until(lambda: backend.num_now == 3)
        backend.go.set()
        await until(lambda: len(terminals(log)) == 3)
        stop.append(True)
        await running
        kinds = [type(event) for event in terminals(log)]
        assert kinds.count(TaskSynthesized) == 1 and kinds.count(SynthesisFailed) == 2
        assert all(
            e.failure is SynthesisFailure.GUARD_DUPLICATE for e in terminals(log) if isinstance(e, SynthesisFailed)
        )

    asyncio.run(main())


def test_a_signal_that_another_member_answered_meanwhile_is_dropped():
    async def main():
        log, backend, stop = ListLog([seeded(SEEDS[0]), SIGNALS[0]]), Slow(), []
        service, reader, running = started(log, backend, stop)
        await until(lambda: backend.num_now == 1)
        other = ListLog([seeded(SEEDS[0]), SIGNALS[0]])
        ready, idle = Slow(), []
        ready.go.set()
        _, _, second = started(other, ready, idle)
        await until(lambda: len(terminals(other)) == 1)
        idle.append(True)
        await second
        log.append(terminals(other))
        before = reader.num_polls
        await until(lambda: reader.num_polls > before + 1)
        backend.go.set()
        await until(lambda: service.num_in_flight == 0)
        stop.append(True)
        await running
        assert len(terminals(log)) == 1 and service.num_answered == 0

    asyncio.run(main())


def test_work_on_a_partition_that_goes_to_another_member_is_given_up_and_taken_up_when_it_comes_back():
    async def main():
        log, backend, stop, group = ListLog([*map(seeded, SEEDS[:2]), *SIGNALS[:2]]), Slow(), [], Group()
        _, _, running = started(log, backend, stop, member=group)
        await until(lambda: backend.num_now == 2)
        group.owned = frozenset()
        await until(lambda: backend.num_now == 0)
        backend.go.set()
        group.owned, group.num_changes = frozenset({0}), 2
        await until(lambda: len(terminals(log)) == 2)
        stop.append(True)
        await running

    asyncio.run(main())


def test_the_offset_moves_only_behind_outcomes_that_are_written():
    async def main():
        class Gate(Slow):
            async def draft(self, seed, attempt):
                if seed.task.task_id == SEEDS[1].task_id:
                    await self.go.wait()
                return NO

        log, backend, stop, group = ListLog([*map(seeded, SEEDS[:3]), *SIGNALS[:3]]), Gate(), [], Group()
        _, _, running = started(log, backend, stop, member=group)
        await until(lambda: len(terminals(log)) == 2 and group.commits)
        await until(lambda: group.commits[-1] == {0: 4})
        backend.go.set()
        await until(lambda: group.commits[-1] == {0: 6})
        stop.append(True)
        await running

    asyncio.run(main())


def test_a_log_that_cannot_be_written_ends_the_service_with_its_reason():
    class Broken(ListLog):
        def append(self, events):
            raise ConnectionError("no broker")

    async def main():
        log, backend = Broken([seeded(SEEDS[0]), SIGNALS[0]]), Slow()
        backend.go.set()
        _, _, running = started(log, backend, [])
        with pytest.raises(ConnectionError, match="no broker"):
            await running
        assert backend.closed

    asyncio.run(main())


def test_what_is_no_outcome_ends_the_service_instead_of_losing_a_signal():
    class Odd(Slow):
        async def draft(self, seed, attempt):
            raise Unforeseen("pulled")

    class Unforeseen(Exception):
        pass

    async def main():
        log = ListLog([seeded(SEEDS[0]), SIGNALS[0]])
        _, _, running = started(log, Odd(), [])
        with pytest.raises(Unforeseen, match="pulled"):
            await running

    asyncio.run(main())


def test_the_player_answers_by_the_prompt_alone():
    prompts = [Player().planner("<data>\n{}\n</data>\n<data>\n[]\n</data>\n<data>\n[]\n</data>") for _ in range(2)]
    assert prompts[0] == prompts[1]
