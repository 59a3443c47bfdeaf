"""The tests that docs/testing.md shows pass, without any plugin of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pages import ROOT, blocks


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    [shown] = [block for block in blocks(ROOT / "docs" / "testing.md") if block.language == "python"]
    (tmp_path / "test_plugin.py").write_text(shown.text)
    (tmp_path / "repeat_number.py").write_text((ROOT / "tests" / "data" / "repeat_number.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "test_plugin.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and "14 passed, 1 skipped" in done.stdout, done.stdout


def test_importing_it_loads_neither_pytest_nor_what_an_extra_brings() -> None:
    heavy = ["pytest", "torch", "transformers", "jinja2", "pydantic", "starlette", "numpy"]
    code = f"import sys, agentgym.testing; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
