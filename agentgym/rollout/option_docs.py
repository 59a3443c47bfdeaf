"""What an environment's options are: their names, values and defaults, and what its docstring says of each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from agentgym.types import Json

_RAISES: Final = re.compile(r"(^|\s)Raises\b.*", re.DOTALL)  # says nothing of an option, and is the end


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionDoc:
    """One option. values: its type, or the values of a Literal. default: as Python writes it; "" if required."""

    name: str
    values: str
    default: str
    text: str

    def as_json(self) -> dict[str, Json]:
        return {"name": self.name, "values": self.values, "default": self.default, "text": self.text}


def option_docs(factory: Callable[..., Any]) -> list[OptionDoc]:
    """The options of an environment, or of a function that builds one, in the order of its signature.

    An option's text is its entry, `name: text` or `name, other: text`, in the docstring of `__init__`, of the class
    or of the function; without an entry it is the clause that begins with its name.
    """
    parameters = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    texts = _texts(_docstring(factory), [parameter.name for parameter in parameters])
    types = _types(factory)
    return [
        OptionDoc(
            name=parameter.name,
            values=_values(types.get(parameter.name, parameter.annotation)),
            default="" if parameter.default is parameter.empty else repr(parameter.default),
            text=texts.get(parameter.name, ""),
        )
        for parameter in parameters
    ]


def _docstring(factory: Callable[..., Any]) -> str:
    own = vars(factory).get("__init__") if inspect.isclass(factory) else None
    inherited = getattr(factory, "__init__", None) if inspect.isclass(factory) else None
    for place in (own, inherited, factory):
        text = None if place is None else place.__doc__  # from Python 3.13 on None has a docstring too
        if text and text != object.__init__.__doc__:
            return _RAISES.sub("", inspect.cleandoc(text))
    return ""


def _types(factory: Callable[..., Any]) -> dict[str, Any]:
    place = getattr(factory, "__init__", factory) if inspect.isclass(factory) else factory
    try:
        return get_type_hints(place)
    except Exception:  # a name of another author's annotations may exist only for type checkers
        return {}


def _values(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if isinstance(annotation, str):
        return annotation
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        return annotation.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(annotation))


def _texts(docstring: str, names: Iterable[str]) -> dict[str, str]:
    known = list(names)
    if not known:
        return {}
    name = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    entry = re.compile(rf"(?:^|(?<=\s))((?:{name})(?:(?:, | and )(?:{name}))*)(?: \([^)]*\))?: ")
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", docstring):
        text = " ".join(paragraph.split())
        starts = [
            match for match in entry.finditer(text) if match.start() == 0 or text[: match.start()].rstrip()[-1] in ".;:"
        ]
        ends = [*(match.start() for match in starts[1:]), len(text)]
        for match, end in zip(starts, ends, strict=False):
            for one in re.split(r", | and ", match[1]):
                found.setdefault(one, text[match.end() : end].strip().rstrip(";"))
    return {**_clauses(docstring, set(known) - set(found)), **found}


def _clauses(docstring: str, names: Iterable[str]) -> dict[str, str]:
    """For options without an entry: the first clause that begins with the name, or at least has it as a word."""
    clauses = [clause.strip() for clause in re.split(r"; |\. |(?<=\w): ", " ".join(docstring.split()))]
    found = {}
    for name in names:
        word = re.compile(rf"\b{re.escape(name)}\b")
        having = sorted(
            (clause for clause in clauses if word.search(clause)), key=lambda text: not text.startswith(name)
        )
        if having:
            found[name] = having[0].removeprefix(f"{name}, ").rstrip(".")
    return found
