"""Python source as a tree, in a process of which several threads may parse.

CPython before 3.11.8 counts how deep it is in one place for all threads
(https://github.com/python/cpython/issues/106905): where another one parses meanwhile, `ast.parse` may raise
SystemError for source that is fine.
"""

from __future__ import annotations

import ast
from typing import Literal

ATTEMPTS = 20  # a second one in a row was never seen


def parse_module(code: str) -> ast.Module:
    """What `ast.parse` gives, and raises."""
    tree = _parsed(code, "exec")
    assert isinstance(tree, ast.Module)
    return tree


def parse_expression(code: str) -> ast.Expression:
    """What `ast.parse(code, mode="eval")` gives, and raises."""
    tree = _parsed(code, "eval")
    assert isinstance(tree, ast.Expression)
    return tree


def _parsed(code: str, mode: Literal["exec", "eval"]) -> ast.AST:
    for _ in range(ATTEMPTS - 1):
        try:
            return ast.parse(code, mode=mode)
        except SystemError:
            continue
    return ast.parse(code, mode=mode)
