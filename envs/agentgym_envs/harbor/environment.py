"""The environment: an agent works in a task's own container, and what it left is judged in another one."""

from __future__ import annotations

import hashlib
import logging
import math
import random
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError, nearest
from agentgym.mcp import McpServer
from agentgym.rewards import reward
from agentgym.tools import Tools
from agentgym.types import Episode, Json, Message, SandboxSpec, Split, Task
from agentgym_envs.harbor.datasets import check_broken, chosen, task_paths
from agentgym_envs.harbor.folder import TaskFolder, read_folder, resolved
from agentgym_envs.harbor.judging import Seen, judge, untouched
from agentgym_envs.harbor.origin import begin, begin_phase, solution_commands
from agentgym_envs.harbor.pins import MOST_S, Pins, Shown, play_oracle
from agentgym_envs.harbor.rewards import score_of
from agentgym_envs.harbor.servers import Servers
from agentgym_envs.harbor.shell import Work
from agentgym_envs.harbor.task_config import MODES
from agentgym_envs.harbor.testing import Tested

log = logging.getLogger(__name__)

SYSTEM: Final = (
    "You work in a Linux container by calling tools. Do what the user asks. When it is done, say so without calling a "
    "tool: what you left in the container is then tested."
)
DONE: Final = "It is done."
CONTAINERS_S: Final = 1800.0  # that building, starting and freezing containers may take while a verdict is found


