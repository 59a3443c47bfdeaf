"""The structure of this repository: its rooms as a drawing and a table, and its budgets.

    python benchmarks/structure.py                                  prints the table of rooms
    python benchmarks/structure.py --write docs/architecture.md     renews what is between the page's markers
    python benchmarks/structure.py --check                          each budget of pyproject.toml beside today's figure

A room of the table is a folder of `agentgym`, or all its files beside them, a folder of the sandboxes, or one of the
other source folders.
Files are read, not imported: an import counts wherever it is, also inside a function or under TYPE_CHECKING.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
from agentgym.public import PUBLIC  # noqa: E402
from benchmarks import recipe_way  # noqa: E402

PACKAGES = {
    "agentgym": Path("agentgym"),
    "agentgym_envs": Path("envs/agentgym_envs"),
    "agentgym_plugins": Path("plugins/agentgym_plugins"),
    "agentgym_sandboxes": Path("sandboxes/agentgym_sandboxes"),
    "apps": Path("apps"),
}
OTHER_FOLDERS = ("tests", "benchmarks")  # they import everything: only their sizes are shown
SPLIT = ("agentgym", "agentgym_sandboxes")  # packages whose folders are rooms of their own
LIGHT = {"pluggy", "packaging", "yaml", "ruamel", "_typeshed"}  # what the core always has: any room may import it
HEADER = ["room", "packages; **bold**: in no other room", "lines"]
WIDTH, INDENT = 120, 22  # of the drawing
FRAGMENT = "<!-- fragment: a drawing -->"
CORE = "agentgym"
GENERATED_PAGE = "settings.md"  # of docstrings, which are counted as lines
GENERATED_TABLE = re.compile("<!-- fields -->.*<!-- /fields -->", re.DOTALL)  # of docs/endpoint.md, likewise

Graph = Mapping[str, frozenset[str]]  # a module's name to the modules of ours that it imports


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One Python file. name: as Python imports it; ours, foreign: what it imports."""

    path: Path
    name: str
    room: str
    lines: int
    ours: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Room:
    """A row of the table. foreign: its third-party packages; owns: those that no other room imports."""

    name: str
    lengths: list[int] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    owns: set[str] = field(default_factory=set)


def package_files(root: Path) -> dict[str, Path]:
    """Every module of the packages by its name; a package's name is its `__init__`'s."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = (package, *path.relative_to(root / folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(tree: ast.Module, name: str, is_package: bool) -> Iterator[tuple[str, str]]:
    """Each import anywhere in the file as (module, name taken from it or an empty string), without dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = name.split(".")
            above = parents[: len(parents) - node.level + is_package] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("import_module"):
            target = node.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield target.value, ""


def room_of(name: str) -> str:
    """The room as the table shows it: `agentgym/rl/`, `agentgym/*.py`, `sandboxes/docker/`, `envs/`."""
    package, *rest = name.split(".")
    folder = PACKAGES[package]
    if package not in SPLIT:
        return f"{folder.parts[0]}/"
    inside = f"{folder.parts[0]}/{rest[0]}/" if rest and (ROOT / folder / rest[0] / "__init__.py").is_file() else ""
    return inside or f"{folder.parts[0]}/*.py"


def read(root: Path = ROOT) -> list[SourceFile]:
    """All files of the packages, with what they import.

    `from package import name` is an import of the module `package.name` if there is one and of the package's
    `__init__` otherwise. That importing a module also runs the `__init__` of the packages above it is not
    counted: else any re-export would be a circle.
    """
    files = package_files(root)
    found = []
    for name, path in files.items():
        text = path.read_text()
        ours, foreign = set(), set()
        for module, taken in imported_names(ast.parse(text), name, path.name == "__init__.py"):
            if module.partition(".")[0] in PACKAGES:
                ours.add(f"{module}.{taken}" if f"{module}.{taken}" in files else module)
            else:
                foreign.add(module.partition(".")[0])
        found.append(
            SourceFile(
                path=path.relative_to(root),
                name=name,
                room=room_of(name),
                lines=len(text.splitlines()),
                ours=frozenset(ours & files.keys()),
                foreign=frozenset(foreign - sys.stdlib_module_names - {"__main__", ""}),
            )
        )
    return found


def circles(graph: Graph) -> list[list[str]]:
    """One shortest way around for each set of modules that import each other: `[a, b, a]`."""
    found: dict[frozenset[str], list[str]] = {}
    for start in sorted(graph):
        before: dict[str, str] = {}
        todo = [start]
        for name in todo:  # breadth first: grows while it is read
            for after in sorted(graph[name] - before.keys()):
                before[after] = name
                todo.append(after)
        if start in before:
            way = [start]
            while len(way) == 1 or way[-1] != start:
                way.append(before[way[-1]])
            found.setdefault(frozenset(before), way[::-1])
    return list(found.values())


