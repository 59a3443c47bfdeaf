"""Computes what a line of arithmetic is worth, exactly and within limits, without ever running it as a program."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Final

from agentgym.python_syntax import parse_expression

MAX_CHARS: Final = 300
MAX_BITS: Final = 2048  # of a numerator or denominator on the way
MAX_ARGUMENTS: Final = 20

_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # 1,234
_CALL: Final = re.compile(r"[a-zA-Z]\s*$")  # before a bracket
_REWRITTEN: Final = (
    (re.compile(r"[$€£_]"), ""),
    (re.compile("[×·]"), "*"),
    (re.compile("÷"), "/"),
    (re.compile("[−–]"), "-"),
    (re.compile(r"\^"), "**"),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=[\d(.])"), "*"),
    (re.compile(r"([\d.]+)\s*%(?!\s*[\d(.])"), r"(\1/100)"),  # a percentage; before an operand it is a remainder
    (re.compile(r"(?<![\d.])0+(?=\d)"), ""),  # 007
    (re.compile(r"(?<=\d)(?![eE][-+]?\d)(?=[a-zA-Z])"), " "),  # Python warns of `3or`
)


class CannotCalculate(ValueError):
    """The line is no arithmetic, or too much of it; the text says which."""


def calculate(expression: str) -> str:
    """The value, as a whole number, a short decimal number, or a fraction with its decimal form.

    It knows + - * / // % ** ^, brackets, percentages, abs, ceil, floor, max, min, round, sqrt, and pi. A comma between
    thousands is left out, but between the numbers of a function it separates. Raises CannotCalculate.
    """
    if len(expression) > MAX_CHARS:
        raise CannotCalculate(f"the expression has {len(expression)} characters; at most {MAX_CHARS} are allowed")
    text = _without_thousands(expression.strip().rstrip("=").strip())
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    try:
        tree = parse_expression(text)
        return written(_value(tree.body))
    except CannotCalculate:
        raise
    except ZeroDivisionError:
        raise CannotCalculate("division by zero") from None
    except OverflowError:
        raise CannotCalculate("the numbers become too large") from None
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise CannotCalculate(f"{expression!r:.80} is not an arithmetic expression such as (3 + 4) * 2.5") from None


def written(value: Fraction) -> str:
    """`7`, `2.75`, `1/3 (0.3333333333)`."""
    if value.denominator == 1:
        return str(value.numerator)
    short = value * 10**10
    if short.denominator == 1:
        sign, digits = "-" if value < 0 else "", str(abs(short.numerator)).rjust(11, "0")
        return f"{sign}{digits[:-10]}.{digits[-10:].rstrip('0')}"
    if abs(value) < Fraction(1, 10**9):
        return _scientific(value)
    about = f"{float(value):.10f}" if abs(value) < 10**15 else _scientific(value)
    return f"{value} ({about})" if value.denominator < 10**6 else about


def _scientific(value: Fraction) -> str:
    """Such as `1.500000000e-12`; a float would end at 1e308 and 1e-308."""
    return f"{Context(prec=30).divide(Decimal(value.numerator), Decimal(value.denominator)):.9e}"


def _without_thousands(text: str) -> str:
    brackets: list[bool] = []  # the open ones: whether each is a function's
    kept = []
    for place, letter in enumerate(text):
        if letter == "(":
            brackets.append(_CALL.search(text, 0, place) is not None)
        elif letter == ")" and brackets:
            brackets.pop()
        if letter != "," or (brackets and brackets[-1]) or not _THOUSANDS.match(text, place):
            kept.append(letter)
    return "".join(kept)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if isinstance(number, float) and not math.isfinite(number):
                raise CannotCalculate("a number in it is too large")
            value = Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _value(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            value = _OPERATORS[type(operator)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            if not 0 < len(arguments) <= MAX_ARGUMENTS:
                raise CannotCalculate(f"{name} takes 1 to {MAX_ARGUMENTS} numbers")
            value = _called(name, [_value(argument) for argument in arguments])
        case ast.Name(id="pi"):
            value = Fraction(str(math.pi))
        case ast.Name(id=name):
            raise CannotCalculate(f"there is no {name!r}; known are pi, {', '.join(sorted(_FUNCTIONS))}")
        case _:
            raise ValueError
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CannotCalculate("the numbers become too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) > MAX_BITS + bits:
            raise CannotCalculate("the numbers become too large")
        return base ** int(exponent)
    if exponent == Fraction(1, 2):
        return _root(base)
    return _rounded(lambda: float(base) ** float(exponent))


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise CannotCalculate("the square root of a negative number")
    exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return exact if exact * exact == value else _rounded(lambda: math.sqrt(value))


def _rounded(compute: Callable[[], float | complex]) -> Fraction:
    """What floats give, to the digits that they have."""
    try:
        number = compute()
        if isinstance(number, complex) or not math.isfinite(number):
            raise CannotCalculate("it has no real value")
        return Fraction(f"{number:.15g}")
    except OverflowError:
        raise CannotCalculate("the numbers become too large") from None


def _called(name: str, numbers: list[Fraction]) -> Fraction:
    try:
        return Fraction(_FUNCTIONS[name](*numbers))
    except TypeError:
        raise CannotCalculate(f"{name} does not take {len(numbers)} numbers") from None


def _round(number: Fraction, decimals: Fraction = Fraction(0)) -> Fraction:
    """Half away from zero, as at school."""
    if decimals.denominator != 1 or not 0 <= decimals <= 20:
        raise CannotCalculate("round takes 0 to 20 places")
    scale = 10 ** int(decimals)
    size = Fraction(math.floor(abs(number) * scale + Fraction(1, 2)), scale)
    return -size if number < 0 else size


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Fraction | int]]] = {
    "abs": lambda number: abs(number),
    "ceil": lambda number: math.ceil(number),
    "floor": lambda number: math.floor(number),
    "max": lambda *numbers: max(numbers),
    "min": lambda *numbers: min(numbers),
    "round": _round,
    "sqrt": _root,
}
