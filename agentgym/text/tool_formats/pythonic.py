"""A Python list of calls, as Llama 3.2, Llama 4, OLMo 3 and LFM2 write it. It is read, never evaluated."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym.python_syntax import parse_expression
from agentgym.text.tool_formats.base import Parsed, ToolFormat, after_thoughts
from agentgym.text.tool_formats.json_calls import MAX_DEPTH, MAX_FAULT, TOO_DEEP
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

_START, _END = "<|python_start|>", "<|python_end|>"  # of Llama 4
_LFM_START, _LFM_END = "<|tool_call_start|>", "<|tool_call_end|>"
_LOOKS_LIKE_CALLS = re.compile(r"\[\s*[A-Za-z_][\w.\-]*\s*\(")
_TOO_LARGE = 10**4000  # Python writes integers of at most 4300 digits
_CONSTANTS: Mapping[str, Json] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Pythonic(ToolFormat):
    """`[name(argument=value, …), …]`, literals only; `true`, `false` and `null` are read, too."""

    markers: ClassVar[tuple[str, ...]] = (_START, _END, _LFM_START, _LFM_END)

    def parse(self, text: str) -> Parsed:
        begins = after_thoughts(text)
        thoughts, text_after = text[:begins], text[begins:]
        start, end = (_LFM_START, _LFM_END) if _LFM_START in text_after else (_START, _END)
        head, tag, said = text_after.partition(start)
        if tag:
            said, _, rest = said.rpartition(end) if end in said else (said, "", "")
            head = f"{thoughts}{head}{rest}"
        else:
            head, said = thoughts, text_after
        said = said.strip()
        if not _LOOKS_LIKE_CALLS.match(said) and not tag:
            return Parsed(text)
        return Parsed(head.strip(), tuple(_calls(said)))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        body = f"[{', '.join(map(_write, calls))}]" if calls else ""
        return f"{content}{_START}{body}{_END}" if content and calls else content or body


def _write(call: ToolCall) -> str:
    """An argument whose name is no name of Python's goes into a dictionary behind two stars."""
    named = {
        name: value for name, value in call.arguments.items() if name.isidentifier() and not keyword.iskeyword(name)
    }
    rest = {name: value for name, value in call.arguments.items() if name not in named}
    given = [f"{name}={value!r}" for name, value in named.items()] + ([f"**{rest!r}"] if rest else [])
    return f"{call.name}({', '.join(given)})"


def _calls(said: str) -> Iterator[ToolCall | MalformedCall]:
    try:
        if _nesting(said) > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes in texts, such as "\d"
            tree = parse_expression(said).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error) or "it is too long"
        yield _malformed(said, why)
        return
    lines = said.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")  # as Python reads them
    for one in tree.elts if isinstance(tree, ast.List) else [tree]:
        try:
            yield _call(one)
        except (ValueError, RecursionError) as error:
            yield _malformed(_source(lines, one), str(error) or "it is nested too deeply")


def _source(lines: Sequence[bytes], tree: ast.expr) -> str:
    """The text of a part; `ast.get_source_segment` splits the whole into lines again for each."""
    parts = [*lines[tree.lineno - 1 : tree.end_lineno]]
    parts[-1] = parts[-1][: tree.end_col_offset]
    parts[0] = parts[0][tree.col_offset :]
    return b"\n".join(parts).decode()


def _nesting(said: str) -> int:
    """An upper bound on how deep the text's brackets are nested; those in strings count, too."""
    deepest = depth = 0
    for bracket in re.findall(r"[\[\](){}]", said):
        depth += 1 if bracket in "[({" else -1
        deepest = max(deepest, depth)
    return deepest


def _call(tree: ast.expr) -> ToolCall:
    before = ""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Sub):  # get-weather(…): Python takes it for a difference
        before, tree = f"{_name(tree.left)}-", tree.right
    if not isinstance(tree, ast.Call):
        raise ValueError("each is a call")
    if tree.args:
        raise ValueError("arguments are given by name")
    arguments: dict[str, Json] = {}
    for given in tree.keywords:
        value = _value(given.value)
        if given.arg is not None:
            arguments[given.arg] = value
        elif isinstance(value, Mapping):
            arguments.update(value)
        else:
            raise ValueError("** stands before a dictionary")
    return ToolCall(before + _name(tree.func), arguments)


def _name(tree: ast.expr) -> str:
    match tree:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_name(owner)}.{name}"
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return f"{_name(left)}-{_name(right)}"
    raise ValueError("a call begins with the tool's name")


def _value(tree: ast.expr) -> Json:
    match tree:
        case ast.Constant(value=None | bool() | str() as value):
            return value
        case ast.Constant(value=int() | float() as number):
            return _number(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if number is not True:
            return -_number(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("arguments are literals: nothing is evaluated")


def _number(number: float) -> float:
    """Python reads `1e999` as infinite, and hexadecimal digits of any count, which JSON cannot write."""
    if not -_TOO_LARGE < number < _TOO_LARGE:
        raise ValueError("a number is too large")
    return number


def _key(tree: ast.expr | None) -> str:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return tree.value
    raise ValueError("the keys of a dictionary are texts")


def _malformed(text: str, why: str) -> MalformedCall:
    shown = " ".join(text.split())[:MAX_FAULT]
    return MalformedCall(text, f"tool calls are [name(argument=value)]; {why}: {shown}")
