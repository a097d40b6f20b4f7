"""The eight tool classes: where each lives, and the schema of each of their 128 functions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from environments.bfcl.source import json_lines, simulator_module
from environments.interface import EnvironmentUnavailable, ToolSchema

MODULES = MappingProxyType(
    {
        "GorillaFileSystem": "gorilla_file_system",
        "MathAPI": "math_api",
        "MessageAPI": "message_api",
        "TwitterAPI": "posting_api",
        "TicketAPI": "ticket_api",
        "TradingBot": "trading_bot",
        "TravelAPI": "travel_booking",
        "VehicleControlAPI": "vehicle_control",
    }
)
CHANGERS = MappingProxyType(
    {
        "GorillaFileSystem": frozenset({"cp", "echo", "mkdir", "mv", "rm", "rmdir", "touch"}),
        "MathAPI": frozenset(),
        "MessageAPI": frozenset({"add_contact", "delete_message", "message_login", "send_message"}),
        "TwitterAPI": frozenset(
            {"authenticate_twitter", "comment", "follow_user", "mention", "post_tweet", "retweet", "unfollow_user"}
        ),
        "TicketAPI": frozenset(
            {"close_ticket", "create_ticket", "edit_ticket", "logout", "resolve_ticket", "ticket_login"}
        ),
        "TradingBot": frozenset(
            {
                "add_to_watchlist",
                "cancel_order",
                "fund_account",
                "place_order",
                "remove_stock_from_watchlist",
                "trading_login",
                "trading_logout",
                "withdraw_funds",
            }
        ),
        "TravelAPI": frozenset(
            {
                "authenticate_travel",
                "book_flight",
                "cancel_booking",
                "purchase_insurance",
                "register_credit_card",
                "set_budget_limit",
            }
        ),
        "VehicleControlAPI": frozenset(
            {
                "activateParkingBrake",
                "adjustClimateControl",
                "fillFuelTank",
                "lockDoors",
                "pressBrakePedal",
                "releaseBrakePedal",
                "setCruiseControl",
                "setHeadlights",
                "set_navigation",
                "startEngine",
            }
        ),
    }
)
"""Functions that can change the public state; all others only read it, so a state need not be compared after them."""
JSON_TYPES = {"dict": "object", "float": "number"}


@cache
def simulator_class(name: str) -> type:
    """The simulator class of that name.

    Raises:
        EnvironmentUnavailable: no such class.
    """
    if name not in MODULES:
        raise EnvironmentUnavailable(f"no tool class '{name}'; there are {', '.join(MODULES)}")
    return getattr(simulator_module(MODULES[name]), name)


@cache
def schemas(class_name: str) -> Mapping[str, ToolSchema]:
    """Schemas of one class by function name, sorted by name; parameters in the order of the signature."""
    cls = simulator_class(class_name)
    found = {}
    for record in json_lines("multi_turn_func_doc", f"{MODULES[class_name]}.json"):
        name = record["name"]
        order = list(inspect.signature(getattr(cls, name)).parameters)[1:]
        found[name] = ToolSchema(name, record["description"], _parameters(record["parameters"], order), class_name)
    return MappingProxyType({name: found[name] for name in sorted(found)})


def _parameters(schema: Mapping[str, Any], order: list[str]) -> Mapping[str, Any]:
    converted = _json_schema(schema)
    converted["properties"] = {name: converted["properties"][name] for name in order}
    return converted


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The package's own type names turned into JSON schema's; the text "None" as a default turned into null."""
    converted = dict(schema)
    converted["type"] = JSON_TYPES.get(schema["type"], schema["type"])
    if "items" in schema:
        converted["items"] = _json_schema(schema["items"])
    if "properties" in schema:
        converted["properties"] = {name: _json_schema(each) for name, each in schema["properties"].items()}
    if schema.get("default") == "None":
        converted["default"] = None
    return converted


def with_text_ticket_ids(schema: ToolSchema) -> ToolSchema:
    """The schema with ticket ids that may also be text: one seed's queue holds a ticket with the id ``ticket_001``."""
    properties = schema.parameters["properties"]
    if schema.owner != "TicketAPI" or "ticket_id" not in properties:
        return schema
    ticket_id = {**properties["ticket_id"], "type": ["integer", "string"]}
    return replace(schema, parameters={**schema.parameters, "properties": {**properties, "ticket_id": ticket_id}})