class Harbor(Environment[Work]):
    """Tasks with a container each, as folders in Harbor's format: task.toml, instruction.md, environment/, tests/.

    The agent has a shell in the task's container. The verdict is found by the task's tests in a second container, in
    which no process of the agent ever ran; which reward file counts is what the task's own oracle writes.
    Recorded in `info`: success (what the oracle earns, or the full reward), reward, rewards (by step), mode, flags
    (what was noticed, as system files that were changed and put back), verifier (why there was no valid reward), tests
    (their last words), agent_timeout.
    """

    name: ClassVar[str] = "harbor"
    max_turns: ClassVar[int] = 30
    shorthand: ClassVar[str] = "path"
    requirements: ClassVar[str] = "the sandbox docker, and a folder of tasks"
    tools: ClassVar[type] = Work

    def __init__(
        self,
        *,
        path: Annotated[
            str, "a task folder, a folder of them, a dataset.toml, or a registry.json of which the tasks are here"
        ] = "",
        dataset: Annotated[str, "NAME or NAME@VERSION, of a registry.json that has several"] = "",
        tasks: Annotated[Sequence[str], "names of folders to play, with * and ?; empty plays all"] = (),
        mode: Annotated[
            str,
            "where tests run that share the agent's container in Harbor: snapshot (a container of its files), carry (a "
            "new container with the declared artifacts, or the work folder), or live (its own, which it can forge)",
        ] = "snapshot",
        test_share: Annotated[float, "the share of tasks that is held out of training, by a hash of the name"] = 1.0,
        skip_broken: Annotated[bool, "leave out, and count, folders that can't be played, instead of ending"] = False,
        oracle: Annotated[bool, "play each task's solution once, before the first verdict on it is given"] = True,
        memory_mib: Annotated[int, "memory of a container whose task does not say"] = 2048,
        command_s: Annotated[float, "seconds that one command of the agent may take"] = 300.0,
        max_turns: Annotated[int, "turns of the agent at most"] = 30,
    ) -> None:
        """Raises UserError for a value that is not allowed, and for a folder that can't be played."""
        if mode not in MODES:
            raise UserError(f"harbor: no mode {mode!r}.{nearest(mode, MODES)}")
        if not 0 < test_share <= 1 or memory_mib < 64 or command_s <= 0 or max_turns < 1:
            raise UserError(
                f"harbor: test_share {test_share}, memory_mib {memory_mib}, command_s {command_s} and max_turns "
                f"{max_turns}: test_share is above 0 and at most 1, memory_mib at least 64, the others above 0"
            )
        if not path:
            raise UserError("harbor: name a folder of tasks: --env.options.path FOLDER")
        self._folders, self.broken = _read(path, dataset, tasks, mode, memory_mib, skip_broken)
        if any(task.config.machine.mcp_servers for task in self._folders.values()):
            McpServer.stdio("true")  # not started: that the packages for it are there
        self._test_share, self._skip_broken = test_share, skip_broken
        self._plays_oracle = oracle
        self._command_s = command_s
        self._pins = Pins[TaskFolder]("harbor", play_oracle)
        self.max_turns = max_turns  # type: ignore[misc]
        if test_share == 1.0:
            self.splits = ("test",)
        phases = [phase for task in self._folders.values() for phase in task.phases]
        longest_s = max(phase.verifier.timeout_s for phase in phases)
        solving_s = max(phase.agent.timeout_s or MOST_S for phase in phases)
        most_steps = max(len(task.phases) for task in self._folders.values())
        self.grade_timeout_s = CONTAINERS_S + most_steps * (2 * longest_s + (solving_s + 2 * longest_s) * oracle)
        self.call_timeout_s = command_s + 60.0 if most_steps == 1 else self.grade_timeout_s
        self.reward_ranges = {"verdict": (0.0, max(phase.verifier.most for phase in phases))}

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Those of the folder; `train` in an order of the seed. What its oracle does not solve is left out."""
        if split not in self.splits:
            raise UserError(
                "harbor: all tasks are held out; to train, give the share of them that is not trained on: "
                "--env.options.test_share 0.2"
            )
        names = [name for name in sorted(self._folders) if self._is_test(name) == (split == "test")]
        if split == "train":
            random.Random(seed).shuffle(names)
        if not names:
            raise UserError(
                f"harbor: {split} has none of the {len(self._folders)} tasks with test_share {self._test_share:g}; "
                "give another share, or more tasks"
            )
        for name in names:
            task = self._folders[name]
            if not self._pins.fault(task):
                yield Task(
                    task_id=name,
                    prompt=(
                        {"role": "system", "content": SYSTEM},
                        {"role": "user", "content": task.phases[0].instruction},
                    ),
                    answer={"folder": task.digest},
                    sandbox=task.spec,
                    split=split,
                    category=task.config.category,
                )

    def split_note(self, split: Split) -> str:
        faults = {name: fault for name, task in self._folders.items() if (fault := self._pins.fault(task))}
        left_out = {**self.broken, **faults}
        if not left_out:
            return ""
        shown = "; ".join(f"{name}: {fault.splitlines()[0]}" for name, fault in sorted(left_out.items())[:5])
        return f"{len(left_out)} of {len(self._folders) + len(self.broken)} tasks are left out: {shown}"

    def specs(self, task: Task) -> tuple[SandboxSpec, ...]:
        folder = self._folder_of(task)
        return (folder.spec, *(phase.judge for phase in folder.phases if phase.judge is not None))

    def leave_out(self, faults: Mapping[str, str]) -> None:
        left = {name: folder for name, folder in self._folders.items() if name not in faults}
        check_broken("harbor", "tasks", faults, len(self._folders), go_on=self._skip_broken and bool(left))
        self._folders, self.broken = left, {**self.broken, **faults}

    async def start(self, context: EpisodeContext[Work]) -> Work:
        task = self._folder_of(context.task)
        modes = sorted({phase.mode for phase in task.phases})
        context.info.update(success=False, reward=0.0, rewards={}, mode=", ".join(modes), flags=[], agent_timeout=False)
        if fault := self._pins.fault(task):
            raise InfraError(f"{task.name} can't be scored: {fault}")
        assert context.session is not None
        origin = await begin(context.session, task)
        work = Work(context.session.machine, origin, command_s=self._command_s)
        await self._begin_phase(work, task)
        if task.config.machine.mcp_servers:
            work._servers = await Servers.start(context.session.machine, task, task.phases[0], origin, work)
        return work

    async def toolbox(self, context: EpisodeContext[Work]) -> Tools | None:
        """The shell, and the tools of the task's MCP servers."""
        shell, servers = await super().toolbox(context), context.state._servers
        return shell if servers is None or shell is None else servers.beside(shell)

    async def finish(self, context: EpisodeContext[Work]) -> None:
        if context.state is not None and context.state._servers is not None:
            await context.state._servers.close()

    async def reply(self, context: EpisodeContext[Work]) -> Reply:
        """The agent calls its work done: the next step follows, if there is one."""
        work, task = context.state, self._folder_of(context.task)
        if work._step + 1 == len(task.phases):
            return Reply(done=True)
        return await self._next_step(context, work, task)

    async def after_calls(self, context: EpisodeContext[Work]) -> Reply:
        work, task = context.state, self._folder_of(context.task)
        if time.monotonic() < work._until_s:
            return Reply()
        context.info["agent_timeout"] = True
        if work._step + 1 == len(task.phases):
            return Reply(done=True)
        return await self._next_step(context, work, task)

    async def grade(self, context: EpisodeContext[Work]) -> None:
        work, task = context.state, self._folder_of(context.task)
        if work._judged == work._step:
            await self._judge(context, work, task)
        if "reward" not in context.info:  # a step's tests are broken
            return
        goals = [one.oracle for one in await self._shown(context, task)]
        means = _combined(work._rewards, task.config.strategy)
        score = score_of(means) if means else 0.0
        context.info["reward"] = score
        goal = min([1.0, *(one for one in goals if one is not None)]) if len(task.phases) == 1 else 1.0
        context.info["success"] = len(work._rewards) == len(task.phases) and score >= goal - 1e-9
        context.info["measures"] = {"flagged": float(bool(context.info["flags"]))}

    @reward(weight=1.0, inline=True)
    def verdict(self, episode: Episode) -> float | None:
        """What the tests gave."""
        given = episode.info.get("reward")
        return float(given) if isinstance(given, int | float) else None

    def solve(self, task: Task) -> Generator[Message, tuple[Message, ...], None]:
        """The oracle's script, as commands of the agent."""
        folder = self._folder_of(task)
        env = resolved(folder.config.solution_env, "solution.env")
        for phase in folder.phases:
            if phase.solution is None:
                raise UserError(f"harbor: {folder.name} has no solution/solve.sh, so there is no oracle of it")
            for number, command in enumerate(solution_commands(phase.solution, env)):
                function: dict[str, Json] = {"name": "bash", "arguments": {"command": command}}
                call: dict[str, Any] = {"type": "function", "id": f"call_{number}", "function": function}
                yield {"role": "assistant", "content": "", "tool_calls": [call]}
            yield {"role": "assistant", "content": DONE}

    async def _begin_phase(self, work: Work, task: TaskFolder) -> None:
        phase = task.phases[work._step]
        await begin_phase(work._machine, task, phase, work._origin)
        work._user = phase.agent.user
        work._until_s = math.inf if phase.agent.timeout_s is None else time.monotonic() + phase.agent.timeout_s

    async def _next_step(self, context: EpisodeContext[Work], work: Work, task: TaskFolder) -> Reply:
        phase = task.phases[work._step]
        rewards = await self._judge(context, work, task)
        if any(rewards.get(name, -math.inf) < least for name, least in phase.least.items()):
            return Reply(done=True)
        if work._servers is not None:
            await work._servers.close()  # they ended with the step's other processes; the next call starts them
        work._step += 1
        await self._begin_phase(work, task)
        return Reply(messages=({"role": "user", "content": task.phases[work._step].instruction},))

    async def _judge(self, context: EpisodeContext[Work], work: Work, task: TaskFolder) -> Mapping[str, float]:
        """Judge the step that ends, and record it. Raises InfraError where the oracle does not solve the task."""
        phase, sandbox, info = task.phases[work._step], context.sandbox, context.info
        assert sandbox is not None
        shown = await self._shown(context, task)
        one = shown[work._step] if shown else None
        judged = await judge(sandbox, work._machine, task, phase, origin=work._origin, seen=one.seen if one else Seen())
        work._judged += 1
        tested, flags = judged.tested, info["flags"]
        assert isinstance(flags, list)
        flags += [flag for flag in judged.flags if flag not in flags]
        info["tests"] = tested.output
        rewards = tested.rewards
        if rewards is None:
            info["verifier"] = f"{tested.fault}: {tested.detail}"
            idle = await untouched(sandbox, task, phase, work._origin)
            if not _is_as_before(idle, one):
                info["unsupported"] = True
                del info["reward"], info["success"]
                log.warning("%s: its tests are broken without any agent, too: %s", task.name, idle.detail)
                return {}
            flags.append(f"no valid reward: {tested.fault}")
            rewards = {"reward": 0.0}
        work._rewards.append(rewards)
        info["rewards"] = {one.name or "task": dict(got) for one, got in zip(task.phases, work._rewards, strict=False)}
        return rewards

    async def _shown(self, context: EpisodeContext[Work], task: TaskFolder) -> tuple[Shown, ...]:
        """What the oracle showed; empty where there is none. Raises InfraError where it does not solve the task."""
        if not (self._plays_oracle and task.has_oracle):
            return ()
        assert context.sandbox is not None
        shown = await self._pins.find(context.sandbox, task)
        if fault := self._pins.fault(task):
            raise InfraError(f"{task.name} can't be scored: {fault}")
        return shown

    def _folder_of(self, task: Task) -> TaskFolder:
        found = self._folders.get(task.task_id)
        if found is None:
            raise UserError(f"harbor: no task {task.task_id!r} in the folder.{nearest(task.task_id, self._folders)}")
        return found

    def _is_test(self, name: str) -> bool:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return number < self._test_share * 2**64


