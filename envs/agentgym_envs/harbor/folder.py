"""A task folder: its configuration, instructions and scripts, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentgym.errors import UserError
from agentgym.types import SandboxSpec
from agentgym_envs.harbor.files import check_links, digest_of
from agentgym_envs.harbor.network import Network
from agentgym_envs.harbor.task_config import (
    Agent,
    Artifact,
    HealthCheck,
    Machine,
    Step,
    TaskConfig,
    Verifier,
    parse_task,
)

VERSION: Final = "1"  # of how verdicts are found
PUBLISHED: Final = "/logs/artifacts"  # what an agent leaves there is always carried
_CANARY: Final = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_COMPOSE: Final = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One instruction with its tests: a step, or the whole of a task without steps.

    tests: folders on this machine, later ones laid over earlier ones; empty where the verifier's image has them.
    judge: the container of a separate verifier; None for the task's own. mode: as in `task_config.MODES`.
    solution, workdir: folders on this machine.
    """

    name: str
    instruction: str
    agent: Agent
    verifier: Verifier
    judge: SandboxSpec | None
    mode: str
    tests: tuple[Path, ...]
    artifacts: tuple[Artifact, ...]
    solution: Path | None = None
    workdir: Path | None = None
    health: HealthCheck | None = None
    least: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFolder:
    """A task that can be played. spec: of the agent's container. digest: of all its files."""

    path: Path
    name: str
    config: TaskConfig
    phases: tuple[Phase, ...]
    spec: SandboxSpec
    digest: str

    @property
    def pin(self) -> str:
        """A name for what the oracle shows."""
        return "-".join([self.digest[:32], *(phase.mode for phase in self.phases), VERSION])

    @property
    def has_oracle(self) -> bool:
        return all(phase.solution is not None for phase in self.phases)


def read_folder(path: Path, *, mode: str, memory_mib: int) -> TaskFolder:
    """mode, memory_mib: of tasks that do not say. Raises UserError with the file and the key or what is missing."""
    try:
        config = parse_task((path / "task.toml").read_text())
    except UserError as error:
        raise UserError(f"{path / 'task.toml'}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path / 'task.toml'} could not be read: {error}") from error
    try:
        check_links(path)
        _check_supported(path, config)
        spec = _spec(path / "environment", config.machine, config.agent, memory_mib)
        phases = tuple(_phases(path, config, mode, memory_mib))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    name = config.name or path.resolve().name
    return TaskFolder(path=path, name=name, config=config, phases=phases, spec=spec, digest=digest_of(path))


def _check_supported(path: Path, config: TaskConfig) -> None:
    machines = {"environment": config.machine, "verifier.environment": config.verifier.machine}
    machines |= {f"steps.{step.name}.verifier.environment": step.verifier.machine for step in config.steps}
    for name, machine in machines.items():
        for server in machine.mcp_servers if machine is not None else ():
            if name != "environment" or server.transport != "stdio":
                raise UserError(
                    f"task.toml: {name}.mcp_servers has {server.name!r} with transport {server.transport!r}, which is "
                    "not supported: a task is one container, and servers start in the agent's, by their `command` "
                    "(transport 'stdio')"
                )
    found = [file for folder in ("environment", "tests", "steps") for file in (path / folder).rglob("*compose*.y*ml")]
    for file in found:
        if file.name in _COMPOSE:
            raise UserError(f"{file.relative_to(path)}: tasks of several containers are not supported")
    for file in (path / "trajectory.json", *(path / "steps").glob("*/trajectory.json")):
        if file.exists():
            raise UserError(f"{file.relative_to(path)}: an earlier conversation is not supported; leave the task out")


def _phases(path: Path, config: TaskConfig, mode: str, memory_mib: int) -> list[Phase]:
    if not config.steps:
        return [_phase(path, path, config, None, mode, memory_mib)]
    return [_phase(path, path / "steps" / step.name, config, step, mode, memory_mib) for step in config.steps]


