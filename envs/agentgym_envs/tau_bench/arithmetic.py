"""Computes what an agent writes to its calculator: numbers, + - * / and brackets, parsed and never evaluated."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Final

from agentgym.python_syntax import parse_expression

MAX_CHARS: Final = 1000
_OPERATORS: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def compute(expression: str) -> str:
    """The value, rounded to cents. Raises ValueError for anything else than such arithmetic."""
    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression has {len(expression)} characters; at most {MAX_CHARS} are read")
    try:
        return str(round(float(_value(parse_expression(expression.strip()).body)), 2))
    except (SyntaxError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"it cannot be computed: {error}") from error


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _value(inner)
    raise ValueError("only numbers, + - * / and brackets are computed")
