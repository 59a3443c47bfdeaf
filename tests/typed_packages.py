"""Checks with mypy what plugin authors begin with: every template of `agentgym new`, and the package of a third party.

    python tests/typed_packages.py      part of `make lint`: the cache of the run before it makes it a matter of seconds

It is strict, by pyproject.toml, so that an author's own strict run has no error that is ours. An `ignore` that nothing
needs is an error: what mypy has to refuse is marked by one.
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
MODULES = {
    "misspelt": """
from agentgym import Enviroment  # type: ignore[attr-defined]
from agentgym.commands import Parsr  # type: ignore[attr-defined]
from agentgym.killable import KillableCals  # type: ignore[attr-defined]
""",
    "calls_of_actors": """
from typing import assert_type

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import ProcessInfo, endpoint


class Judge(ServiceActor):
    @endpoint
    async def score(self, text: str, strict: bool = False) -> float:
        return 1.0


class Other(ServiceActor):
    @endpoint
    async def ask(self) -> str:
        return ""


async def main() -> None:
    group, service = await Judge.as_actor(), await Judge.as_service()
    assert_type(await group.call(Judge.score, "a", timeout_s=1), list[float])
    assert_type(await service.route(Judge.score, "a", True), float)
    assert_type(await service.call_all(Judge.probe), list[list[ProcessInfo]])
    await service.route(Judge.score, 3)  # type: ignore[arg-type]
    await group.call(Judge.score, timeout_s=1)  # type: ignore[arg-type]
    await group.call(Other.ask, timeout_s=1)  # type: ignore[arg-type]
""",
}


def written(folder: Path) -> list[str]:
    """Writes the packages and their tests side by side into the folder; returns mypy's words for all of them."""
    made = folder / "made"
    for template in TEMPLATES:
        PackagePlan(name=f"made_{template}", template=template, folder=made / template).write()
    sources = [*made.glob("*/made_*"), *made.glob("*/tests/*.py"), *THIRD_PARTY.glob("*/")]
    for source in sources:
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / source.name)
    for name, source_text in MODULES.items():
        sources.append(folder / f"{name}.py")
        sources[-1].write_text(source_text)
    return [word for one in sources for word in ("-p" if one.is_dir() else "-m", one.stem)]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        words = written(Path(folder))
        mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", ROOT / "pyproject.toml", *words]
        return subprocess.run(mypy, cwd=ROOT, env={**os.environ, "MYPYPATH": folder}).returncode


if __name__ == "__main__":
    sys.exit(main())
