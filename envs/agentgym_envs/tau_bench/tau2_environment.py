"""The environment of tau2-bench: as that of tau-bench, with the second benchmark's tasks, worlds and checks."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, cast, get_args

from agentgym.env import Benchmark, Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest
from agentgym.tools import Tools
from agentgym.types import Message, Split, Task
from agentgym_envs.benchmarks.functions import FunctionTools, call_message
from agentgym_envs.benchmarks.package import BenchmarkPackage, in_order
from agentgym_envs.tau_bench.environment import REQUEST, RULES
from agentgym_envs.tau_bench.tau2_domain import SOLO, Tau2Case, Tau2Domain, Tau2DomainName, Tau2World, failed_checks

_SOLO_RULES: Final = "\nA message without a tool call ends the work on this ticket: write it when all is done.\n"


class Tau2BenchEnvironment(Environment[Tau2World]):
    """tau2-bench airline, retail and telecom, with a scripted customer whose first message is the whole request.

    In telecom the agent works on a ticket and has the customer's tools too, as in the package's solo mode. An episode
    succeeds when all that the task's reward basis names is met, but for what a judge (NL_ASSERTION) would say. Where
    silence would meet it, what the right calls replied must be among what the agent's calls replied. Recorded in
    `info`: success, failed (the parts of the basis that are not met), for_a_judge (bool).
    """

    name: ClassVar[str] = "tau2_bench"
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 100
    benchmarks: ClassVar[Mapping[str, Benchmark]] = {
        f"tau2_bench_{domain}": Benchmark(
            tasks=tasks,
            source="git sierra-research/tau2-bench",
            licence="MIT",
            options={"domain": domain, "base": True, "unverifiable": True},
        )
        for domain, tasks in (("airline", 50), ("retail", 114), ("telecom", 114))
    }
    requirements: ClassVar[str] = (
        "git clone https://github.com/sierra-research/tau2-bench, and give its folder as `path`; pip install pydantic "
        "loguru deepdiff docstring-parser python-dotenv toml pyyaml pandas (tau2 on PyPI is another package)"
    )

    def __init__(
        self,
        *,
        domain: Annotated[Tau2DomainName, "airline, retail or telecom"] = "retail",
        path: Annotated[str | None, "folder of the repository, or of the package tau2; null: installed"] = None,
        base: Annotated[
            bool, "the test split is the whole official set, which leaderboards play; there is no train split then"
        ] = False,
        unverifiable: Annotated[bool, "keep tasks without any right call, in which silence succeeds"] = False,
    ) -> None:
        """Raises UserError for an unknown domain, and when the package is missing."""
        if domain not in get_args(Tau2DomainName):
            raise UserError(f"tau2_bench: no domain {domain!r}.{nearest(domain, get_args(Tau2DomainName))}")
        self._domain_name, self._base, self._unverifiable = domain, base, unverifiable
        self.splits = ("test",) if base else ("train", "test")
        self._package = BenchmarkPackage.find("tau2", path, environment=self.name, requirements=self.requirements)

    @functools.cached_property
    def data_hash(self) -> str:
        """SHA-256 of the domain's data and tasks."""
        return self._domain.data_hash()

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        if split not in self.splits:
            raise UserError("tau2_bench: with base=true all tasks are in the test split; train with base=false")
        part = self._by_key.keys() if self._base else self._domain.keys(split)
        kept = {key: case for key, case in self._by_key.items() if key in part and self._is_kept(case)}
        for key in in_order(kept, seed):
            yield self._task(kept[key], split)

    async def start(self, context: EpisodeContext[Tau2World]) -> Tau2World:
        case = self._case(context.task)
        context.info.update(success=False, failed=sorted(case.basis), for_a_judge=case.for_a_judge)
        return await asyncio.to_thread(self._domain.world, case.found)

    async def toolbox(self, context: EpisodeContext[Tau2World]) -> Tools:
        return FunctionTools(self._domain.functions, context.state.call)

    async def reply(self, context: EpisodeContext[Tau2World]) -> Reply:
        case, world = self._case(context.task), context.state
        said = [str(message["content"]) for message in context.messages if message["role"] == "assistant"]
        failed = failed_checks(case, world, said)
        if not case.is_shown and not set(case.replies) <= set(world.replies):
            failed.append("replies")
        context.info.update(success=not failed, failed=failed)
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message]:
        case = self._case(task)
        for call in case.actions:
            yield call_message(call)
        yield {"role": "assistant", "content": "; ".join(case.communicate) or "Done."}

    def _task(self, case: Tau2Case, split: Split) -> Task:
        solo = self._domain_name == SOLO
        return Task(
            task_id=f"tau2_bench/{case.key}",
            prompt=(
                {"role": "system", "content": f"{self._domain.policy.rstrip()}\n{_SOLO_RULES if solo else RULES}"},
                {"role": "user", "content": case.request if solo else REQUEST + case.request},
            ),
            answer={"case": case.key, "data": self.data_hash},
            split=split,
            difficulty=len(case.actions),
        )

    def _is_kept(self, case: Tau2Case) -> bool:
        return self._unverifiable or case.is_shown or bool(case.actions)

    def _case(self, task: Task) -> Tau2Case:
        return self._by_key[cast(Mapping[str, str], task.answer)["case"]]

    @functools.cached_property
    def _domain(self) -> Tau2Domain:
        return Tau2Domain(self._package, self._domain_name)

    @functools.cached_property
    def _by_key(self) -> dict[str, Tau2Case]:
        return {case.key: case for case in self._domain.cases()}
