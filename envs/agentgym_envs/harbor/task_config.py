"""The file `task.toml` of a task folder, in the format of Harbor 0.26 (schema 1.4)."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from agentgym.errors import UserError
from agentgym_envs.harbor.network import Network, read_network
from agentgym_envs.harbor.reading import Table

MODES: Final = ("snapshot", "carry", "live")
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
_NO_FOLDER: Final = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE: Final = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """A command that has to exit with 0 before the agent begins. Times are in seconds."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file or folder of the agent's container that the verifier finds at the same path.

    exclude: patterns, as of `tar --exclude`."""

    source: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A command that is run in the agent's container before its artifacts are taken. user: empty for the image's."""

    command: str
    timeout_s: float = 60.0
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """An MCP server that the task offers to its agent."""

    name: str
    transport: str = "sse"
    url: str = ""
    command: str = ""
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A container: `[environment]`, or `[verifier.environment]`. Zero stands for what the file does not say."""

    image: str = ""
    build_timeout_s: float = 600.0
    cpus: float = 0.0
    memory_mib: int = 0
    disk_mib: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    skills: str = ""
    network: Network = "public"
    health: HealthCheck | None = None
    mcp_servers: tuple[McpServer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What is said of the agent. timeout_s: None for no limit. network: None for the machine's."""

    timeout_s: float | None = None
    user: str = ""
    network: Network | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """What is said of the tests. separate: None where the file does not say. machine: of a separate container.

    mode: which of `MODES` decides, by our own key `agentgym_mode`; empty where the file does not say. most: the
    greatest reward that is allowed, by our own key `agentgym_most_reward`."""

    timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    network: Network | None = None
    separate: bool | None = None
    machine: Machine | None = None
    collect: tuple[Hook, ...] = ()
    mode: str = ""
    most: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of several instructions that are done in the same container. least: by reward, what the next step needs."""

    name: str
    agent: Agent
    verifier: Verifier
    least: Mapping[str, float] = field(default_factory=dict)
    health: HealthCheck | None = None
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """A task.toml. unknown: dotted names of keys that have no meaning here."""

    name: str = ""
    category: str = ""
    difficulty: str = ""
    agent: Agent
    verifier: Verifier
    machine: Machine
    solution_env: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    steps: tuple[Step, ...] = ()
    strategy: str = "mean"
    unknown: tuple[str, ...] = ()


def parse_task(text: str) -> TaskConfig:
    """Raises UserError that names the key which is wrong or not supported."""
    try:
        top = Table(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"it is not valid TOML: {error}") from error
    name = _package(top.table("task"))
    top.text("schema_version"), top.text("version"), top.text("source")
    metadata = top.table("metadata") or Table({})
    described = {key: value for key in ("category", "difficulty") if isinstance(value := metadata.free(key), str)}
    solution = top.table("solution") or Table({}, "solution", top.unknown)
    config = TaskConfig(
        name=name,
        agent=_agent(top.table("agent")),
        verifier=_verifier(top.table("verifier")),
        machine=_machine(top.table("environment") or Table({}, "environment")),
        solution_env=solution.pairs("env"),
        artifacts=_artifacts(top.tables("artifacts")),
        steps=_steps(top.tables("steps")),
        strategy=top.choice("multi_step_reward_strategy", ("mean", "final"), "mean"),
        unknown=(),
        **described,
    )
    solution.done()
    top.done()
    object.__setattr__(config, "unknown", tuple(top.unknown))
    return config


def _package(table: Table | None) -> str:
    if table is None:
        return ""
    name = table.needed("name")
    if not _NAME.fullmatch(name) or ".." in name:
        raise table.refuse("name", "give ORGANISATION/NAME of letters, digits, hyphens, underscores and dots")
    if table.has("version") and not table.text("version"):
        raise table.refuse("version", "give a text that is not empty")
    table.text("description"), table.texts("keywords")
    for author in table.tables("authors"):
        author.needed("name"), author.text("email")
        author.done()
    table.done()
    return name


def _agent(table: Table | None) -> Agent:
    if table is None:
        return Agent()
    timeout = table.number("timeout_sec", 1.0, least=0.001) if table.has("timeout_sec") else None
    agent = Agent(timeout_s=timeout, user=table.user("user"), network=read_network(table))
    table.done()
    return agent


def _verifier(table: Table | None) -> Verifier:
    if table is None:
        return Verifier()
    machine = table.table("environment")
    mode = table.choice("environment_mode", ("shared", "separate"), "")
    if mode == "shared" and machine is not None:
        raise table.refuse("environment_mode", f"leave it out, or leave {table.name('environment')} out")
    verifier = Verifier(
        timeout_s=table.number("timeout_sec", 600.0, least=0.001),
        env=table.pairs("env"),
        user=table.user("user"),
        network=read_network(table),
        separate=mode == "separate" if mode else (True if machine is not None else None),
        machine=None if machine is None else _machine(machine),
        collect=tuple(map(_hook, table.tables("collect"))),
        mode=table.choice("agentgym_mode", MODES, ""),
        most=table.number("agentgym_most_reward", 1.0, least=0.0),
    )
    table.done()
    return verifier


def _hook(table: Table) -> Hook:
    _only_main(table)
    hook = Hook(
        command=table.needed("command"),
        timeout_s=table.number("timeout_sec", 60.0, least=0.001),
        user=table.user("user"),
    )
    table.done()
    return hook


def _machine(table: Table) -> Machine:
    if table.text("os", "linux").lower() != "linux":
        raise table.refuse("os", "containers here are Linux; leave the task out")
    for key in ("tpu", "gpu_types"):
        if table.free(key):
            raise table.refuse(key, "containers here have no accelerators; leave the task out")
    if table.whole("gpus", 0):
        raise table.refuse("gpus", "containers here have no accelerators; leave the task out")
    internet, network = table.boolean("allow_internet"), read_network(table)
    if network is None:
        network = () if internet is False else "public"
    machine = Machine(
        image=table.text("docker_image"),
        build_timeout_s=table.number("build_timeout_sec", 600.0, least=0.001),
        cpus=table.number("cpus", 0.0, least=0.0),
        memory_mib=_size(table, "memory_mb", "memory"),
        disk_mib=_size(table, "storage_mb", "storage"),
        env=table.pairs("env"),
        workdir=table.text("workdir"),
        skills=table.text("skills_dir"),
        network=network,
        health=_health(table.table("healthcheck")),
        mcp_servers=tuple(map(_mcp_server, table.tables("mcp_servers"))),
    )
    if machine.workdir and not machine.workdir.startswith("/"):
        raise table.refuse("workdir", "give an absolute path")
    table.done()
    return machine


def _size(table: Table, key: str, old: str) -> int:
    """In MiB. old: the key of earlier versions, as `2G`, `512M` or `4096K`."""
    given = table.whole(key, 0)
    if not table.has(old):
        return given
    text = table.text(old).strip().upper()
    scale = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}.get(text[-1:])
    try:
        if scale is None:
            raise ValueError
        size = int(float(text[:-1]) * scale)
    except (ValueError, OverflowError):
        raise table.refuse(old, "give a size such as '2G' or '512M'") from None
    if size < 0 or (table.has(key) and given != size):
        raise table.refuse(old, f"{table.name(key)} says {given}; leave one of the two out")
    return size


def _health(table: Table | None) -> HealthCheck | None:
    if table is None:
        return None
    health = HealthCheck(
        command=table.needed("command"),
        interval_s=table.number("interval_sec", 5.0, least=0.0),
        timeout_s=table.number("timeout_sec", 30.0, least=0.001),
        start_period_s=table.number("start_period_sec", 0.0, least=0.0),
        start_interval_s=table.number("start_interval_sec", 5.0, least=0.0),
        retries=table.whole("retries", 3),
    )
    table.done()
    return health


def _mcp_server(table: Table) -> McpServer:
    transport = table.choice("transport", ("sse", "streamable-http", "http", "stdio"), "sse")
    server = McpServer(
        name=table.needed("name"),
        transport="streamable-http" if transport == "http" else transport,
        url=table.text("url"),
        command=table.text("command"),
        args=table.texts("args"),
    )
    needed = "command" if server.transport == "stdio" else "url"
    if not getattr(server, needed):
        raise UserError(f"{table.where} has no {needed!r}, which transport {server.transport!r} needs")
    if table.pairs("headers"):
        raise table.refuse("headers", "headers of MCP servers are not supported; leave the task out")
    table.done()
    return server


def _artifacts(tables: Iterable[Table]) -> tuple[Artifact, ...]:
    found = []
    for table in tables:
        _only_main(table)
        source, to = table.needed("source"), table.text("destination")
        if ".." in PurePosixPath(source).parts:
            raise table.refuse("source", "give a path without '..'")
        parts = PurePosixPath(to).parts
        if to and (not parts or "\\" in to or to.startswith("/") or ".." in parts or to.rstrip("/") == "manifest.json"):
            raise table.refuse("destination", "give a relative path without '..', and not manifest.json")
        found.append(Artifact(source=source, exclude=table.texts("exclude")))
        table.done()
    return tuple(found)


def _only_main(table: Table) -> None:
    if table.text("service", "main").strip() != "main":
        raise table.refuse("service", "tasks of several containers are not supported; leave the task out")


def _steps(tables: Iterable[Table]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for table in tables:
        name = table.needed("name")
        is_bad = not name.strip() or name in (".", "..") or name.endswith((".", " ")) or _NO_FOLDER.search(name)
        if is_bad or _DEVICE.fullmatch(name.partition(".")[0].rstrip(" ")) or len(name.encode()) > 255:
            raise table.refuse("name", "give a name that a folder can have on every system")
        if any(_folded(one.name) == _folded(name) for one in steps):
            raise table.refuse("name", "another step has it, or one that differs by its case only")
        steps.append(
            Step(
                name=name,
                agent=_agent(table.table("agent")),
                verifier=_verifier(table.table("verifier")),
                least=_least(table),
                health=_health(table.table("healthcheck")),
                artifacts=_artifacts(table.tables("artifacts")),
            )
        )
        table.done()
    return tuple(steps)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _least(table: Table) -> dict[str, float]:
    given = table.free("min_reward")
    if given is None:
        return {}
    if not isinstance(given, dict):
        return {"reward": table.number("min_reward", 0.0)}
    inner = Table(given, table.name("min_reward"))
    return {key: inner.number(key, 0.0) for key in given}
