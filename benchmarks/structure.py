"""The rooms of this repository as a table: their sizes, what each imports, which third-party package each owns.

    python benchmarks/structure.py                                  prints it
    python benchmarks/structure.py --write docs/architecture.md     replaces the one between the page's markers

A room is a top-level file or folder of `agentgym`, a folder of the sandboxes, or one of the other source folders.
Files are read, not imported: an import counts wherever it is, also inside a function or under TYPE_CHECKING.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
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
HEADER = ["room", "imports", "packages; **bold**: in no other room", "files", "lines", "median"]
BEGIN, END = "<!-- structure -->", "<!-- /structure -->"

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
    imports: set[str] = field(default_factory=set)
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
    """The room's path as the table shows it: `agentgym/rl/`, `agentgym/env.py`, `sandboxes/docker/`, `envs/`."""
    package, *rest = name.split(".")
    folder = PACKAGES[package]
    if package not in SPLIT:
        return f"{folder.parts[0]}/"
    if not rest:
        return f"{folder}/__init__.py"
    inside = f"{folder.parts[0]}/{rest[0]}"
    return f"{inside}/" if (ROOT / folder / rest[0]).is_dir() else f"{inside}.py"


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
    """The rows: within each source folder a room is above all that it imports. A room of empty files has none."""
    files = list(files)
    by_module = {file.name: file.room for file in files if file.name}
    found: dict[str, Room] = {}
    for file in files:
        room = found.setdefault(file.room, Room(name=file.room))
        room.lengths.append(file.lines)
        room.imports |= {by_module[name] for name in file.ours} - {file.room}
        room.foreign |= file.foreign - LIGHT
    for room in found.values():
        others = (other.foreign for other in found.values() if other is not room)
        room.owns = room.foreign.difference(*others)

    def depth(name: str, above: frozenset[str] = frozenset()) -> int:
        below = found[name].imports - above  # rooms, unlike files, may form a circle
        return max((depth(other, above | {name}) + 1 for other in below), default=0)

    folders = list(dict.fromkeys(name.partition("/")[0] for name in found))
    order = sorted(found, key=lambda name: (folders.index(name.partition("/")[0]), -depth(name), name))
    return [found[name] for name in order if sum(found[name].lengths)]


def cells(room: Room) -> list[str]:
    """A row; the first three cells are those that a commit seldom changes."""
    imports = (name.removeprefix("agentgym/").replace("__init__.py", "agentgym") for name in room.imports)
    packages = [f"**{name}**" for name in sorted(room.owns)] + sorted(room.foreign - room.owns)
    return [
        f"`{room.name}`",
        ", ".join(sorted(imports)),
        ", ".join(packages),
        str(len(room.lengths)),
        f"{sum(room.lengths):,}",
        f"{statistics.median(room.lengths):.0f}",
    ]


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
    return "\n".join([lines[0], "|---|---|---|--:|--:|--:|", *lines[1:], "", totals(files, rings)])


def committed(page: str) -> tuple[str, str, str]:
    """The page up to its begin marker, what is between the two, and the rest from the end marker on."""
    head, begin, rest = page.partition(BEGIN)
    body, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no {BEGIN} with {END} after it: add both where the table is to be")
    return head + begin, body.strip(), end + tail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"replace what is between {BEGIN} and {END}")
    page = parser.parse_args().write
    text = markdown()
    if page is None:
        print(text)
        return
    head, _, tail = committed(page.read_text())
    page.write_text(f"{head}\n{text}\n{tail}")
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
