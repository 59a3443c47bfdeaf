"""The benchmarks' own data, where installed: gold succeeds, silence does not, and verdicts are the packages' own."""

from __future__ import annotations

import importlib.util
import os
import sys
from itertools import islice
from types import ModuleType
from typing import Any

import pytest
from gold import Row, measure

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.testing import play
from agentgym_envs.agentdojo.environment import AgentDojoEnvironment
from agentgym_envs.benchmarks.functions import NamedCall, call_message
from agentgym_envs.bfcl.environment import BfclEnvironment
from agentgym_envs.bfcl.world import World
from agentgym_envs.tau_bench.domain import ENDS, Case
from agentgym_envs.tau_bench.environment import TauBenchEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_packages")]

TAU_BENCH = os.environ.get("TAU_BENCH")  # its folder
CHECKER = "eval_checker.multi_turn_eval.multi_turn_checker"


def needs(package: str, path: str | None = None) -> None:
    if path is None and importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")


async def gold(environment: Any, split: str = "test", limit: int | None = None) -> Row:
    return await measure(environment.name, environment, split, limit, PluginRegistry.discover())


def passed(row: Row) -> tuple[int, list[str], list[str]]:
    return row.tasks, row.gold_failed, row.silence_paid


async def test_bfcl() -> None:
    needs("bfcl_eval")
    row = await gold(BfclEnvironment())
    assert passed(row) == (800, [], []) and len(row.unchanged) == 43


async def test_tau_bench_retail_and_airline() -> None:
    needs("tau_bench", TAU_BENCH)
    retail = TauBenchEnvironment(path=TAU_BENCH)
    test, train = await gold(retail), await gold(retail, "train")
    airline = await gold(TauBenchEnvironment(path=TAU_BENCH, domain="airline"))
    assert (passed(test), passed(train), passed(airline)) == ((114, [], []), (481, [], []), (43, [], []))
    assert len(retail.left_out("train")["faulty"]) == len(test.faulty) == 19


@pytest.mark.parametrize("options", [{}, {"attack": "important_instructions_no_names", "suites": ["banking"]}])
async def test_agentdojo(options: dict[str, Any]) -> None:
    needs("agentdojo")
    environment = AgentDojoEnvironment(**options)
    try:
        row = await gold(environment)
    except UserError as error:
        pytest.skip(str(error))
    assert passed(row) == (144 if options else 97, [], [])
    assert len({key.split("/")[3] for key in row.weak}) == 5


async def test_tau_bench_verdicts_are_those_of_its_own_environment() -> None:
    needs("tau_bench", TAU_BENCH)
    environment = TauBenchEnvironment(path=TAU_BENCH)
    cases = [environment._case_of(task) for task in environment.tasks("test")]
    [data] = environment._package.modules("envs.retail.data")
    customer: Any = ModuleType("tau_bench.envs.user")  # the package's own speaks through a client of all models
    customer.load_user, customer.UserStrategy = None, str
    sys.modules["tau_bench.envs.user"] = customer
    base, types = environment._package.modules("envs.base", "types")

    class Theirs(base.Env):  # type: ignore[misc,name-defined]
        """Without its customer, which is a model."""

        def __init__(self) -> None:
            self.data_load_func, self.tools_map, self.terminate_tools = data.load_data, environment._domain.tools, []

    def reward(case: Case, calls: list[NamedCall], said: str) -> float:
        theirs = Theirs()
        actions = [types.Action(name=name, kwargs=given) for name, given in case.actions]
        theirs.task = types.Task(user_id="", actions=actions, instruction="", outputs=list(case.outputs))
        theirs.data, theirs.actions = data.load_data(), []
        for name, given in calls:
            theirs.step(types.Action(name=name, kwargs=given))
        theirs.actions.append(types.Action(name="respond", kwargs={"content": said}))
        return float(theirs.calculate_reward().reward)

    verdicts = []
    comparable = [case for case in cases if (case.changes or case.outputs) and ENDS not in dict(case.actions)]
    for case in sorted(comparable, key=lambda case: not case.outputs)[:12]:
        calls, said = list(case.actions), " and ".join(case.outputs)
        for what, text in ((calls, said), (calls[:-1], said), (calls, "Done."), ([*calls, calls[-1]], said)):
            says = [call_message(call) for call in what]
            episode = await play(environment, environment._task(case, "test"), [*says, text])
            verdicts.append((episode.reward, reward(case, what, text), case.key))
    assert [verdict for verdict in verdicts if verdict[0] != verdict[1]] == []
    assert 12 <= sum(ours == 1.0 for ours, *_ in verdicts) < len(verdicts) - 5


Turns = list[list[tuple[str, dict[str, Any]]]]


def variants(gold: Turns) -> dict[str, Turns]:
    """What agents may do in each turn, as calls."""
    return {
        "gold": gold,
        "backwards": [turn[::-1] for turn in gold],
        "without the first call": [turn[1:] for turn in gold],
        "without the last turn": [*gold[:-1], []],
        "all in the first turn": [[call for turn in gold for call in turn], *([] for _ in gold[1:])],
        "everything twice": [[*turn, *turn] for turn in gold],
    }


async def test_bfcl_verdicts_are_those_of_its_own_checker() -> None:
    needs("bfcl_eval")
    environment = BfclEnvironment(categories=["base", "long_context"])
    [checker] = environment._package.modules(CHECKER)
    verdicts = []
    for task in islice(environment.tasks("test"), 80):
        entry = environment._entry(task)
        world = World(environment._classes, entry)
        right = [[(call.name, dict(world.bound(call))) for call in turn] for turn in entry.gold]
        for name, turns in variants(right).items():
            says = [m for turn in turns for m in ([call_message(*turn)] if turn else []) + ["Done."]]
            ours = (await play(environment, task, says)).success
            theirs = checker.multi_turn_checker(
                [[_texts(turn)] if turn else [] for turn in turns],
                [_texts(turn) for turn in right],
                {"initial_config": entry.initial, "involved_classes": list(entry.classes), "id": entry.entry_id},
                entry.category,
                f"{name.replace(' ', '_')}",
            )["valid"]
            verdicts.append((ours, theirs, entry.entry_id, name))
    assert [verdict for verdict in verdicts if verdict[0] is not verdict[1]] == []
    assert 80 < sum(ours for ours, *_ in verdicts) < len(verdicts) - 160  # both verdicts are met, often


def _texts(turn: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in turn]
