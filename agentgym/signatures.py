"""A method's signature as a JSON schema, and the check of what is given for it (pydantic, imported at first use)."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_type_hints

from agentgym.errors import UserError, pip_install

_ARGUMENT = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Yields|Raises|Notes?|Examples?):\s*$", re.MULTILINE)


class Refused(Exception):
    """What is given is not what the signature takes; the text says so in one line."""


@dataclass(frozen=True, slots=True)
class Signature:
    """description: the docstring without its sections. parameters: a JSON schema of type object."""

    description: str
    parameters: Mapping[str, Any]
    _validate: Callable[[Any], Any]  # raises pydantic's ValidationError

    def take(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as their types say: "3" is taken for 3. What is left out is left to the method's default.

        Raises Refused: each fault with its place, `count: Input should be a valid integer; colour: ...`.
        """
        try:
            taken: dict[str, Any] = self._validate(given)
            return taken
        except ValueError as error:
            faults = cast(Any, error).errors(include_url=False, include_context=False, include_input=False)
            lines = (f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in faults)
            raise Refused("; ".join(dict.fromkeys(lines))) from None


def read_signature(method: Callable[..., Any], *, skip: int) -> Signature:
    """Raises UserError, with what is missing, for a method that cannot be called by name with JSON.

    skip: leading parameters that are not the caller's, such as `self`.
    """
    description, described = read_docstring(method)
    if not description:
        raise UserError("it has no docstring; the agent reads it to know what the tool does")
    try:
        hints = get_type_hints(method, include_extras=True)
    except Exception as error:  # an annotation is code
        raise UserError(
            f"its types cannot be read: {error}; use types that are defined at the top level of the module"
        ) from error
    parameters = list(inspect.signature(method).parameters.values())[skip:]
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
            raise UserError(f"the parameter '{stars}{one.name}' cannot be given by name; give each parameter a name")
        if one.name not in hints:
            raise UserError(f"the parameter {one.name!r} has no type; annotate it, for example `{one.name}: str`")
    if unknown := described.keys() - {one.name for one in parameters}:
        raise UserError(f"its docstring describes {min(unknown)!r}, which is not one of its parameters")
    adapter = _adapter(method, parameters, hints, described)
    try:
        schema = _without_titles(adapter.json_schema())
    except Exception as error:  # pydantic has several
        raise UserError(f"its types have no JSON schema: {_first_line(error)}") from error
    for one in parameters:
        if one.default is not one.empty and _is_json(one.default):
            schema["properties"][one.name]["default"] = one.default
    return Signature(description, schema, adapter.validator.validate_python)


def _adapter(
    method: Callable[..., Any],
    parameters: list[inspect.Parameter],
    hints: Mapping[str, Any],
    described: Mapping[str, str],
) -> Any:
    """Checks a dictionary of arguments. A TypedDict, since a model's fields could not be called `json` or `copy`."""
    try:
        from typing import NotRequired

        from pydantic import ConfigDict, Field, TypeAdapter, with_config
        from typing_extensions import TypedDict
    except ImportError as error:
        raise UserError(f"tools need pydantic: {pip_install('tools')}") from error
    fields: dict[str, Any] = {}
    for one in parameters:
        hint = hints[one.name]
        if one.name in described:
            hint = Annotated[hint, Field(description=described[one.name])]
        fields[one.name] = hint if one.default is one.empty else NotRequired[hint]
    make: Any = TypedDict  # as a function: the fields are known at run time only
    arguments = make("Arguments", fields)
    try:
        # Not strict: a format without quotes has only texts. Unknown names are not dropped in silence.
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(arguments))
    except Exception as error:  # pydantic has several
        raise UserError(f"its types cannot be checked: {_first_line(error)}") from error


def read_docstring(method: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The text before the first section, and what `Args:` says of each parameter (Google style)."""
    text = inspect.getdoc(method) or ""
    parts = _SECTION.split(text)  # text, then name and body of each section
    described: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in ("Args", "Arguments", "Parameters"):
            described |= _read_arguments(body)
    return " ".join(parts[0].split()), described


def _read_arguments(body: str) -> dict[str, str]:
    """Each parameter begins a line at the smallest indent; deeper lines continue it."""
    lines = [line for line in body.splitlines() if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    described: dict[str, str] = {}
    last = ""
    for line in lines:
        match = _ARGUMENT.match(line) if len(line) - len(line.lstrip()) == indent else None
        if match and indent:
            last = match[1]
            described[last] = match[2].strip()
        elif last and len(line) - len(line.lstrip()) > indent:
            described[last] = f"{described[last]} {line.strip()}".strip()
        else:
            break  # text after the section
    return described


_VALUES = ("default", "const", "enum", "examples")
_FIRST = ("type", "description", "properties", "required")  # in the order in which models have seen them


def _without_titles(schema: Any, *, names: bool = False) -> Any:
    """Removes pydantic's `title`s, which cost tokens and say nothing. names: the keys are names, not keywords."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if names:
        return {name: _without_titles(part) for name, part in schema.items()}
    keys = [*(key for key in _FIRST if key in schema), *(key for key in schema if key not in _FIRST)]
    return {
        key: _without_titles(schema[key], names=key in ("properties", "$defs")) if key not in _VALUES else schema[key]
        for key in keys
        if key != "title"
    }


def _is_json(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


@functools.cache
def _jsonable() -> Callable[[object], Any]:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python


def to_json_value(value: object) -> Any:
    """What JSON has for a dataclass, a date, a set and the like. Raises TypeError for what it has nothing for."""
    try:
        return _jsonable()(value)
    except Exception as error:
        raise TypeError(f"a {type(value).__name__} cannot be written as JSON") from error
