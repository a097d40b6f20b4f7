"""Commands about policies and tasks: eval, chat, warm-start, synthesize, audit-tasks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from commands.options import AsJson, ConfigFile, Overrides, console

app = typer.Typer(help="Policies and tasks.")


def opened(work: Callable[[], object]) -> None:
    """Do something with a policy; one that cannot be opened or reached ends in one message."""
    from commands.config import ConfigError
    from trainer.policy.players import NoPlayer
    from trainer.rollouts.vllm_client import VllmError

    try:
        work()
    except (NoPlayer, VllmError) as error:
        raise ConfigError(f"--model: {error}") from error


@app.command("eval")
def evaluate(
    model: Annotated[
        str, typer.Option(help="Folder of a transformers model, 'default', or http://host:port of a vLLM server.")
    ],
    suite: Annotated[str, typer.Option(help="bfcl-multi-turn or bfcl-multi-turn-hints.")] = "bfcl-multi-turn",
    split: Annotated[str, typer.Option(help="val (100 tasks), test (300), train (400) or all.")] = "val",
    profile: Annotated[
        str, typer.Option(help="progress: rules of training. bfcl: rules of the leaderboard.")
    ] = "progress",
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest tokens; one rollout a task.")] = False,
    pass_k: Annotated[int, typer.Option("--pass-k", help="Rollouts a task, and the k of pass@k.")] = 1,
    category: Annotated[list[str] | None, typer.Option(help="Only this category; may be repeated.")] = None,
    limit: Annotated[
        int, typer.Option(help="At most about so many tasks, evenly from the categories; 0 takes all.")
    ] = 0,
    tokenizer: Annotated[str, typer.Option(help="Tokenizer of a served model, by folder or hub name.")] = "",
    parser: Annotated[
        str, typer.Option(help="How messages of a chat model are read; empty: as its checkpoint says, else hermes.")
    ] = "",
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    max_message_tokens: Annotated[int, typer.Option(help="Longest message, tokens.")] = 1024,
    max_episode_tokens: Annotated[int, typer.Option(help="Longest episode, tokens; 0 takes the model's length.")] = 0,
    at_once: Annotated[int, typer.Option(help="Rollouts played at the same time.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a policy on held-out tasks: accuracy, reward, pass@k with intervals, by category."""
    from commands import evaluate as command

    options = command.EvalOptions(
        model,
        suite,
        split,
        profile,
        pass_k,
        greedy,
        tuple(category or ()),
        limit,
        tokenizer,
        parser,
        temperature,
        top_p,
        seed,
        max_message_tokens,
        max_episode_tokens,
        at_once,
    )
    opened(lambda: command.show(options, as_json, out, console))


@app.command()
def chat(
    model: Annotated[
        str, typer.Option(help="Folder of a transformers model, 'default', or http://host:port of a vLLM server.")
    ],
    task: Annotated[str, typer.Option(help="Task id; the first of the split if not given.")] = "",
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest tokens.")] = False,
    tokenizer: Annotated[str, typer.Option(help="Tokenizer of a served model, by folder or hub name.")] = "",
    parser: Annotated[
        str, typer.Option(help="How messages of a chat model are read; empty: as its checkpoint says, else hermes.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Watch a policy play one task turn by turn, and speak for the user if you like."""
    from commands import chat as command

    opened(
        lambda: command.show(model, task, split, console, greedy=greedy, seed=seed, tokenizer=tokenizer, parser=parser)
    )


@app.command()
def synthesize(
    seed: Annotated[str, typer.Option("--seed", help="Id of the task to make a variant of.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    draw: Annotated[int, typer.Option(help="Another number gives another variant of the same seed.")] = 0,
) -> None:
    """Make one variant of a task, stage by stage; exit code 0 only if it was admitted."""
    from commands import synthesize as command

    raise typer.Exit(0 if command.show(seed, draw, config, overrides or [], as_json, console) else 1)


@app.command("warm-start")
def warm_start(
    out: Annotated[Path, typer.Option(help="Folder for the policy.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    num_variants: Annotated[int, typer.Option(min=0, help="Scripted variants taught per seed.")] = 96,
) -> None:
    """Teach a small policy the reference traces of a run's training seeds; --set key=value changes the recipe."""
    from commands import warm_start as command
    from commands.config import load_config

    command.make(load_config(config, os.environ, []), out, num_variants, overrides or [], console)


@app.command("audit-tasks")
def audit_tasks(
    environment: Annotated[str, typer.Option(help="Registered environment.")] = "bfcl-v3",
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write every finding to this file, one JSON object a line.")
    ] = None,
) -> None:
    """Replay every ground truth and report what cannot be right."""
    from commands import audit as command

    command.show(environment, out, as_json, console)
