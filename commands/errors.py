"""Errors a person can mend: they reach the terminal as one message, without a trace."""

from __future__ import annotations

from analysis.fork import NothingToFork
from commands.config import ConfigError
from commands.fleet import BrokerLost
from commands.folder import RunInUse
from environments.interface import EnvironmentUnavailable
from schemas.credentials import CredentialError
from schemas.registry import RegistryUnavailable, SchemaRefused
from streams.log.embedded_broker import BrokerNotStarted
from streams.log.port import LogGap, LogUnavailable
from streams.log.topics import UnsafeTopic
from streams.processes import ProcessFailed

MENDABLE = (
    BrokerLost,
    BrokerNotStarted,
    ConfigError,
    CredentialError,
    EnvironmentUnavailable,
    LogGap,
    LogUnavailable,
    NothingToFork,
    ProcessFailed,
    RegistryUnavailable,
    RunInUse,
    SchemaRefused,
    UnsafeTopic,
)
