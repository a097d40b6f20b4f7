"""The consuming loop over a log: redelivery, restart, waiting, order."""

import asyncio

from schemas.events import SynthesisFailed, SynthesisFailure, TaskSynthesized
from synthesizer.book import TaskBook
from synthesizer.config import SynthesisConfig
from synthesizer.outcome import Failure
from synthesizer.scripted import ScriptedBackend
from synthesizer.service import SynthesisService
from tests.synthesizer.building import SEEDS, seeded, signal_for
from tests.synthesizer.doubles import Answering, ListLog, ListReader

CONFIG = SynthesisConfig()
TASKS = [SEEDS["multi_turn_base_130"], SEEDS["multi_turn_miss_func_100"], SEEDS["multi_turn_base_47"]]
SIGNALS = [signal_for(task, step) for step in (1, 2) for task in TASKS]


def serve(log, arrivals=(), backend=None, stop_after=None):
    reader = ListReader(log, arrivals)
    book = TaskBook()
    service = SynthesisService(log, reader, backend or ScriptedBackend(), book, CONFIG)
    stops = (lambda: reader.is_drained, lambda: stop_after is not None and book.num_answered >= stop_after)
    asyncio.run(service.run(lambda: any(stop() for stop in stops)))
    return service


def terminals(log):
    return [event for event in log.events() if isinstance(event, (TaskSynthesized, SynthesisFailed))]


def test_every_signal_gets_exactly_one_terminal_in_log_order():
    log = ListLog([*map(seeded, TASKS), *SIGNALS])
    serve(log, arrivals=[[]])
    assert [event.signal_id for event in terminals(log)] == [signal.signal_id for signal in SIGNALS]
    failed = [event for event in terminals(log) if isinstance(event, SynthesisFailed)]
    assert [event.task_id for event in failed] == ["multi_turn_base_47"] * 2
    assert failed[0].failure is SynthesisFailure.GATE_COMPLEXITY


def test_a_signal_heard_again_is_not_answered_again():
    log = ListLog([*map(seeded, TASKS), *SIGNALS, *SIGNALS])
    service = serve(log, arrivals=[SIGNALS, SIGNALS[:1], []])
    assert service.num_answered == len(terminals(log)) == len(SIGNALS)


def test_a_restart_answers_only_what_is_still_open_and_gives_what_one_run_gives():
    whole = ListLog([*map(seeded, TASKS), *SIGNALS])
    serve(whole, arrivals=[[]])
    log = ListLog([*map(seeded, TASKS), *SIGNALS])
    first = serve(log, arrivals=[[]], stop_after=2)
    second = serve(log, arrivals=[[]])
    assert (first.num_answered, second.num_answered) == (2, len(SIGNALS) - 2)
    assert log.records == whole.records
    assert serve(log, arrivals=[[]]).num_answered == 0


def test_a_crash_before_the_terminal_repeats_the_same_events():
    log = ListLog([*map(seeded, TASKS), SIGNALS[2]])
    serve(log, arrivals=[[]])
    rejected, terminal = log.records[-2:]
    torn = ListLog(log.events()[:-1])
    serve(torn, arrivals=[[]])
    assert torn.records[-1] == terminal and torn.records.count(rejected) == 2


def test_a_signal_waits_until_its_seed_is_known():
    log = ListLog([SIGNALS[0]])
    service = serve(log, arrivals=[[], [seeded(TASKS[0])], []])
    assert service.num_answered == 1 and isinstance(log.events()[-1], TaskSynthesized)


def test_a_variant_can_be_the_seed_of_the_next_generation():
    log = ListLog([seeded(TASKS[0]), SIGNALS[0]])
    serve(log, arrivals=[[]])
    child = terminals(log)[0]
    signal = signal_for(child.task, step=9, generation=1)
    log.append([signal])
    serve(log, arrivals=[[]])
    grandchild = terminals(log)[-1]
    assert (grandchild.parent_task_id, grandchild.generation) == (child.task.task_id, 2)


def test_an_error_inside_a_synthesis_does_not_stop_the_service():
    log = ListLog([*map(seeded, TASKS), *SIGNALS[:2]])
    backend = Answering(ValueError("boom"), Failure(SynthesisFailure.NO_PROMPTS, "none"))
    serve(log, arrivals=[[]], backend=backend)
    assert [event.failure for event in terminals(log)] == [
        SynthesisFailure.PIPELINE_EXCEPTION,
        SynthesisFailure.NO_PROMPTS,
    ]


def test_the_book_is_a_fold_that_hears_each_event_once():
    log = ListLog([*map(seeded, TASKS), *SIGNALS])
    serve(log, arrivals=[[]])
    once, twice = TaskBook(), TaskBook()
    once.fold(log.events())
    twice.fold([*log.events(), *log.events()])
    assert (once.tasks, once.fingerprints, once.open_signals()) == (twice.tasks, twice.fingerprints, ())
    assert len(once.family(TASKS[0].task_id)) == 3 and not once.waiting_signals()
