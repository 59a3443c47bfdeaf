"""What the site has besides docs/: the API, the environments, the changes of each version, the notebook as a page, and
links into the repository."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PUBLIC: dict[str, str] = runpy.run_path(str(ROOT / "agentgym" / "public.py"))["PUBLIC"]
LAST = "---\nsearch:\n  boost: 0.2\n---\n"  # in the results of a search, after the pages that explain
CATALOGUE = "environments_catalogue.md"
NOTEBOOK, NOTEBOOK_PAGE = "first_steps.ipynb", "first_steps.md"
CHANGES: dict[str, tuple[str, str]] = runpy.run_path(str(ROOT / "website" / "changelog.py"))["sections"](
    (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s]*)\)")


def on_config(config: Any) -> Any:
    """The API, the decisions and the changes get a menu: an entry for each public module, file and version."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    config.nav.append({"API": ["api/index.md", *({name: f"api/{name}.md"} for name in sorted(PUBLIC))]})
    config.nav.append({"Decisions": [f"adr/{name}" for name in decisions]})
    config.nav.append({"Changes": [f"changes/{version}.md" for version in CHANGES]})
    return config


def on_files(files: Files, config: Any) -> Files:
    rows = [f"| [`{name}`]({name}.md) | {what} |" for name, what in sorted(PUBLIC.items())]
    index = [
        "# API",
        "",
        "What plugins, scripts and custom training loops may import.",
        "",
        "| module | for |",
        "|---|---|",
        *rows,
    ]
    pages = {"api/index.md": "\n".join(index), CATALOGUE: catalogue()}
    pages |= {f"api/{name}.md": f"{LAST}# {name}\n\n::: {name}\n" for name in PUBLIC}
    pages |= {f"changes/{version}.md": changes(version) for version in CHANGES}
    pages[NOTEBOOK_PAGE] = notebook(ROOT / "docs" / NOTEBOOK)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A link to a file of the repository that is not in docs/ becomes its path, or a link by `repo_url`."""
    here = PurePosixPath("docs", page.file.src_uri).parent

    def outside(match: re.Match[str]) -> str:
        text, target = match[1], match[2].partition("#")[0]
        path = (ROOT / here / target).resolve()
        if not path.exists():
            raise SystemExit(f"docs/{page.file.src_uri} links to {target}, which does not exist")
        if path.is_relative_to(ROOT / "docs"):
            return match[0]
        name = path.relative_to(ROOT).as_posix()
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{name})"
        return f"{text}" if name in text else f"{text} (`{name}`)"

    if page.file.src_uri != NOTEBOOK_PAGE:
        markdown = markdown.replace(f"({NOTEBOOK})", f"({NOTEBOOK_PAGE})")
    return _LINK.sub(outside, markdown)


def changes(version: str) -> str:
    """A version's section of CHANGELOG.md, whose links begin at the repository."""
    date, text = CHANGES[version]
    text = re.sub(r"\]\((?!https?:)(docs/)?", lambda found: "](../" if found[1] else "](../../", text)
    return f"# {version} ({date})\n\n" + re.sub("^###", "##", text, flags=re.MULTILINE)


def notebook(path: Path) -> str:
    """Its texts, programs and what they printed when they were run last."""
    found: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        found.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        printed = "".join("".join(one["text"]) for one in cell.get("outputs", []) if one.get("name") == "stdout")
        found += [f"```text\n{printed.rstrip()}\n```"] * bool(printed)
    found[0] += f"\n\nThis page is [a notebook]({path.name})."
    return "\n\n".join(found)


def catalogue() -> str:
    """The environments of the plugins that come with the library, as `agentgym envs list` has them."""
    listed = subprocess.run(
        [sys.executable, "-m", "agentgym.cli.main", "envs", "list", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ["# Catalogue of environments", "", "Made from the installed plugins, as `agentgym envs` lists them.", ""]
    for one in json.loads(listed.stdout):
        lines += [f"## {one['name']}", "", one["summary"], ""]
        lines += [f"- turns at most: {one['max_turns']}", f"- rewards: {', '.join(one['rewards'])}"]
        lines += [f"- install: `{one['requirements']}`"] * bool(one["requirements"])
        if one["options"]:
            lines += ["", "| option | type | default | meaning |", "|---|---|---|---|"]
        for option in one["options"]:
            cells = [f"`{option['key']}`", option["type"], f"`{option['default']}`", option["text"]]
            lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
