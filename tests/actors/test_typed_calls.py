"""What mypy makes of a call over the actor boundary, for an actor of anybody's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """\
from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint


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
    reveal_type(await group.call(Judge.score, "a", timeout_s=1))
    reveal_type(await service.route(Judge.score, "a", True))
    reveal_type(await service.call_all(Judge.probe))
    await service.route(Judge.score, 3)
    await group.call(Judge.score, timeout_s=1)
    await group.call(Other.ask, timeout_s=1)
"""


@pytest.mark.slow
def test_mypy_checks_the_arguments_and_gives_the_type_of_the_answer(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    # Not by its whole path: from mypy's cache come the messages of an earlier run, with the path of that one.
    found = [line.partition(": ")[2] for line in done.stdout.splitlines() if "program.py:" in line]
    revealed = [line.rpartition("is ")[2] for line in found if line.startswith("note: Revealed")]
    assert revealed == ['"list[float]"', '"float"', '"list[list[agentgym.actors.endpoint.ProcessInfo]]"'], done
    errors = [line for line in found if line.startswith("error")]
    assert ["[arg-type]" in error for error in errors] == [True, True, True], done
