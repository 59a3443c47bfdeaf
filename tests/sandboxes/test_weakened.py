"""Every check of the hostile suite has been seen to fail: against a sandbox that lacks the wall in question."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from weakened import WEAKENINGS
from weakening import Weakening

from agentgym.errors import InfraError
from agentgym_sandboxes.audit.findings import Outcome
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.suite import SNIPPETS
from agentgym_sandboxes.audit.trial import Snippet, Trial
from agentgym_sandboxes.audit.verify import Examiner, chosen
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig

pytestmark = pytest.mark.hostile

# Each is a try, for the kernel chooses whom it kills when memory ends: as many times the first wall limit, so that even
# a busy machine has time
PATIENCE = (1.0, 2.0, 4.0, 4.0, 4.0)
SANDBOXES_AT_ONCE = 4

UNBREAKABLE = {
    "loopback_of_a_neighbour",  # not promised
    "odd_results",  # the walls are on our own side: see test_verify.py
}


def test_every_snippet_has_a_weakening_that_lets_it_through() -> None:
    broken = [name for weakening in WEAKENINGS for name in weakening.breaks]
    assert len(set(broken)) == len(broken)
    assert {trial.name for trial in SNIPPETS} - UNBREAKABLE == set(broken)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("weakening", WEAKENINGS, ids=lambda weakening: weakening.name)
async def test_it_gets_through_without_the_wall(engine: str, weakening: Weakening) -> None:
    trials = chosen(weakening.breaks)
    held = {trial.name: "not tried" for trial in trials}
    for times in PATIENCE:
        again = [trial for trial in trials if trial.name in held]
        again = [_patient(trial, times * weakening.wall_s) for trial in again] if weakening.patient else again
        sandboxes = _dealt(again, weakening)
        turns = asyncio.Semaphore(SANDBOXES_AT_ONCE)  # most of the time they wait for what went wrong inside
        outcomes: dict[str, str] = {}
        for found in await asyncio.gather(*(_outcomes(weakening, some, turns) for some in sandboxes)):
            outcomes |= found
        held = {name: told for name, told in outcomes.items() if not told.startswith(Outcome.ESCAPED)}
        if not held:
            return
    assert not held


def _dealt(trials: list[Trial], weakening: Weakening) -> list[list[Trial]]:
    """To sandboxes. Those whose own time limit matters stay in one, where no other takes their time."""
    if weakening.alone:
        return [[trial] for trial in trials]
    if weakening.at_once or not weakening.patient:
        return [trials]
    return [some for first in range(SANDBOXES_AT_ONCE) if (some := trials[first::SANDBOXES_AT_ONCE])]


def _patient(trial: Trial, wall_s: float) -> Trial:
    if not isinstance(trial, Snippet):
        return trial
    return replace(trial, limits=replace(trial.limits, wall_s=wall_s))


async def _outcomes(weakening: Weakening, trials: Sequence[Trial], turns: asyncio.Semaphore) -> dict[str, str]:
    config = DockerConfig(pool_size=1, slots=weakening.slots)
    async with turns, DockerBackend(config, weakening.settings) as backend:
        with Host() as host:
            if weakening.at_once:
                told = await asyncio.gather(*(_attempt(trial, backend, host) for trial in trials))
                return {trial.name: text for trial, text in zip(trials, told, strict=True)}
            examiner = Examiner(backend, await backend.probe(), host)
            findings = [await examiner.examine(trial) for trial in trials]
            return {finding.name: f"{finding.outcome}: {finding.detail}" for finding in findings}


async def _attempt(trial: Trial, backend: DockerBackend, host: Host) -> str:
    try:
        judgement = await trial.attempt(backend, host)
    except InfraError as error:
        return f"{Outcome.ESCAPED}: destroyed its sandbox: {error}"
    return f"{judgement.outcome}: {judgement.detail}"
