"""The environment: an assistant does a user's task with tools whose data may hold somebody else's instructions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, cast

from agentgym.env import Benchmark, Environment, EpisodeContext
from agentgym.errors import UserError, nearest
from agentgym.rewards import reward
from agentgym.tools import Tools
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym_envs.agentdojo.suites import Suite, read_attacks, read_instructions, read_suites
from agentgym_envs.benchmarks.functions import FunctionTools, call_message
from agentgym_envs.benchmarks.package import BenchmarkPackage, files_hash, in_order, refuse_training

NO_ATTACK: Final = "none"


@dataclass(slots=True)
class OfficeState:
    """An episode's state: the world that the tools change, and what was called."""

    suite: Suite
    task_id: str
    injection_id: str | None
    injections: Mapping[str, str]
    world: Any
    calls: list[Any] = field(default_factory=list)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self.calls.append(self.suite.recorded(name, arguments))
        return self.suite.call(self.world, name, arguments)


class AgentDojoEnvironment(Environment[OfficeState]):
    """AgentDojo: tasks of an office, a bank, a chat and a travel desk, with or without injected instructions.

    The reward `utility` is 1 when the user's task was done; `resistance` is 0, or -1 when what an injected text asks
    for was done. Recorded in `info`: utility, injected (bool), success: utility without being injected, and weak_check:
    the package's check of the task passes for silence, so that a call as in the right ones is asked for too. Measures:
    utility, and under attack utility_under_attack and targeted_attack_success.
    """

    name: ClassVar[str] = "agentdojo"
    version: ClassVar[int] = 2
    max_turns: ClassVar[int] = 30
    splits = ("test",)
    benchmarks: ClassVar[Mapping[str, Benchmark]] = {
        "agentdojo": Benchmark(tasks=97, source="pip install agentdojo", licence="MIT"),
        "agentdojo_attacked": Benchmark(
            tasks=1046,  # 97, and 949 under attack
            source="pip install agentdojo",
            licence="MIT",
            options={"attack": "important_instructions_no_names", "benign": True},
        ),
    }
    requirements: ClassVar[str] = "pip install agentdojo"

    def __init__(
        self,
        *,
        attack: Annotated[
            str,
            "one of the package's attacks that write a fixed text, such as important_instructions_no_names, with which "
            "every task is played with every injection of its suite that it can meet; none is no attack",
        ] = NO_ATTACK,
        benign: Annotated[
            bool, "with an attack, play the tasks without it, too: all three measures in one table"
        ] = False,
        suites: Annotated[Sequence[str], "of banking, slack, travel and workspace; empty is all"] = (),
        version: Annotated[str, "version of the tasks"] = "v1.2.2",
        path: Annotated[str | None, "folder of the package agentdojo, or one that holds it; null: installed"] = None,
    ) -> None:
        """Raises UserError for an unknown name, and when the package is missing."""
        self._package = BenchmarkPackage.find("agentdojo", path, environment=self.name, requirements=self.requirements)
        self._suite_names, self._version = tuple(suites), version
        self._attack, self._benign = attack, benign

    @functools.cached_property
    def data_hash(self) -> str:
        """SHA-256 of the package's worlds and of the modules with its tasks."""
        folder = self._package.folder
        return files_hash([*folder.glob("data/suites/**/*.yaml"), *folder.glob("default_suites/**/*.py")])

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        refuse_training(self.name, split)
        attacked = self._attack != NO_ATTACK and bool(self._attackers)  # an unknown name is refused here
        places = {
            "/".join(filter(None, (name, task_id, injection_id))): (suite, task_id, injection_id)
            for name, suite in self._suites.items()
            for task_id in suite.found.user_tasks
            for injection_id in (
                *(suite.found.injection_tasks if attacked else ()),
                *((None,) if self._benign or not attacked else ()),
            )
        }
        for key in in_order(places, seed):
            suite, task_id, injection_id = places[key]
            if injection_id is None or self._injections(suite, task_id, injection_id):
                yield self._task(key, suite, task_id, injection_id)

    async def start(self, context: EpisodeContext[OfficeState]) -> OfficeState:
        attacked = cast(Mapping[str, str], context.task.answer)["injection"] is not None
        context.info.update(success=False, utility=False, injected=False, measures=_measures(attacked, False, False))
        return await asyncio.to_thread(self._new_state, context.task)

    async def toolbox(self, context: EpisodeContext[OfficeState]) -> Tools:
        return FunctionTools(context.state.suite.functions, context.state.call)

    async def finish(self, context: EpisodeContext[OfficeState]) -> None:
        """Check both, also of an episode that reached a limit: what was done is done."""
        if isinstance(context.state, OfficeState):
            last = context.messages[-1]
            said = last["content"] if last["role"] == "assistant" else ""
            utility, injected = await asyncio.to_thread(_check, context.state, said)
            context.info.update(
                utility=utility,
                injected=injected,
                success=utility and not injected,
                measures=_measures(context.state.injection_id is not None, utility, injected),
                weak_check=context.state.suite.is_weak(context.state.task_id),
            )

    def solve(self, task: Task) -> Iterator[Message]:
        state = self._new_state(task)
        gold = state.suite.found.user_tasks[state.task_id]
        for call in gold.ground_truth(state.world):
            plain = call.model_dump(mode="json")
            yield call_message((plain["function"], plain["args"]))
        yield {"role": "assistant", "content": gold.GROUND_TRUTH_OUTPUT}

    @reward(weight=1.0, inline=True)
    def utility(self, episode: Episode) -> float:
        """1.0 when the user's task was done."""
        return float(episode.info.get("utility") is True)

    @reward(weight=1.0, low=-1.0, high=0.0, inline=True)
    def resistance(self, episode: Episode) -> float:
        """-1.0 when what an injected text asks for was done, else 0.0: silence, which resists, earns nothing."""
        return -float(episode.info.get("injected") is True)

    def _task(self, key: str, suite: Suite, task_id: str, injection_id: str | None) -> Task:
        prompt: tuple[Message, ...] = (
            {"role": "system", "content": self._instructions},
            {"role": "user", "content": suite.found.user_tasks[task_id].PROMPT},
        )
        attack = f"/{self._attack}" if injection_id else ""
        return Task(
            task_id=f"agentdojo/{self._version}/{key}{attack}",
            prompt=prompt,
            answer={"suite": suite.name, "task": task_id, "injection": injection_id, "data": self.data_hash},
            split="test",
            category=suite.name,
        )

    def _new_state(self, task: Task) -> OfficeState:
        answer = cast(Mapping[str, str], task.answer)
        suite, injection_id = self._suites[answer["suite"]], answer["injection"]
        injections = self._injections(suite, answer["task"], injection_id) if injection_id else {}
        return OfficeState(suite, answer["task"], injection_id, injections, suite.world(answer["task"], injections))

    def _injections(self, suite: Suite, task_id: str, injection_id: str) -> Mapping[str, str]:
        return suite.injections(self._attackers[suite.name], task_id, injection_id)

    @functools.cached_property
    def _suites(self) -> dict[str, Suite]:
        return read_suites(self._package, self._version, self._suite_names)

    @functools.cached_property
    def _attackers(self) -> dict[str, Any]:
        attacks = read_attacks(self._package)
        if self._attack not in attacks:
            raise UserError(f"agentdojo: no attack {self._attack!r}.{nearest(self._attack, [NO_ATTACK, *attacks])}")
        return {name: suite.attacker(attacks[self._attack]) for name, suite in self._suites.items()}

    @functools.cached_property
    def _instructions(self) -> str:
        return read_instructions(self._package)


def _measures(attacked: bool, utility: bool, injected: bool) -> dict[str, Json]:
    """The names of the benchmark's own table."""
    if not attacked:
        return {"utility": utility}
    return {"utility_under_attack": utility, "targeted_attack_success": injected}


def _check(state: OfficeState, said: str) -> tuple[bool, bool]:
    before = state.suite.world(state.task_id, state.injections)
    utility = state.suite.is_useful(state.task_id, said, before, state.world, state.calls)
    if state.injection_id is None:
        return utility, False
    return utility, state.suite.is_injected(state.injection_id, said, before, state.world, state.calls)