def _read(
    path: str, dataset: str, tasks: Sequence[str], mode: str, memory_mib: int, skip_broken: bool
) -> tuple[dict[str, TaskFolder], dict[str, str]]:
    """The folders by the tasks' names, and why others are broken, by folder."""
    found: dict[str, TaskFolder] = {}
    broken: dict[str, str] = {}
    paths = chosen(task_paths(Path(path), dataset=dataset), tasks)
    for one in paths:
        try:
            folder = read_folder(one, mode=mode, memory_mib=memory_mib)
            if folder.name in found:
                raise UserError(f"{one}: task {folder.name!r} is in {found[folder.name].path}, too; names differ")
            found[folder.name] = folder
        except UserError as error:
            broken[one.name] = str(error)
    check_broken("harbor", "tasks", broken, len(paths), go_on=skip_broken and bool(found))
    for task in found.values():
        if task.config.unknown:
            log.warning("%s: keys without a meaning here: %s", task.path, ", ".join(task.config.unknown))
    return found, broken


def _is_as_before(idle: Tested, shown: Shown | None) -> bool:
    """Whether the tests work where no agent was: they give a reward, or fail as they did beside the oracle."""
    return idle.rewards is not None or (shown is not None and idle.fault == shown.idle)


def _combined(by_step: Sequence[Mapping[str, float]], strategy: str) -> dict[str, float]:
    """The reward of several steps: the mean by name, where a missing one counts zero, or the last step's."""
    if not by_step:
        return {}
    if strategy == "final" or len(by_step) == 1:
        return dict(by_step[-1])
    names = {name for one in by_step for name in one}
    return {name: math.fsum(one.get(name, 0.0) for one in by_step) / len(by_step) for name in sorted(names)}
