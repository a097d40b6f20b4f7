"""``rods warm-start``: makes the small policy that the default run starts from.

Supervised training on the reference traces of training seeds and of scripted variants of them; nothing held out is seen.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from commands.config import ConfigError, RunConfig, assignments, load_config, put
from commands.options import ConfigFile, Overrides, console
from commands.tasks import training_tasks
from schemas.events import Task
from synthesizer.scripted import variants
from trainer.policy.warm_start import Progress as Stage
from trainer.policy.warm_start import WarmStartConfig
from trainer.policy.warm_start import warm_start as taught


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
    for key, text in assignments(overrides, "expected key=value"):
        put(tree, key, text)
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


def warm_start(
    out: Annotated[Path, typer.Option(help="Folder for the policy.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    num_variants: Annotated[int, typer.Option(min=0, help="Scripted variants taught per seed.")] = 96,
) -> None:
    """Teach a small policy the reference traces of a run's training seeds; --set key=value changes the recipe."""
    run = load_config(config, os.environ, [])
    settings = warm_start_config(run, overrides or [])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        made: list[Task] = []
        for task in progress.track(training_tasks(run), description="variants"):
            made += variants(task, num_variants, settings.seed + 1)
        bars: dict[str, int] = {}

        def on_progress(stage: Stage) -> None:
            if stage.phase not in bars:
                bars[stage.phase] = progress.add_task(stage.phase, total=stage.num_steps)
            progress.update(bars[stage.phase], completed=stage.step, description=f"{stage.phase} loss {stage.loss:.3f}")

        try:
            folder = taught(settings, on_progress, made)
        except ValueError as error:
            raise ConfigError(f"warm start: {error}") from error
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        shutil.copy(file, out / file.name)
    console.print(f"policy in {out}", highlight=False, soft_wrap=True)
