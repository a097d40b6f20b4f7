"""``rods config``: every setting with its value, meaning and source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from commands.config import load_config


def settings_of(section: BaseModel, path: str = "") -> Iterator[tuple[str, object, str]]:
    """(key, value, meaning) of every setting, sections unfolded."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from settings_of(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value, field.description or ""


def show(file: Path | None, overrides: list[str], as_json: bool, console: Console) -> None:
    """Print the resolved configuration."""
    config = load_config(file, os.environ, overrides)
    if as_json:
        print(config.as_json())
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "meaning and source"):
        table.add_column(heading)
    for key, value, meaning in settings_of(config):
        table.add_row(key, str(value), meaning)
    console.print(table)
