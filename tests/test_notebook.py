"""The notebook of the first hour runs as it is, in a kernel of its own, and the outputs that it shows are not stale."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from pages import ROOT, blocks

NOTEBOOK = ROOT / "docs" / "first_steps.ipynb"


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []) if output.get("name") != "stderr")


def lines(cell: Any) -> set[str]:
    """What it printed, without numbers and what they change: the words of each line."""
    plain = [re.sub(r"  (left|after sync) \S+|\S*\d\S*", " ", line) for line in printed(cell).splitlines()]
    return {" ".join(re.findall(r"[A-Za-z_]{2,}", line)) for line in plain}


def programs(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.hostile
@pytest.mark.timeout(900)
def test_the_notebook_runs_the_policy_improves_and_its_outputs_are_those_that_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, run = nbformat.read(NOTEBOOK, 4), nbformat.read(NOTEBOOK, 4)
    for cell in programs(run):
        cell.outputs = []
    run.cells.append(nbformat.v4.new_code_cell("print(before.success, after.success, after.num_tasks)"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(run, timeout=600, kernel_name="python3", record_timing=False, resources=folder).execute()
    before, after, tasks = map(float, printed(run.cells.pop()).split())
    assert before + 0.2 < after <= 1.0 and tasks == 48
    for cell in programs(run):
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(run, tmp_path / NOTEBOOK.name)
    for old, new in zip(programs(shown), programs(run), strict=True):
        gone = lines(old) - lines(new)
        assert "\x1b" not in printed(new), "commands take the notebook for a terminal"
        assert printed(new) and not gone, f"{gone} is no longer printed: copy {tmp_path}/{NOTEBOOK.name} to docs/"


def test_the_notebook_shows_outputs_and_the_environment_of_the_readme() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert all(printed(cell) for cell in programs(notebook))
    assert not any("\x1b" in printed(cell) or "/tmp" in printed(cell) for cell in programs(notebook))
    [digits] = [block for block in blocks(ROOT / "README.md") if block.marks.get("file") == "digits.py"]
    assert f"%%writefile digits.py\n{digits.text.rstrip()}" in [cell.source for cell in programs(notebook)]
