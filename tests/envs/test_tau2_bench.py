"""tau2-bench's checks, parts and shared worlds, on a small package in its layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from tau2_package import write_tau2_bench

from agentgym.errors import UserError
from agentgym.testing import play
from agentgym_envs.benchmarks.functions import call_message
from agentgym_envs.tau_bench.tau2_environment import Tau2BenchEnvironment

pytestmark = pytest.mark.usefixtures("fresh_packages")


def made(folder: Path, **options: bool) -> tuple[Tau2BenchEnvironment, dict]:
    environment = Tau2BenchEnvironment(path=str(write_tau2_bench(folder)), base=True, **options)
    return environment, {task.task_id.rpartition("/")[2]: task for task in environment.tasks("test")}


def call(name: str, order: str) -> dict:
    return call_message((name, {"order_id": order}))


async def test_gold_succeeds_and_silence_does_not(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    assert sorted(tasks) == ["act", "assert", "look", "say", "write"]  # nothing shows that "nothing" was done
    for task in tasks.values():
        gold, nothing = await play(environment, task, environment.solve(task)), await play(environment, task, [""])
        assert gold.success and not nothing.success and gold.info["for_a_judge"] is task.task_id.endswith("write")
    assert "nothing" in made(tmp_path, unverifiable=True)[1]


@pytest.mark.parametrize(
    ("key", "says", "failed"),
    [
        ("write", [call("cancel", "#1"), call("cancel", "#2"), "Done."], ["DB"]),  # a write more
        ("write", [call("get_order", "#2"), call("cancel", "#9"), call("cancel", "#1"), "Done."], []),
        ("say", ["It is 1,200."], []),  # what is said decides, not how the agent knows
        ("say", [call("get_order", "#1"), "It is 1100."], ["COMMUNICATE"]),
        ("look", [call("get_order", "#1"), "Done."], []),  # the same reply as that of the right call
        ("act", [call("get_order", "#1"), "Done."], ["ACTION"]),
        ("assert", [call("cancel", "#1"), "Done."], ["ENV_ASSERTION"]),
    ],
)
async def test_what_the_basis_names_decides(tmp_path: Path, key: str, says: list, failed: list[str]) -> None:
    environment, tasks = made(tmp_path)
    episode = await play(environment, tasks[key], says)
    assert episode.info["failed"] == failed and episode.success is not failed


async def test_episodes_share_records_until_they_look_at_them(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    for _ in range(2):
        assert (await play(environment, tasks["write"], [call("cancel", "#1"), "Done."])).success
    looked = await play(environment, tasks["look"], [call("get_order", "#1"), "Done."])
    assert looked.tool_calls[0].result == '{"status": "pending"}'


async def test_the_calculator_evaluates_no_text(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    sums = [call_message(("calculate", {"expression": text})) for text in ("2 * 600", "9**9**9**9")]
    episode = await play(environment, tasks["say"], [*sums, "1200"])
    assert episode.success and [trace.error for trace in episode.tool_calls] == ["", "tool"]


def test_the_parts_of_the_official_set(tmp_path: Path) -> None:
    environment, _ = made(tmp_path)
    with pytest.raises(UserError, match="train with base=false"):
        next(environment.tasks("train"))
    parts = Tau2BenchEnvironment(path=str(tmp_path))
    assert [task.task_id for task in parts.tasks("train")] == ["tau2_bench/retail/say"]
    assert len(list(parts.tasks("test"))) == 4
    with pytest.raises(UserError, match=r"no domain 'retial'. Did you mean 'retail'"):
        Tau2BenchEnvironment(domain="retial", path=str(tmp_path))  # type: ignore[arg-type]
