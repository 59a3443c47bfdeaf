"""The page and its data in one file, and the modules that are put into it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from view_runs import HOSTILE, episode, task

from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder
from agentgym.tables.roots import Roots
from agentgym.types import Group
from agentgym.view.app import PAGE, View
from agentgym.view.bundle import Bundle, NotBundled
from agentgym.view.export import Export

INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>agentgym</title>
<link rel="icon" href="page/icon.svg">
<link rel="stylesheet" href="page/style.css">
<script type="module" src="page/app.js"></script>
</head>
<body><div id="root"></div></body>
</html>
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = tmp_path / "page"
    (folder / "parts").mkdir(parents=True)
    (folder / "index.html").write_text(INDEX)
    (folder / "style.css").write_text("body { color: black }\n")
    (folder / "app.js").write_text(
        'import { plus, NAME as name } from "./parts/sums.js";\nimport all, * as lot from "./parts/names.js";\n'
        "console.log(plus(1, 2), name, all, lot.first, '</script>');\n"
    )
    (folder / "parts" / "sums.js").write_text(
        'import { first } from "./names.js";\n'
        "export function plus(a, b) { return a + b; }\nexport const NAME = first;\n"
    )
    (folder / "parts" / "names.js").write_text(
        "/*\nexport function old() {}\n*/\nconst first = 'one', b = 2;\nexport default b;\nexport { first };\n"
    )
    return folder


def test_modules_become_one_script_in_the_order_of_their_imports(page: Path) -> None:
    text = Bundle(page).of("app.js")
    assert [text.index(f"// {name}") for name in ("parts/names.js", "parts/sums.js", "app.js")] == sorted(
        text.index(f"// {name}") for name in ("parts/names.js", "parts/sums.js", "app.js")
    )
    assert text.count("// parts/names.js") == 1 and not re.search(
        r"^\s*(import|export)\b(?! function old)", text, re.MULTILINE
    )
    assert "const {plus, NAME: name} = __modules['parts/sums.js'];" in text
    assert "return {'default': __default, 'first': first};" in text.replace(
        "'first': first, 'default': __default", "'default': __default, 'first': first"
    )


@pytest.mark.parametrize(
    "line",
    [
        'import { x } from "../../secret.js";',
        'import { x } from "https://evil.example/x.js";',
        'import { x } from "preact";',
        'import { x } from "./gone.js";',
        'export * from "./parts/names.js";',
        "export let changed = 1;",
        'const late = import("./parts/names.js");',
        "console.log(import.meta.url);",
        'import { x } from "./app.js";',
    ],
)
def test_a_module_that_would_not_work_in_one_file_is_refused(page: Path, line: str) -> None:
    (page / "app.js").write_text(f"{line}\n")
    with pytest.raises(NotBundled):
        Bundle(page).of("app.js")


def exported(view: View, page: Path, tmp_path: Path, **limits) -> tuple[str, dict, Export]:
    export = Export(view, **limits)
    size = export.write(tmp_path / "out.html", page)
    text = (tmp_path / "out.html").read_text()
    assert size == len(text.encode())
    [data] = re.findall(r'<script type="application/json" id="agentgym-data">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(data), export


def test_one_file_has_the_answers_of_the_server_and_allows_only_its_own_scripts(
    runs: Path, page: Path, tmp_path: Path, open_view
) -> None:
    text, data, export = exported(View(Roots.of([runs])), page, tmp_path)
    view = open_view(runs)
    for path in (
        "",
        "/curves",
        "/time",
        "/events?tail=200",
        "/episodes/train-3-1",
        "/episodes?source=all&limit=500&sort=-step",
    ):
        wanted, got = view.get(f"/api/runs/runs%3Aone{path}").json(), data[f"GET /api/runs/runs%3Aone{path}"]
        wanted.pop("steering", 0), got.pop("steering", 0)
        assert got == wanted, path
    assert data["GET /api"]["exported"] is True and data["GET /api"]["can"] == {"steer": False, "play": False}
    assert str(runs) not in text and export.left_out == []
    scripts = re.findall(r"<script type=\"module\">(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    for [body] in (scripts, styles):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy and "page/" not in text.replace("// page/", "")


def test_hostile_episodes_stay_inside_of_the_data(tmp_path: Path, page: Path) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        one = episode(0, 0, success=True, text=HOSTILE + "</script><!--")
        folder.save_groups(1, [Group(group_id=0, task=task(0), start_version=0, episodes=[one], advantages=[1.0])])
    text, data, _ = exported(View(Roots.of([tmp_path / "runs"])), page, tmp_path)
    assert text.count("<script") == text.count("</script") == 2 and "<img" not in text and "<!--" not in text
    said = data["GET /api/runs/runs%3Aone/episodes/train-1-1"]["messages"][-1]["content"]
    assert said == HOSTILE + "</script><!--"


def test_what_is_left_out_is_said(runs: Path, page: Path, tmp_path: Path) -> None:
    _, data, export = exported(View(Roots.of([runs])), page, tmp_path, episodes=10)
    assert export.left_out == ["runs:one: 58 of 68 episodes"] and data["GET /api"]["left_out"] == export.left_out[0]
    assert sum("/episodes/" in key for key in data) == 10
    _, data, export = exported(View(Roots.of([runs])), page, tmp_path, max_bytes=30_000)
    assert "would be larger than" in export.left_out[0] and len(json.dumps(data)) < 35_000


def test_an_installation_without_the_page_says_so(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be put into one file"):
        Export(View(Roots.of([runs]))).write(tmp_path / "out.html", tmp_path / "nowhere")


def test_the_shipped_page_can_be_one_file(runs: Path, tmp_path: Path) -> None:
    if not (PAGE / "index.html").is_file():
        pytest.skip("the page is not in this checkout")
    text, data, _ = exported(View(Roots.of([runs])), PAGE, tmp_path)
    assert "page/" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL) and "GET /api" in data
