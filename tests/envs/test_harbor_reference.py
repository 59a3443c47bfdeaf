"""Our parser of task.toml and our reading of rewards, against Harbor's own classes in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from agent_programs import PYPI
from harbor_comparing import disagreement, question

SCRIPT = Path(__file__).parents[1] / "harbor_reference.py"


@pytest.mark.agents
def test_five_hundred_task_files_and_a_hundred_rewards_are_read_as_harbor_reads_them() -> None:
    asked = [question("toml", seed) for seed in range(500)] + [question("file", seed) for seed in range(100)]
    python = PYPI / "harbor" / "bin" / "python"
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    ran = subprocess.run([python, SCRIPT], input=lines, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    wrong = [
        f"{one}: {said}" for one, answer in zip(asked, answers, strict=True) if (said := disagreement(one, answer))
    ]
    assert not wrong, wrong[:3]
    assert sum("value" in answer for answer in answers) > 250  # else little was compared
