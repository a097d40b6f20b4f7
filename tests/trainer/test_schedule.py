"""The course of the learning rate."""

import pytest

from tests.trainer.sequences import batch_of, settings, some_sequences
from tests.trainer.toys import toy_model
from trainer.update.schedule import Schedule
from trainer.update.torch_engine import TorchEngine


def rates(course, num=12):
    return [Schedule(2.0, 4, course, 10, 0.1).rate(number) for number in range(num)]


@pytest.mark.parametrize("course", ["constant", "linear", "cosine"])
def test_every_course_begins_with_the_same_warm_up_and_reaches_the_peak(course):
    assert rates(course)[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert max(rates(course)) == 2.0


def test_a_linear_course_falls_evenly_and_then_stays():
    falls = rates("linear")[4:]
    assert falls == pytest.approx([2.0, 1.7, 1.4, 1.1, 0.8, 0.5, 0.2, 0.2])


def test_a_cosine_course_is_at_half_the_fall_in_the_middle_and_ends_at_the_final_rate():
    course = rates("cosine")
    assert course[7] == pytest.approx(1.1) and course[10] == course[11] == pytest.approx(0.2)
    assert all(earlier >= later for earlier, later in zip(course[3:], course[4:], strict=False))
    assert rates("constant")[4:] == [2.0] * 8


def test_the_engine_follows_its_schedule_and_says_so():
    config = settings(warmup_steps=1, lr_schedule="linear", lr_decay_steps=5, lr_final_frac=0.0, learning_rate=0.01)
    engine = TorchEngine(toy_model(), config)
    told = [engine.update(batch_of(some_sequences(toy_model())))["lr"] for _ in range(7)]
    assert told == pytest.approx([0.01, 0.01, 0.0075, 0.005, 0.0025, 0.0, 0.0])
    before = engine.digest()
    engine.update(batch_of(some_sequences(toy_model())))
    assert engine.digest() == before
