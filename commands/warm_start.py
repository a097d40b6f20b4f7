"""``rods warm-start``: makes the small policy that the default run starts from.

Supervised training on the reference traces of training seeds and of scripted variants of them; nothing held out is seen.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from commands.config import ConfigError, RunConfig, parsed_value, put
from commands.seeds import training_tasks
from schemas.events import Task
from synthesizer.scripted import variants
from trainer.policy.warm_start import Progress as Stage
from trainer.policy.warm_start import WarmStartConfig, warm_start


def warm_start_config(config: RunConfig, overrides: Sequence[str]) -> WarmStartConfig:
    """Settings of a warm start over a run's seeds.

    Args:
        config: the run whose seeds are taught.
        overrides: ``key=value`` texts over :class:`trainer.policy.warm_start.WarmStartConfig`.

    Raises:
        ConfigError: an override is wrong.
    """
    seeds = [task.task_id for task in training_tasks(config)]
    tree: dict = {"environment": config.tasks.environment, "task_ids": seeds, **SHIPPED}
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign:
            raise ConfigError(f"--set {override!r}: expected key=value")
        put(tree, key.strip().split("."), parsed_value(text.strip()))
    try:
        return WarmStartConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"warm start: {error}") from error


SHIPPED: dict = {
    "policy": {
        "hidden_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
        "vocab_size": 1000,
    },
    "num_steps": 600,
    "num_copy_steps": 400,
    "seed_frac": 0.04,
    "label_smoothing": 0.03,
}
"""What the shipped policy was made with; see docs/default-run.md."""


def taught_variants(tasks: Sequence[Task], num: int, seed: int, progress: Progress) -> list[Task]:
    """Scripted variants of each task."""
    bar = progress.add_task("variants", total=len(tasks))
    made: list[Task] = []
    for task in tasks:
        made += variants(task, num, seed)
        progress.advance(bar)
    return made


def make(config: RunConfig, out: Path, num_variants: int, overrides: Sequence[str], console: Console) -> Path:
    """Make the policy, or take it from the cache, and copy it to a folder."""
    settings = warm_start_config(config, overrides)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        others = taught_variants(training_tasks(config), num_variants, settings.seed + 1, progress)
        bars: dict[str, int] = {}

        def on_progress(stage: Stage) -> None:
            if stage.phase not in bars:
                bars[stage.phase] = progress.add_task(stage.phase, total=stage.num_steps)
            progress.update(bars[stage.phase], completed=stage.step, description=f"{stage.phase} loss {stage.loss:.3f}")

        try:
            made = warm_start(settings, on_progress, others)
        except ValueError as error:
            raise ConfigError(f"warm start: {error}") from error
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(made.iterdir()):
        shutil.copy(file, out / file.name)
    console.print(f"policy in {out}", highlight=False, soft_wrap=True)
    return out
