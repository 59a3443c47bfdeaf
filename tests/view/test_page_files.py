"""The files of the page as they are: what they may not contain, and that vendored ones are those of their makers."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "agentgym" / "view" / "page"
MODULES = sorted(path for path in PAGE.rglob("*.js") if "vendor" not in path.parts)
IMPORT = re.compile(r'^import (?:\{ ([\w, ]+) \}|(\w+)) from "(\.{1,2}/[\w./-]+\.js)";$')
TEXT_INTO_MARKUP = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "DOMParser",
    "createContextualFragment", "setHTMLUnsafe", "javascript:",
)  # fmt: skip


@pytest.mark.parametrize("folder", [PAGE / "vendor", Path(__file__).parent / "vendor"], ids=["page", "tests"])
def test_vendored_files_are_those_of_their_makers(folder: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    present = {path.name for path in folder.iterdir()} - {"SHA256SUMS", "README.md"}
    assert present == set(sums)
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sums} == sums
    assert any(name.startswith("LICENSE") for name in sums)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PAGE)))
def test_no_module_makes_markup_or_code_of_text(path: Path) -> None:
    text = path.read_text()
    found = [word for word in TEXT_INTO_MARKUP if word in text]
    assert not found
    assert not re.findall(r"https?://(?!www\.w3\.org)", text), "the page speaks to its own server alone"
    assert not re.findall(r"\sstyle=", text), "the content security policy forbids style attributes"


def test_modules_import_what_is_there_in_a_way_that_an_export_can_inline() -> None:
    exports = {
        path: set(re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", path.read_text(), re.M))
        for path in MODULES
    }
    vendor = PAGE / "vendor" / "htm-preact.module.js"
    exports[vendor] = set(re.findall(r"\bas (\w+)", vendor.read_text().rpartition("export{")[2]))
    exports[PAGE / "vendor" / "uPlot.esm.js"] = {"uPlot"}  # as its default
    for path in MODULES:
        for line in path.read_text().splitlines():
            if not line.startswith("import "):
                assert not re.search(r"\bimport\(|^export (default|\{|\*)", line), f"{path.name}: {line}"
                continue
            match = IMPORT.match(line)
            assert match, f"{path.name}: {line}"
            names, target = set((match[1] or match[2]).split(", ")), (path.parent / match[3]).resolve()
            assert names <= exports[target], f"{path.name}: {names - exports[target]} not in {target.name}"
            unused = [name for name in names if len(re.findall(rf"\b{name}\b", path.read_text())) < 2]
            assert not unused, f"{path.name}: {unused} not used"


def test_the_first_file_has_nothing_inline() -> None:
    text = (PAGE / "index.html").read_text()
    assert all(not body.strip() for body in re.findall(r"<script[^>]*>(.*?)</script>", text, re.S))
    assert "<style" not in text and "style=" not in text and not re.findall(r"\son\w+=", text)
    named = re.findall(r'(?:src|href)="page/([^"]+)"', text)
    assert named and all((PAGE / name).is_file() for name in named)
