"""How a recipe travels: which files take, return or hold one, and which file hands it to which.

    python benchmarks/structure.py --recipe                        prints the counts and the drawing
    python benchmarks/structure.py --recipe --root OTHER_CHECKOUT  the same for other sources

A file is on the way if `Recipe` (in older checkouts also `SftRecipe`) is in an annotation there: of a parameter, a
return value or a field of a class, also through an alias or a type variable. An import alone does not count, and
neither does the class itself (`type[Recipe]`); the file that defines the class does. `Settled` is counted separately.

A pass is a call of another file's function or class with a recipe; a return is a call of another file's function that
returns one. A climb is a return into a file of a higher layer, or a pass into one, where the layers are those of the
import contract in pyproject.toml. A change is a call of `replace` with a recipe: it makes another one. Files are read,
not imported: a method is found by its name if one file alone on the way has a function of that name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """files: those on the way; passes, returns: the two files of each call, the caller first."""

    files: Sequence[str]
    passes: Sequence[tuple[str, str]]
    returns: Sequence[tuple[str, str]]
    climbs: int
    changes: int

    def __str__(self) -> str:
        calls = f"{len(self.passes)} passes, {len(self.returns)} returns, {self.climbs} climbs, {self.changes} changes"
        return f"{len(self.files)} files, {calls}"


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


def travel(trees: Mapping[str, ast.Module], layers: Sequence[Sequence[str]], types: Sequence[str]) -> Way:
    """layers: the rooms of the library, the highest first; the others as in `on_the_way`."""
    found = on_the_way(trees, types)
    calls: dict[str, list[tuple[str, str]]] = {"pass": [], "return": [], "change": []}
    for module in found.values():
        for kind, other in _hand_overs(module, found):
            calls[kind].append((module.name, other))
    height = {room: place for place, rooms in enumerate(reversed(layers)) for room in rooms}

    def climb(start: str, end: str) -> bool:
        low, high = (height.get(name.split(".")[1], 0) for name in (start, end))
        return high > low

    return Way(
        files=sorted(found),
        passes=calls["pass"],
        returns=calls["return"],
        climbs=sum(climb(*pair) for pair in calls["pass"]) + sum(climb(*pair[::-1]) for pair in calls["return"]),
        changes=len(calls["change"]),
    )


def drawing(way: Way, layers: Sequence[Sequence[str]]) -> str:
    """The way as text, room by room from the top: -> hands it to; <- gets it from a call of."""
    rooms = [room for layer in layers for room in layer]
    order = {name: place for place, name in enumerate(rooms)}
    lines = []
    for name in sorted(way.files, key=lambda name: (order.get(name.split(".")[1], len(order)), name)):
        lines.append(_short(name))
        for arrow, calls in (("->", way.passes), ("<-", way.returns)):
            others = dict.fromkeys(other for caller, other in sorted(calls) if caller == name)
            lines += [f"    {arrow} {_short(other)}" for other in others]
    return "\n".join(lines)


def _short(name: str) -> str:
    return name.partition(".")[2].replace(".", "/")


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


def _hand_overs(module: Module, modules: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    """Each call as its kind (pass, return or change) and the file that is called."""
    held = {name for one in modules.values() for name in one.holds}
    homes = defaultdict(set)
    for one in modules.values():
        for name in one.takes | one.gives:
            homes[name].add(one.name)

    def home(call: ast.Call) -> tuple[str, str]:
        """The file and the name of what is called; an empty file where that is not known."""
        first, *rest = ast.unparse(call.func).split(".")
        file, name = module.imported.get(first, ("", ""))
        if file in modules and not (rest and not name and rest[-1] not in homes):
            return file, (rest[-1] if rest else name)
        last = rest[-1] if rest else ""
        return (next(iter(homes[last])), last) if len(homes.get(last, ())) == 1 else ("", last)

    seen: set[ast.Call] = set()  # an inner function is part of the outer one
    for function in ast.walk(module.tree):
        if not isinstance(function, Function):
            continue
        known = {
            one.arg
            for inner in ast.walk(function)
            if isinstance(inner, Function)
            for one in _parameters(inner)
            if _mentions(one.annotation, module.kinds)
        }

        def is_recipe(node: ast.expr, known: set[str] = known) -> bool:
            if isinstance(node, ast.Name):
                return node.id in known
            if isinstance(node, ast.Attribute):
                return node.attr in held
            if isinstance(node, ast.Call):
                file, name = home(node)
                return name in modules[file].gives if file else _is_change(node, is_recipe)
            return isinstance(node, ast.Await) and is_recipe(node.value)

        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and is_recipe(node.value):
                target = node.targets[0]
                names = target.elts[:1] if isinstance(target, ast.Tuple) else [target]
                known |= {one.id for one in names if isinstance(one, ast.Name)}
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or node in seen:
                continue
            seen.add(node)
            file, name = home(node)
            if _is_change(node, is_recipe):
                yield "change", module.name
            if file not in ("", module.name):
                if any(map(is_recipe, [*node.args, *(one.value for one in node.keywords)])):
                    yield "pass", file
                if name in modules[file].gives:
                    yield "return", file


def _is_change(node: ast.Call, is_recipe: Callable[[ast.expr], bool]) -> bool:
    return ast.unparse(node.func).endswith("replace") and bool(node.args) and is_recipe(node.args[0])
