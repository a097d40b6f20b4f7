"""Live simulators of one task: built once as a prototype, then copied per rollout, so that no two rollouts share.

A prototype is the package's own loading code run on the task's configuration. Copies are made from its serialised
attributes; random generators are created only when a function draws from them.
"""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import c_make_encoder, encode_basestring_ascii
from operator import itemgetter
from typing import Any

from environments.bfcl.catalogue import CHANGERS, schemas, simulator_class
from environments.bfcl.guards import REPLACEMENTS
from environments.interface import EnvironmentUnavailable
from schemas.events import Task

STATELESS = frozenset({"MathAPI"})
MAX_PLANS = 2_048
MESSAGE_SEED = 200191


class LazyRandom:
    """The package's generator at its seeded start, created at the first draw: most rollouts never draw."""

    __slots__ = ("_generator", "_seed")

    def __init__(self, seed: int | str, generator: random.Random | None = None) -> None:
        self._seed = seed
        self._generator = generator

    def _live(self) -> random.Random:
        if self._generator is None:
            self._generator = random.Random(self._seed)
        return self._generator

    def randint(self, low: int, high: int) -> int:
        """As random.Random.randint."""
        return self._live().randint(low, high)

    def uniform(self, low: float, high: float) -> float:
        """As random.Random.uniform."""
        return self._live().uniform(low, high)

    def __deepcopy__(self, memo: dict) -> LazyRandom:
        return LazyRandom(self._seed, copy.deepcopy(self._generator))


@dataclass(frozen=True, slots=True)
class Route:
    """How one function is reached: its simulator's position, the function, defaults that need a fresh copy, effect."""

    position: int
    function: Callable[..., Any]
    fresh: tuple[tuple[str, type], ...]
    changes: bool


@dataclass(frozen=True, slots=True)
class SimulatorPlan:
    """Everything that all rollouts of one task share; nothing in it is ever changed."""

    classes: tuple[type, ...]
    attributes: bytes
    seeds: tuple[int | str | None, ...]
    routes: Mapping[str, Route]
    public: tuple[tuple[str, ...], ...]
    readers: tuple[Callable[[dict], Any], ...]
    initial: tuple[object, ...]
    has_text_ticket_ids: bool


class Simulators:
    """The state of one rollout: one instance per tool class.

    ``equal_to`` holds per instance the marked values that it is known to be equal to; None once it may have changed.
    """

    __slots__ = ("equal_to", "instances", "plan", "routes")

    def __init__(self, plan: SimulatorPlan, instances: tuple[Any, ...]) -> None:
        self.plan = plan
        self.routes = plan.routes
        self.instances = instances
        self.equal_to: list[object] = list(plan.initial)


def plan_of(task: Task) -> SimulatorPlan:
    """The shared plan of a task.

    Raises:
        EnvironmentUnavailable: unknown class, or a configuration the simulators cannot load.
    """
    return _plan(task.involved_classes, task.initial_config_json, task.long_context, task.id_seed)


@lru_cache(maxsize=MAX_PLANS)
def _plan(class_names: tuple[str, ...], config_json: str, long_context: bool, id_seed: int) -> SimulatorPlan:
    config = json.loads(config_json)
    instances = [_load(name, config.get(name, {}), long_context) for name in class_names]
    seeds = tuple(
        _take_seed(instance, config.get(name, {}), id_seed)
        for instance, name in zip(instances, class_names, strict=True)
    )
    public = tuple(tuple(key for key in vars(each) if not key.startswith("_")) for each in instances)
    readers = tuple(itemgetter(*names) if names else _nothing for names in public)
    return SimulatorPlan(
        classes=tuple(type(instance) for instance in instances),
        attributes=pickle.dumps([vars(instance) for instance in instances], protocol=pickle.HIGHEST_PROTOCOL),
        seeds=seeds,
        routes=_routes(class_names),
        public=public,
        readers=readers,
        initial=tuple(copy.deepcopy(read(vars(each))) for read, each in zip(readers, instances, strict=True)),
        has_text_ticket_ids=any(
            isinstance(ticket.get("id"), str) for each in instances for ticket in getattr(each, "ticket_queue", ())
        ),
    )


def _nothing(attributes: dict) -> None:
    """The public values of a simulator that has none."""


def _load(class_name: str, config: Mapping, long_context: bool) -> Any:
    instance = simulator_class(class_name)()
    if class_name in STATELESS:
        return instance
    try:
        instance._load_scenario(copy.deepcopy(config), long_context=long_context)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise EnvironmentUnavailable(f"{class_name} cannot load this initial configuration: {error!r}") from error
    return instance


def _take_seed(instance: Any, config: Mapping, id_seed: int) -> int | str | None:
    """Remove the generator from a prototype and return the seed it had, or the task's own; None without a generator."""
    generator = vars(instance).pop("_random", None)
    if generator is None:
        return None
    if id_seed:
        return f"{id_seed}:{type(instance).__name__}"
    defaults = sys.modules[type(instance).__module__].DEFAULT_STATE
    for seed in (config.get("random_seed"), defaults.get("random_seed"), MESSAGE_SEED):
        if isinstance(seed, (int, str)) and random.Random(seed).getstate() == generator.getstate():
            return seed
    raise EnvironmentUnavailable(f"{type(instance).__name__} starts its random numbers in an unknown way")


@lru_cache(maxsize=256)
def _routes(class_names: tuple[str, ...]) -> Mapping[str, Route]:
    routes: dict[str, Route] = {}
    for position, class_name in enumerate(class_names):
        for name in schemas(class_name):
            function = getattr(simulator_class(class_name), name)
            fresh = tuple(
                (parameter.name, type(parameter.default))
                for parameter in inspect.signature(function).parameters.values()
                if isinstance(parameter.default, (list, dict, set))
            )
            replaced = REPLACEMENTS.get((class_name, name), function)
            routes[name] = Route(position, replaced, fresh, name in CHANGERS[class_name])
    return routes


def start(plan: SimulatorPlan) -> Simulators:
    """Fresh simulators; every mutable value in them is their own."""
    instances = []
    for cls, attributes, seed in zip(plan.classes, pickle.loads(plan.attributes), plan.seeds, strict=True):
        instance = cls.__new__(cls)
        instance.__dict__ = attributes
        if seed is not None:
            attributes["_random"] = LazyRandom(seed)
        instances.append(instance)
    return Simulators(plan, tuple(instances))


def duplicate(state: Simulators) -> Simulators:
    """A copy that shares nothing mutable; objects shared inside the state stay shared inside the copy."""
    copied = Simulators(state.plan, copy.deepcopy(state.instances))
    copied.equal_to = list(state.equal_to)
    return copied


def render(result: object) -> str:
    """A result as the policy reads it: text as it is, mappings as JSON where possible, all else as Python prints it."""
    if type(result) is str:
        return result
    if type(result) is dict:
        try:
            return "".join(_ENCODE(result, 0))
        except (TypeError, ValueError, RecursionError):
            return str(result)
    return str(result)


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is no JSON")


_ENCODE = c_make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)
"""The C encoder behind ``json.dumps`` with its default settings, made once instead of once per result."""
