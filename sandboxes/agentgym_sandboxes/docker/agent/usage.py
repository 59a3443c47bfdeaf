"""Reads in the tests' own source what they take the entry for; what the solution is says nothing about it."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def makes_objects(sources: Iterable[str], names: set[str]) -> bool:
    """Whether tests use what a call of one of these names returns by its methods or attributes, or declare it a
    class, as a prompt does.

    Then it is a class under test. A function may have a capital, too, and what that one returns is compared.
    """
    trees = []
    for source in sources:
        try:
            trees.append(ast.parse(source))
        except SyntaxError:
            continue  # told where it is run
    return any(_uses(tree, names) for tree in trees)


def _uses(tree: ast.AST, names: set[str]) -> bool:
    held = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.NamedExpr, ast.AnnAssign)) and node.value and _calls(node.value, names)
        for place in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(place)
        if isinstance(target, ast.Name)
    }  # fmt: skip
    return any(
        (isinstance(node, ast.ClassDef) and node.name in names)
        or (
            isinstance(node, ast.Attribute)
            and (_is_call(node.value, names) or (isinstance(node.value, ast.Name) and node.value.id in held))
        )
        for node in ast.walk(tree)
    )


def _calls(value: ast.expr, names: set[str]) -> bool:
    """Whether it is such a call, or a tuple or list of some."""
    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    return any(_is_call(part, names) for part in parts)


def _is_call(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
