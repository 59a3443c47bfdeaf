"""The environment: an agent changes a repository in its container, and its patch is tested in another one."""

from __future__ import annotations

import hashlib
import logging
import posixpath
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Final

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError, nearest
from agentgym.rewards import reward
from agentgym.sandbox import Sandbox
from agentgym.types import Episode, Json, Message, SandboxSpec, Split, Task
from agentgym_envs.harbor.datasets import check_broken
from agentgym_envs.harbor.origin import Origin, limits_of
from agentgym_envs.harbor.pins import Pins, Shown
from agentgym_envs.harbor.shell import Work
from agentgym_envs.swe.history import PATHS, prepare
from agentgym_envs.swe.judging import judge, judge_patch
from agentgym_envs.swe.rows import Instance, read_instance, read_rows

log = logging.getLogger(__name__)

SYSTEM: Final = (
    "You work on a git repository in a Linux container by calling tools. Resolve the issue by changing the code, not "
    "the tests. When it is done, say so without calling a tool: tests that you do not see are then run on your changes."
)
DONE: Final = "It is done."
CONTAINERS_S: Final = 1800.0  # that building and starting containers, and moving files, may take for a verdict
KEPT: Final = 100_000  # characters of a patch that the episode's record has


class Swe(Environment[Work]):
    """Issues of real repositories, as rows of SWE-bench and of the data sets that followed it.

    The agent has a shell in the row's image, whose git history ends at the base commit. What it changed is applied as a
    patch in a second container, where the row's tests are put and run: FAIL_TO_PASS and PASS_TO_PASS decide.
    Recorded in `info`: success, fail_to_pass and pass_to_pass (the shares that pass), why (the first test that is not
    as it has to be), patch, flags (as changes that did not count), tests (the log's end).
    """

    name: ClassVar[str] = "swe"
    max_turns: ClassVar[int] = 50
    shorthand: ClassVar[str] = "path"
    requirements: ClassVar[str] = "the sandbox docker, a file of rows, and the images that they name"
    tools: ClassVar[type] = Work

    def __init__(
        self,
        *,
        path: Annotated[str, "rows, as .jsonl, .json or .parquet; or a data set's name on the Hugging Face hub"] = "",
        rows_split: Annotated[str, "which split of a data set on the hub"] = "test",
        tasks: Annotated[Sequence[str], "instance_ids to play, with * and ?; empty plays all"] = (),
        image: Annotated[
            str, "the image, in place of the row's: {instance_id} stands for the id in small letters"
        ] = "",
        test_cmd: Annotated[str, "runs the tests, in place of the row's command; the test files are appended"] = "",
        log_parser: Annotated[str, "pytest or unittest, in place of the row's parser"] = "",
        test_share: Annotated[float, "the share of rows that is held out of training, by a hash of the id"] = 1.0,
        skip_broken: Annotated[bool, "leave out, and count, rows that can't be played, instead of ending"] = False,
        oracle: Annotated[bool, "play each row's solution once, before the first verdict on it is given"] = True,
        network: Annotated[bool, "let containers reach the internet, where the solution may be found, too"] = False,
        memory_mib: Annotated[int, "memory of a container"] = 4096,
        cpus: Annotated[float, "cores of a container; 0 takes the recipe's"] = 0.0,
        command_s: Annotated[float, "seconds that one command of the agent may take"] = 300.0,
        tests_s: Annotated[float, "seconds that a run of the tests may take"] = 1800.0,
        max_turns: Annotated[int, "turns of the agent at most"] = 50,
    ) -> None:
        """Raises UserError for a value that is not allowed, and for rows that can't be played."""
        if not 0 < test_share <= 1 or memory_mib < 64 or command_s <= 0 or tests_s <= 0 or max_turns < 1 or cpus < 0:
            raise UserError(
                f"swe: test_share {test_share}, memory_mib {memory_mib}, cpus {cpus}, command_s {command_s}, tests_s "
                f"{tests_s} and max_turns {max_turns}: test_share is above 0 and at most 1, memory_mib at least 64, "
                "cpus 0 or more, the others above 0"
            )
        if not path:
            raise UserError("swe: name a file of rows: --env.options.path rows.jsonl")
        rows = read_rows(path, split=rows_split)
        self._instances, self.broken = _read(
            path, rows, tasks, skip_broken, image=image, command=test_cmd, log_parser=log_parser
        )
        self._specs = {
            name: SandboxSpec(
                session=True,
                profile="task",
                image=one.image,
                user="root",
                workdir=one.work,
                memory_mib=memory_mib,
                cpus=cpus,
                network="public" if network else (),
            )
            for name, one in self._instances.items()
        }
        self._test_share, self._plays_oracle, self._skip_broken = test_share, oracle, skip_broken
        self._command_s, self._tests_s = command_s, tests_s
        self._pins = Pins[Instance]("swe", self._play)
        self.max_turns = max_turns  # type: ignore[misc]
        if test_share == 1.0:
            self.splits = ("test",)
        self.call_timeout_s = command_s + 60.0
        self.grade_timeout_s = CONTAINERS_S + 4 * tests_s

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Those of the rows; `train` in an order of the seed. What its own solution does not resolve is left out."""
        if split not in self.splits:
            raise UserError(
                "swe: all rows are held out; to train, give the share of them that is not trained on: "
                "--env.options.test_share 0.2"
            )
        names = [name for name in sorted(self._instances) if self._is_test(name) == (split == "test")]
        if split == "train":
            random.Random(seed).shuffle(names)
        if not names:
            raise UserError(
                f"swe: {split} has none of the {len(self._instances)} rows with test_share {self._test_share:g}; "
                "give another share, or more rows"
            )
        for name in names:
            one = self._instances[name]
            if not self._pins.fault(one):
                yield Task(
                    task_id=name,
                    prompt=({"role": "system", "content": SYSTEM}, {"role": "user", "content": _asked(one)}),
                    answer={"row": one.pin},
                    sandbox=self._specs[name],
                    split=split,
                    category=one.repo,
                )

    def split_note(self, split: Split) -> str:
        faults = {name: fault for name, one in self._instances.items() if (fault := self._pins.fault(one))}
        left_out = {**self.broken, **faults}
        if not left_out:
            return ""
        shown = "; ".join(f"{name}: {fault.splitlines()[0]}" for name, fault in sorted(left_out.items())[:5])
        return f"{len(left_out)} of {len(self._instances) + len(self.broken)} rows are left out: {shown}"

    def leave_out(self, faults: Mapping[str, str]) -> None:
        left = {name: one for name, one in self._instances.items() if name not in faults}
        check_broken("swe", "rows", faults, len(self._instances), go_on=self._skip_broken and bool(left))
        self._instances, self.broken = left, {**self.broken, **faults}

    async def start(self, context: EpisodeContext[Work]) -> Work:
        one = self._instance_of(context.task)
        context.info.update(success=False, flags=[])
        if fault := self._pins.fault(one):
            raise InfraError(f"{one.name} can't be scored: {fault}")
        assert context.session is not None
        machine = context.session.machine
        asked = await machine.exec('echo "$PATH"; bash -c : && echo bash', limits=limits_of(60.0))
        path, *shell = asked.stdout.splitlines() or [""]
        await prepare(machine, one, cut=True)
        origin = Origin(work=one.work, path=(), shell="bash" if shell else "sh")
        found = ":".join([*(posixpath.join(one.work, folder) for folder in PATHS), path])
        return Work(machine, origin, command_s=self._command_s, env={"PATH": found})

    async def reply(self, context: EpisodeContext[Work]) -> Reply:
        """The agent calls its work done."""
        return Reply(done=True)

    async def grade(self, context: EpisodeContext[Work]) -> None:
        one, sandbox, info = self._instance_of(context.task), context.sandbox, context.info
        assert sandbox is not None
        shown = None
        if self._plays_oracle and one.has_oracle:
            [shown] = await self._pins.find(sandbox, one)
            if fault := self._pins.fault(one):
                raise InfraError(f"{one.name} can't be scored: {fault}")
        spec = self._specs[one.name]
        judged = await judge(sandbox, spec, one, context.state._machine, timeout_s=self._tests_s)
        flags = judged.flags
        if judged.fault:
            idle = await judge_patch(sandbox, spec, one, gold=False, timeout_s=self._tests_s)
            if idle.fault and not (shown is not None and shown.idle):
                info["unsupported"] = True
                log.warning("%s: its tests are broken without any agent, too: %s", one.name, idle.fault)
                return
            flags.append(judged.fault)
        found = judged.graded
        info.update(
            success=found.resolved,
            reward=float(found.resolved),
            fail_to_pass=found.passed,
            pass_to_pass=found.stayed,
            why=found.why,
            patch=judged.patch[:KEPT],
            flags=list[Json](flags),
            tests=judged.output,
            measures={"flagged": float(bool(flags))},
        )

    @reward(weight=1.0, inline=True)
    def verdict(self, episode: Episode) -> float | None:
        """1 where all of FAIL_TO_PASS and PASS_TO_PASS are as they have to be."""
        given = episode.info.get("reward")
        return float(given) if isinstance(given, int | float) else None

    def solve(self, task: Task) -> Generator[Message, tuple[Message, ...], None]:
        """The row's own patch, applied by a command of the agent."""
        one = self._instance_of(task)
        if not one.has_oracle:
            raise UserError(f"swe: row {one.name} has no patch, so there is no solution of it")
        patch, end = one.patch or one.bug, "END_OF_PATCH"
        while end in patch:
            end += "_"
        how = "git apply --whitespace=nowarn" + (" -R" if one.bug else "")
        function: dict[str, Json] = {"name": "bash", "arguments": {"command": f"{how} <<'{end}'\n{patch}\n{end}"}}
        call: dict[str, Any] = {"type": "function", "id": "call_0", "function": function}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "assistant", "content": DONE}

    async def _play(self, sandbox: Sandbox, one: Instance) -> tuple[Shown, ...]:
        """What the row's solution, and nothing, earn."""
        spec, fault = self._specs[one.name], ""
        gold = await judge_patch(sandbox, spec, one, gold=True, timeout_s=self._tests_s)
        idle = await judge_patch(sandbox, spec, one, gold=False, timeout_s=self._tests_s)
        if not gold.graded.resolved:
            fault = f"its own patch does not resolve it: {gold.graded.why}; the log ends: {gold.output[-200:]!r}"
        elif idle.graded.resolved:
            fault = "doing nothing resolves it"
        return (
            Shown(
                oracle=float(gold.graded.resolved),
                nothing=float(idle.graded.resolved),
                fault=fault[:600],
                idle=idle.fault,
            ),
        )

    def _instance_of(self, task: Task) -> Instance:
        found = self._instances.get(task.task_id)
        if found is None:
            raise UserError(f"swe: there is no row {task.task_id!r}.{nearest(task.task_id, self._instances)}")
        return found

    def _is_test(self, name: str) -> bool:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return number < self._test_share * 2**64


def _asked(one: Instance) -> str:
    return f"The repository {one.repo} is in {one.work}. Resolve this issue:\n\n{one.problem.strip()}"


def _read(
    path: str, rows: Sequence[Mapping[str, object]], tasks: Sequence[str], skip_broken: bool, **given: str
) -> tuple[dict[str, Instance], dict[str, str]]:
    """The rows by their ids, and why others can't be played."""
    names = [str(row.get("instance_id") or f"row {number}") for number, row in enumerate(rows, 1)]
    for pattern in tasks:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"swe: tasks has {pattern!r}, which no row matches.{nearest(pattern, names)}")
    found: dict[str, Instance] = {}
    broken: dict[str, str] = {}
    for name, row in zip(names, rows, strict=True):
        if tasks and not any(fnmatchcase(name, pattern) for pattern in tasks):
            continue
        try:
            one = read_instance(row, **given)
            if one.name in found:
                raise UserError("another row has the same instance_id")
            found[one.name] = one
        except UserError as error:
            broken[name] = str(error)
    if not found and not broken:
        raise UserError(f"swe: {path} has no rows")
    check_broken("swe", "rows", broken, len(found) + len(broken), go_on=skip_broken and bool(found))
    return found, broken
