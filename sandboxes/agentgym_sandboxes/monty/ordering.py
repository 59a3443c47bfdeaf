"""Finds code whose result may hang on the order of a set: it is another one here than in Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_MAKERS = frozenset(("set", "frozenset"))
_COMBINING = frozenset(("union", "intersection", "difference", "symmetric_difference"))
_METHODS = _COMBINING | frozenset((
    "add", "clear", "copy", "difference_update", "discard", "intersection_update", "isdisjoint", "issubset",
    "issuperset", "remove", "symmetric_difference_update", "update",
))  # fmt: skip
_BLIND = frozenset(("all", "any", "bool", "frozenset", "isinstance", "len", "max", "min", "set", "sorted", "sum"))
_MAX_ROUNDS = 10  # in which names of names of a set are found
_OPERATORS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)


def ordered_set(tree: ast.Module) -> str:
    """What is read in the order of a set, in a few words; or ""."""
    return _Sets(tree).ordered()


class _Sets:
    """The expressions of a module that are sets, as far as its names show."""

    def __init__(self, tree: ast.Module) -> None:
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._annotations = {id(inner) for node in ast.walk(tree) for inner in _annotations(node)}
        self._held: set[str] = set()  # names, attributes and functions
        self._known: dict[ast.AST, bool] = {}
        self._is_whole = False
        for _ in range(_MAX_ROUNDS):
            num_held = len(self._held)
            self._known.clear()
            for node in self._parents:
                if self._is_set(node):
                    self._held.update(self._holders(node))
            if len(self._held) == num_held:
                self._is_whole = True
                break

    def ordered(self) -> str:
        """What is read in an order, in a few words; or ""."""
        if not self._is_whole:
            return "a set with many names"
        for node in self._parents:
            if id(node) in self._annotations:
                continue
            is_maker = isinstance(node, ast.Name) and node.id in _MAKERS and not self._is_called(node)
            if (is_maker and not self._is_blind(node)) or (self._is_set(node) and not self._is_blind(node)):
                return ast.unparse(node)[:40]
        return ""

    def _is_set(self, node: ast.AST) -> bool:
        if node not in self._known:
            self._known[node] = self._may_be_set(node)
        return self._known[node]

    def _may_be_set(self, node: ast.AST) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                return name in self._held and not self._is_called(node)
            case ast.Call(func=ast.Name(id=name)):
                return name in _MAKERS or name in self._held
            case ast.Call(func=ast.Attribute(attr=name, value=owner)):
                return name in _COMBINING or name in self._held or (name == "copy" and self._is_set(owner))
            case ast.BinOp(op=operator, left=left, right=right) if isinstance(operator, _OPERATORS):
                return self._is_set(left) or self._is_set(right) or _is_view(left) or _is_view(right)
            case ast.IfExp(body=body, orelse=other):
                return self._is_set(body) or self._is_set(other)
            case ast.BoolOp(values=values):
                return any(self._is_set(value) for value in values)
        return False

    def _holders(self, node: ast.AST) -> Iterator[str]:
        """The names that a set is bound to, or the function that returns it."""
        parent = self._parents[node]
        if isinstance(parent, ast.Return):
            while not isinstance(parent, (ast.FunctionDef, ast.Module)):
                parent = self._parents[parent]
            if isinstance(parent, ast.FunctionDef):
                yield parent.name
        for target in _targets(parent):
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Attribute):
                yield target.attr

    def _is_called(self, node: ast.AST) -> bool:
        parent = self._parents[node]
        return isinstance(parent, ast.Call) and parent.func is node

    def _is_blind(self, node: ast.AST) -> bool:
        """Whether what a set is used for takes no notice of its order."""
        parent = self._parents[node]
        match parent:
            case ast.Expr() | ast.Return() | ast.Compare() | ast.UnaryOp() | ast.If() | ast.While() | ast.Assert():
                return True
            case ast.BoolOp() | ast.IfExp():
                return True  # a set itself, or a condition
            case ast.Set():
                return True
            case ast.Tuple():
                return isinstance(self._parents[parent], ast.Set)
            case ast.BinOp(op=operator):
                return isinstance(operator, _OPERATORS)
            case ast.Attribute(attr=name):
                return name in _METHODS and self._is_called(parent)
            case ast.Call(func=ast.Name(id=name), keywords=keywords):
                return name in _BLIND and not keywords
            case ast.Call(func=ast.Attribute(attr=name)):
                return name in _METHODS
            case ast.comprehension():
                made = self._parents[parent]
                return isinstance(made, ast.SetComp) or (
                    isinstance(made, (ast.ListComp, ast.GeneratorExp)) and self._is_blind(made)
                    and isinstance(self._parents[made], ast.Call)
                )  # fmt: skip
        targets = list(_targets(parent))
        return bool(targets) and all(isinstance(target, (ast.Name, ast.Attribute)) for target in targets)


def _targets(node: ast.AST) -> list[ast.expr]:
    """What a statement or an expression binds its value to."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) else []


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        found = getattr(node, name, None)
        if isinstance(found, ast.AST):
            yield from ast.walk(found)


def _is_view(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")
