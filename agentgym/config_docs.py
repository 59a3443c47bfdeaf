"""What settings are: the docstring below each field of a config, and the text that annotates a parameter.

Both are read when help is asked for, fields from the source, since Python keeps no docstring of a field.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from agentgym.python_syntax import parse_module
from agentgym.signatures import read_docstring
from agentgym.yaml import dump_inline


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. type_name: as a person reads it. default: as YAML writes it; empty for one that is required."""

    key: str
    type_name: str
    default: str
    text: str

    def as_json(self) -> dict[str, str]:
        return {"key": self.key, "type": self.type_name, "default": self.default, "text": self.text}


@functools.cache
def field_docs(cls: type) -> Mapping[str, str]:
    """The docstring below each field of a dataclass, or of the base class that has one; no entry for others."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if dataclasses.is_dataclass(one):
            found |= _docs_of_module(one.__module__).get(one.__qualname__, {})
    return found


@functools.cache
def _docs_of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """The field docstrings by class; empty for a module without source."""
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        tree = parse_module(Path(file or "").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    return {path: _docs_of_class(node) for path, node in _classes(tree, "")}


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")


def _docs_of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(ast.Constant(str() as text)):
                    found[field.target.id] = " ".join(text.split())
    return found


def options_of(factory: Callable[..., Any]) -> list[Setting]:
    """The options of an environment, or of a function that builds one, in the order of its signature.

    An option's text is the string in its annotation, `size: Annotated[int, "tasks at most"]`, the docstring below it
    where the factory is a dataclass, or its entry under `Args:` in the docstring.
    """
    place = getattr(factory, "__init__", factory) if inspect.isclass(factory) else factory
    try:
        hints = typing.get_type_hints(place, localns={"Json": object}, include_extras=True)
    except Exception:  # a name of another author's annotations may exist only for type checkers
        hints = {}
    texts = {**read_docstring(place)[1], **(field_docs(factory) if isinstance(factory, type) else {})}
    return [
        Setting(
            key=f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name,
            type_name="" if one.annotation is one.empty else type_name(hints.get(one.name, one.annotation)),
            default="" if one.default is one.empty else shown_default(one.default),
            text=text,
        )
        for one in inspect.signature(factory).parameters.values()
        if (text := _annotated(hints.get(one.name)) or texts.get(one.name, ""))
        or one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]


def _annotated(hint: object) -> str:
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, str)), "")


def shown_default(value: object) -> str:
    try:
        return dump_inline(value)
    except Exception:  # an object of another author's, which YAML cannot write
        return repr(value)


def type_name(hint: object) -> str:
    """A type as a person reads it: `int or null`, `one of auto, cpu`, `list of str`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is object or hint is Any:
        return "any value"
    if hint is type(None):
        return "null"
    if origin is Annotated:
        return type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(argument) for argument in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"list of {', '.join(map(type_name, arguments))}"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return f"mapping of {type_name(arguments[0])} to {type_name(arguments[1])}"
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return f"list of {type_name(arguments[0])}"
    return hint.__name__ if isinstance(hint, type) else str(hint)
