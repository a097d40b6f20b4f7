"""When the trainer measures the held-out suites, and that it does so once for each step."""

from __future__ import annotations

from dataclasses import replace

from trainer.evaluation import evaluate
from trainer.setup import TrainerSetup
from trainer.view import RunView


def evaluate_if_due(setup: TrainerSetup, view: RunView, step: int, ends_stage: bool) -> None:
    """Measure the suites that have no result for this step, at start, at the end of a stage and every M steps."""
    every = setup.config.eval_every_steps
    if not (step == 0 or ends_stage or (every and step % every == 0)):
        return
    params = replace(setup.sampling, greedy=setup.config.eval_greedy)
    caused_by = view.steps[step].event_id if step in view.steps else ""
    for suite in setup.suites:
        if suite.tasks and suite.num_rollouts and not view.has_evaluation(suite.name, step):
            result = evaluate(
                setup.run_id,
                suite,
                step,
                setup.sampler,
                params,
                setup.new_episode,
                caused_by,
                lambda finished, total: setup.on_progress("evaluation", finished, total),
            )
            setup.log.append([result])
            view.hear([result])
