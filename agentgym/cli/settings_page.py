"""docs/settings.md: every setting in a table, written by `agentgym settings --markdown`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agentgym.cli.settings import Group, component, environment, meaning, sandbox, sections
from agentgym.components import SEAMS
from agentgym.config import describe
from agentgym.config_docs import Setting
from agentgym.hooks import Kind, PluginRegistry
from agentgym.models.defaults import KEYS
from agentgym.recipe import Recipe

INTRODUCTION = """# Settings

All that a recipe can set: `loop.steps` is `--loop.steps 20` on the command line, and `loop: {steps: 20}` in a file
([recipes.md](recipes.md)). `agentgym settings KEY` shows the same in a terminal, for plugins of yours too. Where the
default is "model" it follows from the model and the device ([recipes.md](recipes.md#where-the-values-come-from)).

Those that "can change in a running run": [recovery.md](recovery.md#settings-that-change).

Written by `agentgym settings --markdown` from the docstrings below the fields.
"""


def page(registry: PluginRegistry) -> str:
    """The page of the settings of this package; plugins of others are left out."""
    blocks = [INTRODUCTION, *_of_recipe(registry)]
    groups = [environment(name, registry) for name in _ours("environments", registry)]
    groups += [sandbox(name, registry) for name in _ours("sandboxes", registry)]
    for group in groups:
        section, _, name = group.key.partition(".")
        blocks.append(f"## `{section}.options` of `{name}`\n\n{_table(group.settings)}")
    return "\n".join(block for block in blocks if block)


def _ours(kind: Kind, registry: PluginRegistry) -> list[str]:
    return [name for name in registry.names(kind) if registry.provider(kind, name).distribution == "agentgym"]


def _of_recipe(registry: PluginRegistry) -> Iterator[str]:
    """A chapter for each section, those inside a section included, with the components that may be chosen there."""
    known = {path: (text, kind) for path, text, kind in sections()}
    settings = [*describe(Recipe)]
    for path, (text, kind) in known.items():
        title = f"{'#' * (path.count('.') + 2)} `{path}`\n\n{text}\n"
        if kind is not None:
            names = dict.fromkeys([*SEAMS[kind].builtin, *_ours(kind, registry)])
            groups = [component(path, kind, name, registry) for name in names]
            yield f"{title}\n{_chosen(groups)}\n{_merged(path, groups)}"
        else:
            others = [f"{key}." for key in known if key.startswith(f"{path}.")]
            own = [
                one
                for one in settings
                if (one.key == path or one.key.startswith(f"{path}.")) and not one.key.startswith(tuple(others))
            ]
            yield f"{title}\n{_table(own)}"


def _table(settings: Iterable[Setting]) -> str:
    rows = [(f"`{one.key}`", one.type_name, _default(one), meaning(one)) for one in settings]
    return _rows(("setting", "type", "default", ""), rows) if rows else "It has no settings.\n"


def _chosen(groups: Sequence[Group]) -> str:
    """The components by name; the first is the default unless a recipe says otherwise."""
    return _rows(("name", ""), [(f"`{group.key.rpartition('.')[2]}`", group.text) for group in groups])


def _merged(path: str, groups: Sequence[Group]) -> str:
    """Each setting once, with the components that have it and, where they differ, their defaults."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for group in groups:
        for one in group.settings:
            name = group.key.rpartition(".")[2]
            found.setdefault((one.key, one.type_name, one.text), {})[name] = _default(one)
    rows = []
    for (key, type_name, text), defaults in found.items():
        values = list(defaults.values())
        usual = max(values, key=values.count)
        different = [f"{name}: {value}" for name, value in defaults.items() if value != usual]
        of = "all" if len(defaults) == len(groups) else ", ".join(defaults)
        rows.append((f"`{key}`", type_name, "; ".join([usual, *different]), of, text))
    return _rows(("setting", "type", "default", "of", ""), rows) if rows else ""


def _default(one: Setting) -> str:
    return "model" if one.key in KEYS else f"`{one.default}`" if one.default else "required"


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines, ""])
