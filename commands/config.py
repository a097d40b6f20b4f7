"""The configuration of a run: TOML file, environment, ``--set``; typed, and refused with the reason when wrong.

Later sources win: defaults, then the file, then ``RODS_SECTION__KEY`` variables, then ``--set section.key=value``.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from commands.options import AsJson, ConfigFile, Overrides, columns, console
from environments.interface import EnvironmentUnavailable
from environments.parsing import parser
from schemas.events import RewardKind
from streams.log.connection import Connection
from streams.pool.settings import PoolConfig
from synthesizer.config import SynthesisConfig
from trainer.config import TrainerConfig
from trainer.curriculum import Advance

ENV_PREFIX = "RODS_"
DEFAULT_FILE = Path(__file__).parent / "configs" / "default.toml"


GONE = {("synthesis", "max_generation"): "pool.max_generation"}
"""Settings of earlier versions, by section and name, and what decides now."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the text names each key and why."""


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunSection(Section):
    """Where and how often."""

    folder: Path = Field(Path("runs"), description="Run folders go here.")
    seed: int = Field(7, ge=0, description="Master seed: epoch order, sampling, everything drawn.")
    name: str = Field("", pattern=r"^[a-z0-9-]*$", description="Put before the run id; lower case, digits, hyphens.")
    restarts: int = Field(
        5, ge=0, description="How often a process that crashed is started again before the run gives up."
    )


class KafkaSection(Section):
    """The broker."""

    bootstrap_servers: str = Field("", description="host:port list; empty starts the embedded broker.")
    port: int = Field(0, ge=0, le=65535, description="Port of the embedded broker on 127.0.0.1; 0 takes a free one.")
    topic_prefix: str = Field("rods.", description="Put before every topic name.")
    num_decision_partitions: int = Field(
        1, ge=1, description="Partitions of decision topics; a run lies in one of them."
    )
    num_spread_partitions: int = Field(2, ge=1, description="Partitions of trajectories.")
    replication_factor: int = Field(1, ge=1, description="Copies of each topic; 3 on a real cluster.")
    client: dict[str, str] = Field(default_factory=dict, description="librdkafka settings for every client (security).")

    @model_validator(mode="after")
    def check_port(self) -> KafkaSection:
        """A port only makes sense for the embedded broker."""
        if self.bootstrap_servers and self.port:
            raise ValueError("kafka.port belongs to the embedded broker; drop it or drop kafka.bootstrap_servers")
        return self

    def connection(self, bootstrap_servers: str = "") -> Connection:
        """Client settings, for the embedded broker's address if one is given."""
        return Connection(
            bootstrap_servers=bootstrap_servers or self.bootstrap_servers,
            embedded=not self.bootstrap_servers,
            prefix=self.topic_prefix,
            num_decision_partitions=self.num_decision_partitions,
            num_spread_partitions=self.num_spread_partitions,
            replication_factor=self.replication_factor,
            client=self.client,
        )


class TaskSection(Section):
    """Which tasks are trained on and which are held out."""

    environment: str = Field("bfcl-v3", description="Registered environment.")
    train: tuple[str, ...] = Field(
        (), description="Ids of the human seeds in seeding order; empty takes the whole training split."
    )
    id_seed: int = Field(
        0,
        ge=0,
        description="Draws the simulators' random ids anew per task, so that none can be learned by "
        "heart, and the ground truth with them; 0 keeps the official constants.",
    )
    heldout: tuple[str, ...] = Field(
        (), description="Ids of the fixed held-out tasks; empty takes the validation split."
    )

    @field_validator("train", "heldout")
    @classmethod
    def check_ids(cls, ids: tuple[str, ...]) -> tuple[str, ...]:
        """A task is named once: twice in a list would count it twice."""
        twice = sorted({task_id for task_id in ids if ids.count(task_id) > 1})
        if twice:
            raise ValueError(f"named more than once: {', '.join(twice)}")
        return ids


class StageSection(Section):
    """One curriculum stage."""

    name: str = Field(description="Name of the stage.")
    epochs: int = Field(ge=1, description="Passes over the pool.")
    reward: RewardKind = Field(RewardKind.PROGRESS, description="Reward that drives the update.")
    synthesis: bool = Field(True, description="Whether boundary tasks are sent to the synthesizer.")
    categories: tuple[Literal["base", "miss_func", "miss_param", "long_context"], ...] = Field(
        ("base", "miss_func", "miss_param", "long_context"), description="Categories of the seeds it trains on."
    )
    advance: Advance = Field(Advance(), description="When the stage ends before its epochs are over.")

    @model_validator(mode="after")
    def check_advance(self) -> StageSection:
        """A stage that may end at any epoch cannot make tasks for a later one."""
        if self.synthesis and self.advance.by == "converged":
            raise ValueError(f"stage {self.name}: advance.by = 'converged' needs synthesis = false")
        if "+" in self.name:
            raise ValueError(f"stage {self.name}: '+' is kept for continued stages")
        return self


