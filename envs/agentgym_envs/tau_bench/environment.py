"""The environment: a customer says all that they want at once, and the agent serves them by the policy."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, cast, get_args

from agentgym.env import Benchmark, Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest
from agentgym.tools import Tools
from agentgym.types import Message, Split, Task
from agentgym_envs.benchmarks.functions import FunctionTools, call_message
from agentgym_envs.benchmarks.package import BenchmarkPackage, in_order
from agentgym_envs.tau_bench.domain import ENDS, Case, Domain, DomainName, Shop

RULES: Final = """
# This conversation

The customer writes once. The first message is everything that they want, and they have confirmed every action that
follows from it: do not ask, act. When all is done, or refused, tell the customer the outcome in one last message. A
message without a tool call ends the conversation.
"""
REQUEST: Final = "These are my notes for this conversation. Please act on them for me.\n\n"


class TauBenchEnvironment(Environment[Shop]):
    """tau-bench retail and airline, with a scripted customer whose first message is the whole request.

    An episode succeeds when the data are as the right calls leave them and every required text was said. Where the
    right calls change nothing and no text is required, what they replied must be among what the agent's calls
    replied. Figures do not compare with those of a simulated customer. Recorded in `info`: success, data_right,
    outputs_right (bool), gold_changes (bool), gold_faulty (bool).
    """

    name: ClassVar[str] = "tau_bench"
    version: ClassVar[int] = 2
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 30
    benchmarks: ClassVar[Mapping[str, Benchmark]] = {
        f"tau_bench_{domain}": Benchmark(
            tasks=tasks,
            source="git sierra-research/tau-bench",
            licence="MIT",
            options={"domain": domain, "unverifiable": True},
        )
        for domain, tasks in (("retail", 115), ("airline", 50))
    }
    requirements: ClassVar[str] = (
        "git clone https://github.com/sierra-research/tau-bench, and give its folder as `path` (or pip install it "
        "from there); pip install pydantic"
    )

    def __init__(
        self,
        *,
        domain: Annotated[DomainName, "the shop; retail alone has a train split"] = "retail",
        path: Annotated[str | None, "folder of the package tau_bench or of its repository; null: installed"] = None,
        faulty: Annotated[
            bool, "train also on tasks in which a right call answers an error; the test split always has them"
        ] = False,
        unverifiable: Annotated[
            bool, "keep tasks without any right call or required text, in which silence succeeds"
        ] = False,
    ) -> None:
        """Raises UserError for an unknown domain, and when the package is missing."""
        if domain not in get_args(DomainName):
            raise UserError(f"tau_bench: no domain {domain!r}.{nearest(domain, get_args(DomainName))}")
        self._domain_name = domain
        self.splits = ("train", "test") if domain == "retail" else ("test",)
        self._package = BenchmarkPackage.find("tau_bench", path, environment=self.name, requirements=self.requirements)
        self._faulty, self._unverifiable = faulty, unverifiable

    @functools.cached_property
    def data_hash(self) -> str:
        """SHA-256 of the domain's data and tasks."""
        return self._domain.data_hash()

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        if split not in self.splits:
            raise UserError(
                f"tau_bench: the domain {self._domain_name} has no {split} split: train on domain `retail` or on "
                f"`tool_use`, and evaluate on {self._domain_name}"
            )
        kept = [case.key for case in self._cases[split] if self._is_kept(case, split)]
        for key in in_order(kept, seed):
            yield self._task(self._case(key), split)

    def left_out(self, split: Split) -> Mapping[str, tuple[str, ...]]:
        """The ids of tasks that are not in a split, by reason."""
        cases = [case for case in self._cases[split] if not self._is_kept(case, split)]
        return {
            "unverifiable": tuple(case.key for case in cases if not case.verifiable),
            "faulty": tuple(case.key for case in cases if case.verifiable),
        }

    async def start(self, context: EpisodeContext[Shop]) -> Shop:
        case = self._case_of(context.task)
        context.info.update(
            success=False, data_right=False, outputs_right=False, gold_changes=case.changes, gold_faulty=case.faulty
        )
        return self._domain.shop()

    async def toolbox(self, context: EpisodeContext[Shop]) -> Tools:
        return FunctionTools(self._domain.functions, context.state.call)

    async def after_calls(self, context: EpisodeContext[Shop]) -> Reply:
        return self._end(context) if ENDS in context.state.called else Reply()

    async def reply(self, context: EpisodeContext[Shop]) -> Reply:
        return self._end(context)

    def solve(self, task: Task) -> Iterator[Message]:
        case = self._case_of(task)
        said = "; ".join(case.outputs) or "Done."
        for name, arguments in case.actions:
            if name != ENDS:
                yield call_message((name, arguments))
        for name, arguments in case.actions:
            if name == ENDS:
                yield call_message((name, arguments), content=said)
        yield {"role": "assistant", "content": said}

    def _end(self, context: EpisodeContext[Shop]) -> Reply:
        case, shop = self._case_of(context.task), context.state
        right, _ = self._domain.replay(case.actions)
        data_right = shop.changes() == right.changes()
        said = [message["content"] for message in context.messages if message["role"] == "assistant"]
        outputs_right = all(any(_says(text, output) for text in said) for output in case.outputs)
        if not case.changes and not case.outputs:  # else silence would succeed
            outputs_right = set(right.replies) <= set(shop.replies)
        success = data_right and outputs_right
        context.info.update(success=success, data_right=data_right, outputs_right=outputs_right)
        return Reply(done=True)

    def _task(self, case: Case, split: Split) -> Task:
        return Task(
            task_id=f"tau_bench/{case.key}",
            prompt=(
                {"role": "system", "content": f"{self._domain.policy.rstrip()}\n{RULES}"},
                {"role": "user", "content": REQUEST + case.instruction},
            ),
            answer={"case": case.key, "data": self.data_hash},
            split=split,
            difficulty=len(case.actions),
        )

    def _is_kept(self, case: Case, split: Split) -> bool:
        if not case.verifiable:
            return self._unverifiable
        return self._faulty or split == "test" or not case.faulty

    def _case_of(self, task: Task) -> Case:
        return self._case(cast(Mapping[str, str], task.answer)["case"])

    def _case(self, key: str) -> Case:
        _, part, index = key.split("/")
        return self._cases[cast(Split, part)][int(index)]

    @functools.cached_property
    def _domain(self) -> Domain:
        return Domain(self._package, self._domain_name)

    @functools.cached_property
    def _cases(self) -> _Cases:
        return _Cases(self._domain)


class _Cases(dict[Split, list[Case]]):
    """The tasks of each split, read when they are first asked for."""

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self._domain = domain

    def __missing__(self, split: Split) -> list[Case]:
        self[split] = self._domain.cases(split)
        return self[split]


def _says(text: str, output: str) -> bool:
    """Whether a text says this output by the benchmark's rule, which ignores letter case and thousands' commas."""
    return output.lower() in text.lower().replace(",", "")
