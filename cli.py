"""``rods``: the command line. Each command is a function that declares its own options, in a module loaded when it is called."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

ROOMS = {"analysis", "commands", "environments", "schemas", "streams", "synthesizer", "trainer"}
COMMANDS = {
    "run": "run.run",
    "status": "status.status",
    "report": "report.report",
    "dashboard": "dashboard.dashboard",
    "replay": "replay.replay_command",
    "fork": "fork.fork_command",
    "rescore": "rescore.rescore",
    "why": "why.why",
    "explain": "explain.explain_command",
    "tap": "tap.tap",
    "export": "export.export",
    "sql": "sql.sql",
    "doctor": "doctor.doctor",
    "archive": "archive.app",
    "eval": "evaluate.evaluate",
    "chat": "evaluate.chat",
    "warm-start": "warm_start.warm_start",
    "synthesize": "synthesize.synthesize",
    "audit-tasks": "tasks.audit_tasks",
    "init-topics": "roles.services.init_topics",
    "worker": "roles.services.worker",
    "archiver": "roles.services.archiver",
    "synthesizer": "roles.synthesizer.synthesizer",
    "train": "roles.train.train",
    "rollout": "roles.rollout.rollout",
    "metrics": "roles.metrics.metrics",
    "health": "roles.services.health",
    "topics": "roles.services.topics",
    "config": "config.config",
}
"""Where each command is, within ``commands``."""


def loaded(name: str) -> TyperCommand | TyperGroup:
    """A command with its options; imports its module."""
    module, _, function = COMMANDS[name].rpartition(".")
    found = getattr(import_module(f"commands.{module}"), function)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


def help_of(name: str) -> str | None:
    """The docstring of a command, or that of the module of a group; read without importing it."""
    module, _, function = COMMANDS[name].rpartition(".")
    tree = ast.parse((Path(__file__).parent / "commands" / f"{module.replace('.', '/')}.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return ast.get_docstring(functions[0] if functions else tree)


class Commands(TyperGroup):
    """Lists every command without importing any, loads the one that is called; False as result is exit code 1."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: typer.Context, name: str) -> TyperCommand | None:
        return TyperCommand(name, help=help_of(name)) if name in COMMANDS else None

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple[str, TyperCommand | TyperGroup, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, loaded(name), rest

    def invoke(self, ctx: typer.Context) -> object:
        result = super().invoke(ctx)
        if result is False:
            raise typer.Exit(1)
        return result


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def rods() -> None:
    """RODS Streams: train tool-use agents from an event log that also makes the training tasks."""


def main() -> None:
    """Entry point. An error of a kind defined here is for a person: one message and exit code 2; any other keeps its trace."""
    try:
        app()
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ROOMS:
            raise
        text = Text.assemble(("rods:", "red"), f" {error.args[0] if isinstance(error, KeyError) else error}")
        Console(stderr=True).print(text, highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
