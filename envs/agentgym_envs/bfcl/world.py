"""The worlds of one BFCL conversation: objects of the package's classes, their functions, and comparing two of them."""

from __future__ import annotations

import copy
import decimal
import inspect
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from agentgym.tools import ToolError
from agentgym.types import Json
from agentgym_envs.bfcl.entries import Entry, GoldCall

MODULES: Final = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""The classes of the multi-turn categories, and the modules of the package that define them."""
STATELESS: Final = frozenset({"MathAPI"})
_COSTLY: Final = {"precision": 1000, "decimal_places": 1000, "exponent": 1000}
"""Numbers that decide how long a calculation takes, with the largest that is carried out: nothing could stop it."""
_LARGEST: Final = 1e40  # of all other numbers of a calculation


class World:
    """The objects of one conversation, loaded with its initial state."""

    def __init__(self, classes: Mapping[str, type[Any]], entry: Entry) -> None:
        self._objects: dict[str, Any] = {}
        self._methods: dict[str, Any] = {}
        for name in entry.classes:
            made = classes[name]()
            if name not in STATELESS:
                initial = copy.deepcopy(entry.initial.get(name, {}))
                made._load_scenario(initial, long_context=entry.category == "long_context")
            self._objects[name] = made
            for function, method in inspect.getmembers(made, inspect.ismethod):
                if not function.startswith("_"):
                    self._methods[function] = method

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out one call; its result as text. Raises ToolError where the function raised."""
        method = self._methods.get(name)
        if method is None:
            raise ToolError(f"Error during execution: no function {name!r:.80}")
        if type(method.__self__).__name__ in STATELESS:
            _refuse_large(arguments)
        try:
            with decimal.localcontext():  # one of the functions sets the precision
                value = method(**copy.deepcopy(dict(arguments)))  # some functions keep and change a list
                return _text(value)
        except Exception as error:  # the benchmark's rule: whatever a function raises is its reply
            raise ToolError(f"Error during execution: {error}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._methods

    def bound(self, call: GoldCall) -> dict[str, Json]:
        """A right call's arguments by name."""
        method = self._methods.get(call.name)
        names = list(inspect.signature(method).parameters) if method is not None else []
        return {**dict(zip(names, call.positional, strict=False)), **call.named}

    def equals(self, other: World) -> bool:
        """Whether all public attributes of all objects are equal."""
        return all(
            getattr(mine, name, _MISSING) == value
            for key, mine in self._objects.items()
            for name, value in vars(other._objects[key]).items()
            if not name.startswith("_")
        )


_MISSING: Final = object()


def _refuse_large(arguments: Mapping[str, Any]) -> None:
    """Raises ToolError for a number, also as text, with which a calculation may never end."""
    for name, value in arguments.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        except OverflowError:  # an integer of hundreds of digits
            number = math.inf
        if abs(number) > (most := _COSTLY.get(name, _LARGEST)):
            raise ToolError(f"Error during execution: {name} is beyond {most:g}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):  # it holds objects
            return str(value)
    return str(value)
