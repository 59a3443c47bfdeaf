"""Finds code whose result may hang on the order of a set: it is another one here than in Python."""

from __future__ import annotations

import ast

_MAKERS = frozenset(("set", "frozenset"))
_COMBINING = frozenset(("union", "intersection", "difference", "symmetric_difference"))
_METHODS = _COMBINING | frozenset((
    "add", "clear", "copy", "difference_update", "discard", "intersection_update", "isdisjoint", "issubset",
    "issuperset", "remove", "symmetric_difference_update", "update",
))  # fmt: skip
_BLIND = frozenset(("all", "any", "bool", "frozenset", "isinstance", "len", "max", "min", "set", "sorted", "sum"))
_OPERATORS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)
_MAX_ROUNDS = 10  # in which names of names of a set are found


def ordered_set(tree: ast.Module) -> str:
    """What is read in the order of a set, in a few words; or "". Raises RecursionError."""
    return _Sets(tree).ordered()


class _Sets:
    """The expressions of a module that are sets, as far as its names show."""

    def __init__(self, tree: ast.Module) -> None:
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._held: set[str] = set()  # names, attributes and functions
        self._known: dict[ast.AST, bool] = {}

    def ordered(self) -> str:
        for _ in range(_MAX_ROUNDS):
            held = {name for node in self._parents if self._is_set(node) for name in self._holders(node)}
            if held <= self._held:
                break
            self._held |= held
            self._known.clear()
        else:
            return "a set with many names"
        for node in self._parents:
            if (self._is_set(node) or self._is_maker(node)) and not self._is_blind(node):
                return ast.unparse(node)[:40]
        return ""

    def _is_maker(self, node: ast.AST) -> bool:
        """Whether it hands `set` on, as in defaultdict(set); not where it is called or names a type."""
        named = (ast.arg, ast.AnnAssign, ast.FunctionDef, ast.Subscript)
        is_used = self._is_called(node) or isinstance(self._parents[node], named)
        return isinstance(node, ast.Name) and node.id in _MAKERS and not is_used

    def _is_called(self, node: ast.AST) -> bool:
        parent = self._parents[node]
        return isinstance(parent, ast.Call) and parent.func is node

    def _is_set(self, node: ast.AST) -> bool:
        if node not in self._known:
            self._known[node] = self._makes_set(node)
        return self._known[node]

    def _makes_set(self, node: ast.AST) -> bool:
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
                return any(self._is_set(side) or _is_view(side) for side in (left, right))
            case ast.IfExp(body=one, orelse=other):
                return self._is_set(one) or self._is_set(other)
            case ast.BoolOp(values=values):
                return any(map(self._is_set, values))
        return False

    def _holders(self, node: ast.AST) -> list[str]:
        """The names that a set is bound to, or the function that returns it."""
        parent = self._parents[node]
        if isinstance(parent, ast.Return):
            while not isinstance(parent, (ast.FunctionDef, ast.Module)):
                parent = self._parents[parent]
            return [parent.name] if isinstance(parent, ast.FunctionDef) else []
        return [target.id if isinstance(target, ast.Name) else target.attr for target in _targets(parent)]

    def _is_blind(self, node: ast.AST) -> bool:
        """Whether what a set is used for takes no notice of its order."""
        match parent := self._parents[node]:
            case ast.Expr() | ast.Return() | ast.Compare() | ast.UnaryOp() | ast.If() | ast.While() | ast.Assert():
                return True
            case ast.BoolOp() | ast.IfExp() | ast.Set():  # a set itself, a condition, or an element
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
                is_called_with = isinstance(self._parents[made], ast.Call) and self._is_blind(made)
                is_read = isinstance(made, (ast.ListComp, ast.GeneratorExp)) and is_called_with
                return isinstance(made, ast.SetComp) or is_read
        return bool(_targets(parent))


def _targets(node: ast.AST) -> list[ast.Name | ast.Attribute]:
    """What binds its value to names and attributes alone."""
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets: list[ast.expr] = [node.target]
    else:
        targets = node.targets if isinstance(node, ast.Assign) else []
    found = [target for target in targets if isinstance(target, (ast.Name, ast.Attribute))]
    return found if len(found) == len(targets) else []


def _is_view(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")
