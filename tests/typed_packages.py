"""Checks with mypy what plugin authors begin with: every template of `agentgym new`, and the package of a third party.

    python tests/typed_packages.py      part of `make lint`: the cache of the run before it makes it a matter of seconds

It is strict, by pyproject.toml, so that an author's own strict run has no error that is ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from agentgym.cli.packages import TEMPLATES, PackagePlan

ROOT = Path(__file__).resolve().parent.parent
THIRD_PARTY = ROOT / "tests" / "data" / "third_party"
MISSPELT = """
from agentgym import Enviroment  # type: ignore[attr-defined]
from agentgym.commands import Parsr  # type: ignore[attr-defined]
from agentgym.killable import KillableCals  # type: ignore[attr-defined]
"""
"""An author's mistakes, which mypy has to see: an `ignore` that nothing needs is an error."""


def written(folder: Path) -> list[str]:
    """Writes the packages and their tests side by side into the folder; returns mypy's words for all of them."""
    made = folder / "made"
    for template in TEMPLATES:
        PackagePlan(name=f"made_{template}", template=template, folder=made / template).write()
    sources = [*made.glob("*/made_*"), *made.glob("*/tests/*.py"), *THIRD_PARTY.glob("*/")]
    for source in sources:
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / source.name)
    sources.append(folder / "misspelt.py")
    sources[-1].write_text(MISSPELT)
    return [word for one in sources for word in ("-p" if one.is_dir() else "-m", one.stem)]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        words = written(Path(folder))
        mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", ROOT / "pyproject.toml", *words]
        return subprocess.run(mypy, cwd=ROOT, env={**os.environ, "MYPYPATH": folder}).returncode


if __name__ == "__main__":
    sys.exit(main())