class PolicySection(Section):
    """The model that is trained, and how a chat model is spoken to and read. A checkpoint keeps the latter."""

    path: str = Field(
        "default", description="A transformers causal LM by folder; 'default' is the shipped small policy."
    )
    parser: str = Field(
        "",
        description="How messages of a chat model are read: hermes, strict, llama3, openai, python, an installed one or "
        "module:attribute; empty takes what the checkpoint says, else hermes.",
    )
    system_text: str = Field(
        "",
        description="System message of a chat model, before the tools that its chat template adds; empty takes what the "
        "checkpoint says, else two plain sentences. A grammar that the model does not know belongs here.",
    )
    template_options: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="Values for the chat template, such as enable_thinking, and date (what a template is told that asks for "
        "today); empty takes what the checkpoint says.",
    )

    @model_validator(mode="after")
    def check_parser(self) -> PolicySection:
        """The parser must be there, and the shipped policy has a format of its own."""
        if self.path == "default" and (self.parser or self.system_text or self.template_options):
            raise ValueError(
                "the shipped policy speaks a format of its own: drop parser, system_text and template_options"
            )
        try:
            if self.parser:
                parser(self.parser)
        except EnvironmentUnavailable as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def spoken(self) -> dict[str, object]:
        """How the model is spoken to and read, as ``trainer.policy.load_policy`` takes it."""
        return {"parser": self.parser, "system_text": self.system_text, "template_options": self.template_options}


class RunConfig(Section):
    """Everything a run depends on; recorded whole in RunStarted."""

    run: RunSection = RunSection()
    kafka: KafkaSection = KafkaSection()
    tasks: TaskSection = TaskSection()
    stages: tuple[StageSection, ...] = (StageSection(name="full", epochs=5),)
    policy: PolicySection = PolicySection()
    pool: PoolConfig = PoolConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    trainer: TrainerConfig = TrainerConfig()

    @model_validator(mode="after")
    def check_stages(self) -> RunConfig:
        """Stage names are the identity of StageStarted."""
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"stages need distinct names and at least one, got {names}")
        for stage in self.stages:
            if stage.advance.by == "converged" and not self.trainer.eval_rollouts:
                raise ValueError(
                    f"stage {stage.name}: advance.by = 'converged' asks for held-out reward, and trainer.eval_rollouts is 0"
                )
        return self

    @property
    def synthesis_wait_s(self) -> float:
        """How much longer than ``trainer.patience_s`` a plan may take where an epoch waits for the synthesizer, seconds."""
        return self.synthesis.deadline_s if self.pool.await_synthesis else 0.0

    def as_json(self) -> str:
        """Canonical JSON: sorted keys, no blanks; client settings of the broker, which may hold secrets, stay out."""
        values = self.model_dump(mode="json", exclude={"kafka": {"client"}})
        return json.dumps(values, sort_keys=True, separators=(",", ":"))


def parsed_value(text: str) -> object:
    """A value as TOML reads it; a bare word is a string.

    >>> parsed_value("3"), parsed_value("true"), parsed_value("phi"), parsed_value("[1, 2]")
    (3, True, 'phi', [1, 2])
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def assignments(overrides: Sequence[str], expected: str = "expected section.key=value") -> Iterator[tuple[str, str]]:
    """(key, text of the value) of each ``--set``.

    Args:
        overrides: as they were typed.
        expected: what they must look like, for the message; a key needs a section if this names one.

    Raises:
        ConfigError: one does not look so.
    """
    for override in overrides:
        key, sign, text = (part.strip() for part in override.partition("="))
        if not sign or ("." in expected and "." not in key):
            raise ConfigError(f"--set {override!r}: {expected}")
        yield key, text


def put(tree: dict, key: str, text: str) -> None:
    """Set a value by its dotted key, making tables on the way.

    Raises:
        ConfigError: the way leads through a value.
    """
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{key}: {section} is a value, not a section")
    tree[name] = parsed_value(text)


def load_config(file: Path | None, environment: Mapping[str, str], overrides: Sequence[str]) -> RunConfig:
    """The configuration from all sources.

    Args:
        file: TOML file; the shipped default if ``None``.
        environment: variables of the process.
        overrides: ``section.key=value`` texts.

    Raises:
        ConfigError: unreadable file, unknown key, wrong type or combination.
    """
    path = file or DEFAULT_FILE
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file {path} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path}: {error}") from error
    for name, text in sorted(environment.items()):
        if name.startswith(ENV_PREFIX) and "__" in name:
            put(tree, name.removeprefix(ENV_PREFIX).lower().replace("__", "."), text)
    for key, text in assignments(overrides):
        put(tree, key, text)
    for (section, name), now in GONE.items():
        if name in tree.get(section, {}):
            raise ConfigError(f"configuration from {path} cannot be used:\n  {section}.{name}: there is {now} instead")
    return validated(tree, str(path))


def validated(tree: dict, source: str) -> RunConfig:
    """The typed configuration of a tree; settings that runs of earlier versions recorded and that are gone are passed over.

    Raises:
        ConfigError: one line per fault, with the key and the reason.
    """
    gone = {section for section, _ in GONE} & tree.keys()
    left = {s: {name: value for name, value in tree[s].items() if (s, name) not in GONE} for s in sorted(gone)}
    try:
        return RunConfig.model_validate({**tree, **left})
    except ValidationError as error:
        lines = []
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"]) or "config"
            reason = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"]
            lines.append(f"  {key}: {reason}")
        raise ConfigError(f"configuration from {source} cannot be used:\n" + "\n".join(lines)) from error


def settings_of(section: BaseModel, path: str = "") -> Iterator[tuple[str, object, str]]:
    """(key, value, meaning) of every setting, sections unfolded."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from settings_of(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value, field.description or ""


def config(file: ConfigFile = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Every setting with its value, meaning and source."""
    resolved = load_config(file, os.environ, overrides or [])
    if as_json:
        print(resolved.as_json())
        return
    table = columns("setting", "value", "meaning and source")
    for key, value, meaning in settings_of(resolved):
        table.add_row(key, str(value), meaning)
    console.print(table)