def _phase(task: Path, at: Path, config: TaskConfig, step: Step | None, mode: str, memory_mib: int) -> Phase:
    instruction = at / "instruction.md"
    if not instruction.is_file():
        raise UserError(f"{instruction.relative_to(task)} is missing")
    agent = config.agent if step is None else _step_agent(config.agent, step.agent)
    verifier = config.verifier if step is None else _step_verifier(config.verifier, step.verifier)
    judge, has_tests = _judge(task, at, config, verifier, memory_mib)
    tests = tuple(folder for folder in dict.fromkeys((task / "tests", at / "tests")) if folder.is_dir())
    if not has_tests and not any((folder / "test.sh").is_file() for folder in tests):
        raise UserError(f"{(at / 'tests/test.sh').relative_to(task)} is missing")
    solution = at / "solution"
    if step is not None and not solution.is_dir():
        solution = task / "solution"
    return Phase(
        name="" if step is None else step.name,
        instruction=_without_canary(instruction.read_text()) + _skills(config),
        agent=agent,
        verifier=verifier,
        judge=judge,
        mode="carry" if judge is not None else verifier.mode or mode,
        tests=() if has_tests else tests,
        artifacts=(Artifact(source=PUBLISHED), *config.artifacts, *(step.artifacts if step is not None else ())),
        solution=solution if (solution / "solve.sh").is_file() else None,
        workdir=at / "workdir" if step is not None and (at / "workdir").is_dir() else None,
        health=None if step is None else step.health,
        least={} if step is None else step.least,
    )


def _step_agent(task: Agent, step: Agent) -> Agent:
    timeout = step.timeout_s if step.timeout_s is not None else task.timeout_s
    if step.network is not None and step.network != task.network:
        raise UserError("task.toml: agent.network_mode of a step differs from the task's, which is not supported")
    return Agent(timeout_s=timeout, user=step.user or task.user, network=task.network)


def _step_verifier(task: Verifier, step: Verifier) -> Verifier:
    return Verifier(
        timeout_s=step.timeout_s if step.timeout_s != Verifier().timeout_s else task.timeout_s,
        env={**task.env, **step.env},
        user=step.user or task.user,
        network=step.network if step.network is not None else task.network,
        separate=step.separate if step.separate is not None else task.separate,
        machine=step.machine or task.machine,
        collect=step.collect or task.collect,
        mode=step.mode or task.mode,
        most=max(step.most, task.most),
    )


def _judge(
    task: Path, at: Path, config: TaskConfig, verifier: Verifier, memory_mib: int
) -> tuple[SandboxSpec | None, bool]:
    """The container of a separate verifier, and whether its image has the tests."""
    if not verifier.separate:
        return None, False
    machine = verifier.machine or config.machine
    agent = Agent(network=verifier.network)
    if verifier.machine is not None and verifier.machine.image:
        return _spec(at / "tests", machine, agent, memory_mib), True
    for folder in dict.fromkeys((at / "tests", task / "tests")):
        if (folder / "Dockerfile").is_file():
            return _spec(folder, machine, agent, memory_mib, build=True), True
    own = _spec(task / "environment", config.machine, agent, memory_mib)
    return own, False


def _spec(folder: Path, machine: Machine, agent: Agent, memory_mib: int, *, build: bool = False) -> SandboxSpec:
    if not machine.image or build:
        if not (folder / "Dockerfile").is_file():
            raise UserError(f"task.toml has no environment.docker_image, and there is no {folder / 'Dockerfile'}")
        source: dict[str, str] = {"context": str(folder.resolve())}
    else:
        source = {"image": machine.image}
    network: Network = machine.network if agent.network is None else agent.network
    env = resolved(machine.env, "environment.env")
    return SandboxSpec(
        session=True,
        profile="task",
        network=network,
        memory_mib=machine.memory_mib or memory_mib,
        cpus=machine.cpus,
        disk_mib=machine.disk_mib,
        build_timeout_s=machine.build_timeout_s,
        workdir=machine.workdir,
        user=agent.user,
        env=tuple(f"{name}={value}" for name, value in env.items()),
        **source,  # type: ignore[arg-type]
    )


def resolved(env: Mapping[str, str], where: str) -> dict[str, str]:
    """Variables whose value is `${NAME}` or `${NAME:-default}` of this machine. Raises UserError for a missing one."""
    found = {}
    for key, value in env.items():
        template = _VARIABLE.fullmatch(value)
        if template is None:
            found[key] = value
            continue
        name, default = template.groups()
        if name not in os.environ and default is None:
            raise UserError(f"task.toml: {where}.{key} is {value!r}, and the variable {name} is not set here; set it")
        found[key] = os.environ.get(name, default or "")
    return found


def _skills(config: TaskConfig) -> str:
    return f"\n\nSkills, as files: {config.machine.skills}" if config.machine.skills else ""


def _without_canary(text: str) -> str:
    """Lines that mark benchmark data are not for the agent."""
    lines = text.split("\n")
    while lines and _CANARY.match(lines[0].strip()):
        lines.pop(0)
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)