def other_files(root: Path = ROOT) -> list[SourceFile]:
    """The tests and the benchmarks: sizes only."""
    return [
        SourceFile(path=path.relative_to(root), name="", room=f"{folder}/", lines=len(path.read_text().splitlines()))
        for folder in OTHER_FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
    ]  # fmt: skip


def rooms(files: Iterable[SourceFile]) -> list[Room]:
    """The rows by name, source folder after source folder. A room of empty files has none."""
    found: dict[str, Room] = {}
    for file in files:
        room = found.setdefault(file.room, Room(name=file.room))
        room.lengths.append(file.lines)
        room.foreign |= file.foreign - LIGHT
    for room in found.values():
        others = (other.foreign for other in found.values() if other is not room)
        room.owns = room.foreign.difference(*others)
    folders = list(dict.fromkeys(name.partition("/")[0] for name in found))
    order = sorted(found, key=lambda name: (folders.index(name.partition("/")[0]), name))
    return [found[name] for name in order if sum(found[name].lengths)]


def cells(room: Room) -> list[str]:
    """A row; the first two cells are those that a commit seldom changes."""
    packages = [f"**{name}**" for name in sorted(room.owns)] + sorted(room.foreign - room.owns)
    return [f"`{room.name}`", ", ".join(packages), f"{sum(room.lengths):,}"]


def totals(files: Sequence[SourceFile], rings: int) -> str:
    longest = max(files, key=lambda file: file.lines)
    core = sum(file.lines for file in files if file.path.parts[0] == "agentgym")
    return (
        f"In all {sum(file.lines for file in files):,} lines of Python in {len(files)} files, `agentgym/` {core:,}; "
        f"median {statistics.median(file.lines for file in files):.0f} lines, longest {longest.lines} "
        f"(`{longest.path}`); circles of files: {rings}."
    )


def markdown(root: Path = ROOT) -> str:
    source = read(root)
    files = [*source, *other_files(root)]
    lines = ["| " + " | ".join(row) + " |" for row in [HEADER, *map(cells, rooms(files))]]
    rings = len(circles({file.name: file.ours for file in source}))
    return "\n".join([lines[0], "|---|---|--:|", *lines[1:], "", totals(files, rings)])


def layers(root: Path = ROOT) -> list[list[str]]:
    """The rooms of the library from the highest layer down, as the import contract has them."""
    contracts = _tools(root)["importlinter"]["contracts"]
    lines = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [[room.strip() for room in line.split("|")] for line in lines]


def _tools(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]


def public() -> set[str]:
    """The rooms of the library that are public as a whole."""
    return {name.partition(".")[2] for name in PUBLIC if name.count(".") == 1}


def plugins_contract(root: Path = ROOT) -> dict[str, list[str]]:
    """What the import contract of plugins has to say: rooms that are not public, and the public modules in them."""
    closed = sorted({room for layer in layers(root) for room in layer} - public())
    inner = [name for name in PUBLIC if name.split(".")[1:2] and name.split(".")[1] in closed]
    return {
        "forbidden_modules": [f"{CORE}.{room}" for room in closed],
        "ignore_imports": [f"** -> {name}" for name in inner],
    }


def sentence(path: Path) -> str:
    """The first sentence of a file's docstring."""
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def drawn_rooms(root: Path = ROOT) -> str:
    """Each room with the first sentence of its docstring; those of the library in the order of their layers."""

    def row(indent: str, name: str, path: Path) -> list[str]:
        start = f"{indent}{name}".ljust(INDENT)
        text = sentence(path)
        return textwrap.wrap(f"{start} {text}", WIDTH, subsequent_indent=" " * (INDENT + 1), drop_whitespace=True)

    lines = row("", f"{CORE}/", root / CORE / "__init__.py")
    for room in (room for layer in layers(root) for room in layer):
        folder = root / CORE / room
        mark = "* " if room in public() else "  "
        is_folder = (folder / "__init__.py").is_file()  # a checkout may have what Python left of a renamed one
        lines += row(
            mark,
            f"{room}/" if is_folder else f"{room}.py",
            folder / "__init__.py" if is_folder else folder.with_suffix(".py"),
        )
    for package, folder in list(PACKAGES.items())[1:]:
        lines += row("", f"{folder.parts[0]}/", root / folder / "__init__.py")
        if package in SPLIT:
            inner = sorted(path.parent for path in (root / folder).glob("*/__init__.py"))
            for path in inner:
                lines += row("  ", f"{path.name}/", path / "__init__.py")
    lines += row("", "benchmarks/", root / "benchmarks" / "__init__.py")
    return "\n".join([FRAGMENT, "```", *lines, "```"])


