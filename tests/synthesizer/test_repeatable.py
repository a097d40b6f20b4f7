"""Two runs with the same rollouts make the same variants, whatever the runs are called."""

from __future__ import annotations

from dataclasses import replace

from schemas.events import TaskSynthesized
from synthesizer.pipeline import draw_key, draw_seed, variant_id
from tests.streams.scripted import of, play


def test_draws_and_ids_of_variants_depend_on_seed_task_and_step_and_not_on_the_run() -> None:
    from schemas.events import BoundaryDetected
    from tests.streams.test_fold import SETTINGS, mean_of

    _, events = play(7, 3, SETTINGS, mean_of)
    signal = of(events, BoundaryDetected)[0]
    task = of(events, TaskSynthesized)[0].task
    elsewhere = replace(signal, run_id="other", event_id="other", signal_id="other")
    assert draw_key(signal) == draw_key(elsewhere)
    assert draw_seed(draw_key(signal), 1) != draw_seed(draw_key(signal), 2)
    assert draw_key(signal) != draw_key(replace(signal, step=signal.step + 1))
    assert variant_id("root", task, draw_key(signal)) == variant_id("root", task, draw_key(elsewhere))
