"""The agent's container before the agent: folders of the format, files of a step, health checks; and the oracle."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, Machine, RunResult, RunStatus, Session
from agentgym_envs.harbor.files import pack
from agentgym_envs.harbor.folder import Phase, TaskFolder, resolved
from agentgym_envs.harbor.restoring import PATH
from agentgym_envs.harbor.task_config import HealthCheck

LOGS: Final = ("logs", "logs/agent", "logs/verifier", "logs/artifacts")
_SETUP_S: Final = 600.0  # that a step's setup.sh may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What was true of a container before its agent acted. work: the folder of its commands. path: its PATH.

    shell: bash where the image has one, else sh."""

    work: str
    path: tuple[str, ...]
    shell: str


def limits_of(wall_s: float) -> Limits:
    """In a task's container a command is limited by time, and by what the container may use."""
    return Limits(
        wall_s=wall_s,
        cpu_s=1_000_000,
        memory_mib=1 << 24,
        file_mib=1 << 20,
        processes=1 << 20,
        output_bytes=256 << 10,
        reserves=True,
    )


async def begin(session: Session, task: TaskFolder) -> Origin:
    """Prepare a container. Raises InfraError where it is not healthy."""
    machine = session.machine
    await open_logs(machine)
    asked = await machine.exec('pwd; echo "$PATH"; bash -c : && echo bash', limits=limits_of(60.0))
    lines = asked.stdout.splitlines()
    if len(lines) < 2 or not lines[0].startswith("/"):
        raise InfraError(f"{task.name}: no command could be run in the image: {asked.stderr[-300:] or asked.status}")
    path = tuple(dict.fromkeys([*filter(None, lines[1].split(":")), *PATH]))
    origin = Origin(work=lines[0], path=path, shell="bash" if lines[2:] == ["bash"] else "sh")
    await lay_environment(machine, task, origin)
    if task.config.machine.health is not None:
        await _wait_until_healthy(machine, task, task.config.machine.health, origin)
    return origin


async def lay_environment(machine: Machine, task: TaskFolder, origin: Origin) -> None:
    """A task with an image by name has the files of its folder `environment` in the work folder."""
    environment = task.path / "environment"
    if task.spec.image is not None and environment.is_dir() and origin.work != "/":
        await machine.put(origin.work, pack(task.path, environment))


async def begin_phase(machine: Machine, task: TaskFolder, phase: Phase, origin: Origin) -> None:
    """Lay out a step's files and run its setup.sh. Raises InfraError where that fails."""
    if phase.workdir is not None:
        await machine.put(origin.work, pack(task.path, phase.workdir, first="setup.sh"))
        if (phase.workdir / "setup.sh").is_file():
            ran = await machine.exec(
                f"{origin.work.rstrip('/')}/setup.sh",
                user=phase.agent.user,
                folder=origin.work,
                limits=limits_of(_SETUP_S),
            )
            if ran.exit_code != 0:
                raise InfraError(f"{task.name}: setup.sh of step {phase.name!r} failed: {_end(ran)}")
    if phase.health is not None:
        await _wait_until_healthy(machine, task, phase.health, origin)


async def run_oracle(machine: Machine, task: TaskFolder, phase: Phase, origin: Origin, *, most_s: float) -> str:
    """Run the solution's script as the agent's user; what went wrong with it, or an empty text."""
    assert phase.solution is not None
    await machine.put("/solution", pack(task.path, phase.solution, first="solve.sh"), replace=True)
    ran = await machine.exec(
        "/solution/solve.sh",
        user=phase.agent.user,
        env=resolved(task.config.solution_env, "solution.env"),
        folder=origin.work,
        limits=limits_of(phase.agent.timeout_s or most_s),
    )
    return "" if ran.exit_code == 0 else f"solve.sh: {_end(ran)}"


async def open_logs(machine: Machine, *, tests: bytes | None = None, fresh: bool = False) -> None:
    """The folders of the format, where every user of the container may write, by one request to the engine.

    tests: an archive that takes the place of /tests. fresh: /logs/verifier is emptied.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in LOGS:
            if fresh and name == "logs/verifier":
                archive.addfile(tarfile.TarInfo(name))  # a file takes the folder's place, so that nothing is left of it
            archive.addfile(_folder(name, 0o777))
        if tests is not None:
            archive.addfile(tarfile.TarInfo("tests"))
            archive.addfile(_folder("tests", 0o755))
            with tarfile.open(fileobj=io.BytesIO(tests)) as read:
                for entry in read:
                    file = read.extractfile(entry)
                    entry.name, entry.pax_headers = f"tests/{entry.name}", {}
                    archive.addfile(entry, file)
    await machine.put("/", out.getvalue())


def _folder(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info


async def _wait_until_healthy(machine: Machine, task: TaskFolder, health: HealthCheck, origin: Origin) -> None:
    began, failures = time.monotonic(), 0
    while True:
        starting = time.monotonic() - began < health.start_period_s
        ran = await machine.exec([origin.shell, "-c", health.command], limits=limits_of(health.timeout_s))
        if ran.exit_code == 0:
            return
        if not starting:
            failures += 1
            if failures >= health.retries:
                raise InfraError(f"{task.name} is not healthy after {failures} checks: {_end(ran)}")
        await asyncio.sleep(health.start_interval_s if starting else health.interval_s)


def _end(ran: RunResult) -> str:
    said = (ran.stderr or ran.stdout)[-300:].strip()
    return f"{ran.status.value if ran.status is not RunStatus.ERROR else f'exit code {ran.exit_code}'} {said!r}"


def solution_commands(
    solution: Path, env: dict[str, str], *, shell_of_script: tuple[str, ...] = ("sh", "bash")
) -> list[str]:
    """The commands with which an agent does what the oracle's script does: first its other files, then its text."""
    import base64
    import shlex

    script = (solution / "solve.sh").read_text()
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    others = [path for path in sorted(solution.rglob("*")) if path.is_file() and path.name != "solve.sh"]
    first, _, rest = script.partition("\n")
    interpreter = first[2:].strip().rsplit("/", 1)[-1].removeprefix("env ").strip() if first.startswith("#!") else "sh"
    alone = not others and not any(word in script for word in ("/solution", "$0", "BASH_SOURCE", "${0"))
    if alone and interpreter in shell_of_script:
        return [exports + (rest if first.startswith("#!") else script).strip()]
    commands = []
    for path in [*others, solution / "solve.sh"]:
        at = f"/solution/{path.relative_to(solution).as_posix()}"
        data = base64.b64encode(path.read_bytes()).decode()
        made = f"mkdir -p {shlex.quote(at.rpartition('/')[0])}\n"
        commands.append(f"{made}base64 -d > {shlex.quote(at)} <<'END'\n{data}\nEND\nchmod 755 {shlex.quote(at)}")
    return [*commands, f"{exports}/solution/solve.sh"]
