"""Reads in the tests' own source what they take the entry for; what the solution is says nothing about it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .operations import OF_VALUES


def parsed(sources: Iterable[str]) -> list[ast.AST]:
    """The nodes of all sources; of one that is not valid Python, none."""
    nodes: list[ast.AST] = []
    for source in sources:
        try:
            nodes += ast.walk(ast.parse(source))
        except SyntaxError:
            continue  # reported where it is run
    return nodes


def makes_objects(nodes: list[ast.AST], names: set[str], *, is_class: bool = True) -> bool:
    """Whether tests use what a call of one of these names returns by its methods or attributes, compare such calls
    with each other, or declare it a class, as a prompt does.

    Then it is a class under test. A function may have a capital, too, and what that one returns is compared.
    is_class: False for a name without a capital: only methods and attributes count that no plain value has.
    """
    held = {
        target.id
        for node in nodes
        if isinstance(node, (ast.Assign, ast.NamedExpr, ast.AnnAssign)) and node.value and _calls(node.value, names)
        for target_node in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(target_node)
        if isinstance(target, ast.Name)
    }  # fmt: skip
    return any(
        (isinstance(node, ast.ClassDef) and node.name in names)
        or (
            isinstance(node, ast.Attribute)
            and (is_class or node.attr not in OF_VALUES)
            and (_is_call(node.value, names) or (isinstance(node.value, ast.Name) and node.value.id in held))
        )
        or (
            isinstance(node, ast.Compare)
            and is_class
            and all(_mentions(side, names, held) for side in (node.left, *node.comparators))
        )
        for node in nodes
    )


def _mentions(value: ast.expr, names: set[str], held: set[str]) -> bool:
    """Whether such a call, or what holds one, is in it."""
    return any(_is_call(part, names) or (isinstance(part, ast.Name) and part.id in held) for part in ast.walk(value))


def _calls(value: ast.expr, names: set[str]) -> bool:
    """Whether it is such a call, or a tuple or list of some."""
    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    return any(_is_call(part, names) for part in parts)


def _is_call(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
