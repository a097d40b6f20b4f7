"""Secrets by reference: a setting says where a secret is, and it is looked up when it is used.

``env:NAME`` is a variable of the process, ``file:/path`` the content of a file (as container engines mount secrets).
A reference may stand in a configuration, a command line or an event; the secret itself never does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ENV, FILE = "env:", "file:"


class CredentialError(ValueError):
    """A secret that cannot be used; the text names the setting and what to do, never the value."""


def is_reference(value: str) -> bool:
    """Whether a setting refers to a secret instead of holding it.

    >>> is_reference("env:KAFKA_PASSWORD"), is_reference("hunter2")
    (True, False)
    """
    return value.startswith((ENV, FILE))


def resolved(setting: str, value: str, environment: Mapping[str, str] = os.environ) -> str:
    """The value behind a reference; any other value as it is.

    Raises:
        CredentialError: the variable is not set, or the file cannot be read.
    """
    if value.startswith(ENV):
        name = value.removeprefix(ENV)
        if name not in environment:
            raise CredentialError(f"{setting}: environment variable {name} is not set")
        return environment[name]
    if value.startswith(FILE):
        path = Path(value.removeprefix(FILE))
        try:
            return path.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialError(f"{setting}: secret file {path} cannot be read: {error}") from error
    return value
