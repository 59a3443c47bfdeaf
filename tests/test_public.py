"""One list says what is public: the import contract, the pages, the templates and a third party's package follow it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks

from agentgym.components import SEAMS
from agentgym.public import PUBLIC
from benchmarks import structure

FILES = structure.package_files(ROOT)
IMPORT = re.compile(r"^\s*(?:from (agentgym(?:\w|\.)*) import (\w+)?|import (agentgym(?:\w|\.)*))", re.MULTILINE)
MENTION = re.compile(r"`(agentgym(?:\.[a-z_]\w*)+)\.([A-Z]\w+|\w+(?=\())")  # a class, or a function that is called
PAGES_OF_USERS = [page for page in PAGES if page.parent.name != "adr"]


def refused(text: str) -> list[str]:
    """Modules of the library that the text's imports take something from although they are not public."""
    found = [(module or plain, name) for module, name, plain in IMPORT.findall(text)]
    ours = [(m, name) for m, name in found if m.partition(".")[0] == "agentgym"]
    return [module for module, name in ours if not {module, f"{module}.{name}"} & PUBLIC.keys()]


def texts() -> Iterator[tuple[str, str]]:
    yield from ((b.name, b.text) for page in PAGES_OF_USERS for b in blocks(page) if b.language == "python")
    for folder in ("agentgym/cli/templates", "tests/data/third_party"):
        yield from ((str(p.relative_to(ROOT)), p.read_text()) for p in (ROOT / folder).rglob("*.*") if p.is_file())


def test_public_modules_exist_and_are_in_order() -> None:
    assert [*PUBLIC] == sorted(PUBLIC)
    assert PUBLIC.keys() <= FILES.keys()


def test_plugins_of_ours_may_import_what_is_public_and_nothing_else() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    contract = next(one for one in contracts if one["name"] == "plugins import the public API only")
    wanted = structure.plugins_contract()
    assert {key: contract[key] for key in wanted} == wanted, "make the contract in pyproject.toml follow public.py"


def test_the_base_of_every_component_is_public() -> None:
    assert {seam.base.partition(":")[0] for seam in SEAMS.values()} <= PUBLIC.keys()


def test_what_authors_are_shown_imports_only_what_is_public() -> None:
    shown = dict(texts())
    assert sum("import" in text for text in shown.values()) > 20  # or it looks at the wrong places
    assert {name: modules for name, text in shown.items() if (modules := refused(text))} == {}


@pytest.mark.parametrize(
    "line", ["import agentgym.yaml", "from agentgym.run import train", "from agentgym.rl import x"]
)
def test_an_import_of_anything_else_is_found(line: str) -> None:
    assert refused(f"import agentgym\nfrom agentgym.rl import losses\ndef f():\n    {line}\n") == [line.split()[1]]


def test_what_a_sentence_names_is_public_and_exists() -> None:
    named = [(page.name, *one) for page in PAGES_OF_USERS for one in MENTION.findall(page.read_text())]
    assert len(named) > 8
    wrong = [
        f"{page}: {module}.{name}"
        for page, module, name in named
        if module not in PUBLIC or not re.search(rf"\b{name}\b", Path(FILES[module]).read_text())
    ]
    assert wrong == []
