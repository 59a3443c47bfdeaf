"""The hostile programs again, as commands of a container of profile `task`, where they are root."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from agentgym.sandbox import Limits, RunResult, SandboxBackend
from agentgym.types import SandboxSpec
from agentgym_sandboxes.audit.findings import Category, Judgement, Outcome
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs import (
    clock,
    floods,
    kernel_state,
    network,
    surface_files,
    surface_kernel,
    task_scenes,
)
from agentgym_sandboxes.audit.programs.checks import refused
from agentgym_sandboxes.audit.programs.processes import SNIPPETS as PROCESSES
from agentgym_sandboxes.audit.trial import Claim, Snippet, Trial

SPEC = SandboxSpec(session=True, profile="task")
PREFIX = "task_"

_MACHINE = "the machine is the task's: its root, its user's rights and its files"
_FILTER = "the filter of system calls is the engine's own"
_UID = "calls have no uid of their own"
NOT_PROMISED: dict[str, str] = {
    **dict.fromkeys(
        ("secrets_of_the_image", "process_one", "devices", "read_only_root", "shared_programs", "control_groups",
         "own_setuid_file", "other_users", "no_rights", "other_root", "raw_packets", "memory_of_the_machine"),
        _MACHINE,
    ),
    **dict.fromkeys(
        ("io_uring", "debugging", "secret_memory", "rarely_used_calls", "segment_tables", "calls_of_32_bits",
         "sockets_to_the_kernel", "other_socket_families", "flow_labels", "socket_programs", "upper_halves",
         "odd_protocols", "wait_for_disks", "huge_pages"),
        _FILTER,
    ),
    "waiting_connections": _UID,
}  # fmt: skip
"""Programs that get through by design; `verify` lists them with the reason."""


@dataclass(frozen=True, slots=True)
class InTask:
    """A program of the suite, in a task's container."""

    snippet: Snippet
    claim: Claim = "any_image"

    @property
    def name(self) -> str:
        return PREFIX + self.snippet.name

    @property
    def category(self) -> Category:
        return self.snippet.category

    @property
    def tries(self) -> str:
        return f"as root of a task's container: {self.snippet.tries}"

    async def attempt(self, backend: SandboxBackend, host: Host) -> Judgement:
        if self.snippet.name in NOT_PROMISED:
            return Judgement(Outcome.NOT_CLAIMED, f"with profile 'task', {NOT_PROMISED[self.snippet.name]}")
        return await self.snippet.attempt(cast(SandboxBackend, _Commands(backend)), host)


class _Commands:
    """Runs each program as a command of a task's container of its own, which must still work afterwards."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend

    async def run(self, code: str, *, stdin: str, limits: Limits) -> RunResult:
        async with self._backend.session_for(SPEC) as session:
            result = await session.exec(["python3", "-s", "-c", code], stdin=stdin, limits=limits)
            await session.exec("true")  # raises SandboxLost where its agent did not survive
            return result


_OWN = (
    Snippet("host_disks", "opens the disks of the host by device files that it makes", refused(1), """
        import stat
        for line in open("/proc/partitions").read().splitlines()[2:]:
            major, minor, _, name = line.split()
            os.mknod("/" + name, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
            attempt(name, lambda: os.open("/" + name, os.O_RDONLY))
        attempt("/dev/kmsg", lambda: os.open("/dev/kmsg", os.O_RDWR))
    """, category=Category.SURFACE),
    Snippet("agent", "reads and debugs the agent, and has the kernel end it first when memory ends", refused(10), """
        for pid in (1, os.getppid()):
            for name in ("mem", "environ", "maps"):
                attempt(name, lambda: open("/proc/%d/%s" % (pid, name), "rb").read(10))
            call("PTRACE_ATTACH", (101, 117), 16, pid, 0, 0)
        for path in ("/proc/1/oom_score_adj", "/.agentgym/ld.so"):
            attempt(path, lambda: os.close(os.open(path, os.O_WRONLY)))
    """, category=Category.OUTLIVING),
    Snippet("all_processes", "kills every process that it can, again and again", lambda result: Judgement(
        Outcome.CONTAINED, f"exit {result.exit_code}, and the agent lives"), """
        for _ in range(100):
            os.kill(-1, 9)
    """, category=Category.OUTLIVING),
)  # fmt: skip
_MODULES = (floods, clock, surface_files, surface_kernel, kernel_state, network)
_AGAIN = [trial for module in _MODULES for trial in module.SNIPPETS if isinstance(trial, Snippet)]
_BOMB = [trial for trial in PROCESSES if isinstance(trial, Snippet) and trial.name == "fork_bomb"]

TRIALS: tuple[Trial, ...] = (
    *(InTask(snippet) for snippet in (*_OWN, *_BOMB, *_AGAIN)),
    *(replace(scene, name=PREFIX + scene.name) for scene in task_scenes.SCENES),
)