def drawn_layers(root: Path = ROOT) -> str:
    line = " > ".join(", ".join(layer) for layer in layers(root))
    return "\n".join([FRAGMENT, "```", *textwrap.wrap(line, WIDTH, subsequent_indent="    "), "```"])


def sections(root: Path = ROOT) -> dict[str, str]:
    """The generated parts of the page, by the name in their markers."""
    return {"rooms": drawn_rooms(root), "structure": markdown(root), "layers": drawn_layers(root)}


def committed(page: str, name: str = "structure") -> tuple[str, str, str]:
    """The page up to the begin marker of a section, what is in the section, and the rest from its end marker on."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, begin, rest = page.partition(opening)
    body, end, tail = rest.partition(closing)
    if not begin or not end:
        raise SystemExit(f"the page has no {opening} with {closing} after it: add both where the section is to be")
    return head + begin, body.strip(), end + tail


def recipe_trees(root: Path = ROOT) -> dict[str, ast.Module]:
    """The files of the library that a recipe can be in: those with the word, for the others need not be parsed."""
    core = ((name, path.read_text()) for name, path in package_files(root).items() if name.startswith(f"{CORE}."))
    return {name: ast.parse(text) for name, text in core if "recipe" in text.lower() or "settled" in text.lower()}


def figures(root: Path = ROOT) -> dict[str, int]:
    """What the budgets of pyproject.toml bound, in their order, as it is today."""
    files = {path: len(path.read_text().splitlines()) for path in _counted(root)}
    trees = recipe_trees(root)

    def lines(folder: str) -> int:
        return sum(length for path, length in files.items() if path.is_relative_to(root / folder))

    return {
        "library_lines": lines(CORE),
        "sandboxes_lines": lines("sandboxes"),
        "tests_lines": lines("tests"),
        "benchmarks_lines": lines("benchmarks"),
        "benchmarks_files": sum(path.is_relative_to(root / "benchmarks") for path in files),
        "docs_words": sum(
            len(re.sub(GENERATED_TABLE, "", path.read_text()).split())
            for path in (root / "docs").glob("*.md")
            if path.name != GENERATED_PAGE
        ),
        "longest_file_lines": max(files.values()),
        "median_file_lines": int(statistics.median(files.values())),
        "recipe_files": len(recipe_way.on_the_way(trees, recipe_way.RECIPES)),
        "settled_files": len(recipe_way.on_the_way(trees, recipe_way.SETTLED)),
    }


def _counted(root: Path) -> list[Path]:
    folders = dict.fromkeys([*(folder.parts[0] for folder in PACKAGES.values()), *OTHER_FOLDERS])
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def check(root: Path = ROOT) -> tuple[list[str], list[str]]:
    """The table of figures and budgets as lines, and one line for each budget that does not hold."""
    budgets = _tools(root)["agentgym"]["budgets"]
    now = figures(root)
    if budgets.keys() != now.keys():
        odd = ", ".join(sorted(budgets.keys() ^ now.keys()))
        raise SystemExit(f"[tool.agentgym.budgets] of pyproject.toml and the figures differ in {odd}")
    table = [f"{'':20}{'today':>8}{'budget':>8}{'left':>8}"]
    table += [f"{name:20}{now[name]:>8,}{budgets[name]:>8,}{budgets[name] - now[name]:>8,}" for name in now]
    over = [
        f"{name} is {now[name] - budgets[name]:,} over its budget of {budgets[name]:,}"
        for name in now
        if now[name] > budgets[name]
    ]
    return table, over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="renew the generated sections of this page")
    parser.add_argument("--check", action="store_true", help="compare with the budgets; exit 1 when one is exceeded")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the checkout that is looked at")
    given = parser.parse_args()
    if given.check:
        table, over = check(given.root)
        print("\n".join(table))
        longest = max(_counted(given.root), key=lambda path: len(path.read_text().splitlines()))
        print(f"longest: {longest.relative_to(given.root)}")
        if over:
            sys.exit("\n".join([*over, "Make it smaller; a commit that raises a budget says what it bought."]))
    elif given.write:
        page = given.write.read_text()
        for name, text in sections(given.root).items():
            head, _, tail = committed(page, name)
            page = f"{head}\n{text}\n{tail}"
        given.write.write_text(page)
        print(f"wrote {given.write}")
    else:
        print(markdown(given.root))


if __name__ == "__main__":
    main()
