"""The programs in the documentation run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(r"```python\n(.*?)```", (DOCS / "sandboxes.md").read_text(), re.DOTALL)
PRINTED = [
    "42\n\nFalse ['', 'assertion failed: assert f([]) == 1']\n",
    "2\n\n2 data.csv\n\n['data.csv']\n",
]


@pytest.mark.docker
@pytest.mark.parametrize(
    ("block", "printed"), list(zip(BLOCKS, PRINTED, strict=True)), ids=["grade", "session"]
)
def test_a_program_pasted_from_the_page_runs(engine: str, tmp_path: Path, block: str, printed: str) -> None:
    (tmp_path / "pasted.py").write_text(block)
    end = subprocess.run(
        [sys.executable, "-W", "error", "pasted.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (end.returncode, end.stdout, end.stderr) == (0, printed, "")
