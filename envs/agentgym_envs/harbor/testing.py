"""Runs a phase's tests in a container, and reads what they wrote through the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from agentgym.sandbox import FileRefused, Machine, RunResult, RunStatus
from agentgym_envs.harbor.files import pack
from agentgym_envs.harbor.folder import Phase, TaskFolder, resolved
from agentgym_envs.harbor.origin import limits_of, open_logs
from agentgym_envs.harbor.rewards import FILES, MAX_BYTES, NoReward, read_rewards, score_of

TAIL: Final = 2000  # characters of the tests' output that are kept
Fault = Literal["", "missing", "invalid", "timeout", "image", "tampered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """What a run of the tests said. rewards: None where there is no valid one, and `fault` and `detail` say why.

    files: which reward files were written. disagrees: what else they left says otherwise than a full reward.
    """

    rewards: Mapping[str, float] | None = None
    files: tuple[str, ...] = ()
    fault: Fault = ""
    detail: str = ""
    exit_code: int | None = None
    output: str = ""
    disagrees: tuple[str, ...] = ()

    @property
    def score(self) -> float | None:
        return None if self.rewards is None else score_of(self.rewards)


async def run_tests(machine: Machine, task: TaskFolder, phase: Phase, *, allowed: tuple[str, ...], work: str) -> Tested:
    """allowed: the reward files that count; any is taken where none is named. work: the folder that they run in."""
    tests = pack(task.path, *phase.tests, first="test.sh") if phase.tests else None
    await open_logs(machine, tests=tests, fresh=True)
    env = resolved(phase.verifier.env, "verifier.env")
    ran = await machine.exec(
        "/tests/test.sh", user=phase.verifier.user, env=env, folder=work, limits=limits_of(phase.verifier.timeout_s)
    )
    await machine.end_processes()
    output = (ran.stdout + ran.stderr)[-TAIL:]
    if ran.status is RunStatus.TIMEOUT:
        detail = f"the tests took longer than {phase.verifier.timeout_s:g} s"
        return Tested(fault="timeout", detail=detail, output=output)
    written, refused = await _reward_files(machine)
    if not written:
        said = f" The tests' last words: {output[-300:].strip()!r}" if output.strip() else ""
        detail = f"exit code {ran.exit_code}, and {'; '.join(refused)}.{said}"
        return Tested(fault="missing", detail=detail, exit_code=ran.exit_code, output=output)
    name = next((one for one in FILES if one in written and (not allowed or one in allowed)), next(iter(written)))
    try:
        rewards = read_rewards(name, written[name], least=0.0, most=phase.verifier.most)
    except NoReward as error:
        return Tested(fault="invalid", detail=str(error), files=tuple(written), exit_code=ran.exit_code, output=output)
    disagrees = await _disagreements(machine, ran) if score_of(rewards) >= phase.verifier.most else ()
    return Tested(rewards=rewards, files=tuple(written), exit_code=ran.exit_code, output=output, disagrees=disagrees)


async def _reward_files(machine: Machine) -> tuple[dict[str, bytes], list[str]]:
    written, refused = {}, []
    for name in FILES:
        try:
            written[name] = await machine.get_file(f"/logs/verifier/{name}", max_bytes=MAX_BYTES)
        except FileRefused as error:
            refused.append(str(error))
    return written, refused


async def _disagreements(machine: Machine, ran: RunResult) -> tuple[str, ...]:
    found = [] if ran.exit_code == 0 else [f"exit code {ran.exit_code}"]
    try:
        report = json.loads(await machine.get_file("/logs/verifier/ctrf.json"))
        failed = report["results"]["summary"]["failed"]
        found += [f"ctrf.json has {failed} failed tests"] if failed else []
    except (FileRefused, ValueError, KeyError, TypeError, RecursionError):
        pass
    return tuple(found)
