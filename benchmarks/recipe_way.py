"""Which files of the library take, return or hold a recipe: two of the budgets that `benchmarks/structure.py` checks.

A file is on a recipe's way if `Recipe` (in older checkouts also `SftRecipe`) is in an annotation there: of a parameter,
a return value or a field of a class, also through an alias or a type variable. An import alone does not count, and
neither does the class itself (`type[Recipe]`); the file that defines the class does. `Settled` is counted separately.
Files are read, not imported.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RECIPES, SETTLED = ("Recipe", "SftRecipe"), ("Settled",)  # the second: of older checkouts
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True, kw_only=True)
class Module:
    """One file. imported: local names as (module, name there); kinds: local names of the type and its aliases."""

    name: str
    tree: ast.Module
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    takes: set[str] = field(default_factory=set)
    gives: set[str] = field(default_factory=set)
    holds: set[str] = field(default_factory=set)
    defines: bool = False

    @property
    def on_the_way(self) -> bool:
        return self.defines or bool(self.takes or self.gives or self.holds)


def on_the_way(trees: Mapping[str, ast.Module], types: Sequence[str]) -> dict[str, Module]:
    """The library's modules (by name) that take, return, hold or define one of the types."""
    modules = {name: _imports(Module(name=name, tree=tree), trees) for name, tree in trees.items()}
    for _ in range(3):  # an alias may be imported, and named again
        for module in modules.values():
            _find_kinds(module, modules, types)
    for module in modules.values():
        if module.kinds:
            _read_annotations(module)
    return {name: module for name, module in modules.items() if module.on_the_way}


def _imports(module: Module, trees: Mapping[str, ast.Module]) -> Module:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                target = (inner, "") if inner in trees else (node.module, alias.name)
                module.imported[alias.asname or alias.name] = target
    return module


def _find_kinds(module: Module, modules: Mapping[str, Module], types: Sequence[str]) -> None:
    for local, (home, name) in module.imported.items():
        if home in modules and name in modules[home].kinds:
            module.kinds.add(local)
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and node.name in types:
            module.kinds.add(node.name)
            module.defines = True
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            variable = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar"
            alias = variable or isinstance(node.value, ast.BinOp | ast.Subscript)
            if isinstance(target, ast.Name) and alias and _mentions(node.value, module.kinds):
                module.kinds.add(target.id)


def _mentions(node: ast.AST | None, kinds: set[str]) -> bool:
    """Whether an annotation has the type anywhere, but for the class as a value."""
    if node is None or (isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("type", "Literal")):
        return False
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.isidentifier() and node.value in kinds
    if isinstance(node, ast.Name):
        return node.id in kinds
    return any(_mentions(child, kinds) for child in ast.iter_child_nodes(node))


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _read_annotations(module: Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            if any(_mentions(one.annotation, module.kinds) for one in _parameters(node)):
                module.takes.add(node.name)
            if _mentions(node.returns, module.kinds):
                module.gives.add(node.name)
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            held = {ast.unparse(one.target) for one in fields if _mentions(one.annotation, module.kinds)}
            module.holds |= held
            inits = [one for one in node.body if isinstance(one, Function) and one.name == "__init__"]
            if held or any(_mentions(one.annotation, module.kinds) for init in inits for one in _parameters(init)):
                module.takes.add(node.name)
