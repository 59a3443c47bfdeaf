"""Rewards are weighed, and one that fails costs one episode."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from sampled import sampled_turn

from agentgym.errors import UserError
from agentgym.rewards import Reward
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Outcome, Task

REWARDS_SOURCE = """
import os, subprocess, sys, time

def one(episode): return 1.0
def half(episode): return 0.5
def nothing(episode): return None
def reported(episode): return episode.info["score"]
def raises(episode): raise KeyError("tests")
def exits(episode): sys.exit(3)
def dies(episode): os._exit(7)
def killed(episode): os.kill(os.getpid(), 9)
def word(episode): return "high"
def nan(episode): return float("nan")
def hangs_on_request(episode):
    if hangs := episode.info.get("hangs"):
        open(hangs, "w").close()
        while True: pass
    return episode.info["score"]
def sleeps(episode): time.sleep(episode.info["sleep_s"]); return episode.info["score"]
def prints(episode): print("noise" * 1000); os.write(1, b"noise"); return 1.0
def pid(episode): return os.getpid()
def num_turns(episode): return len(episode.turns)
def heavy_imports(episode): return len({"torch", "numpy", "vllm", "monarch", "docker"} & set(sys.modules))
def leaves_a_child(episode): return subprocess.Popen(["sleep", "600"]).pid
def stdin_is_empty(episode): return sys.stdin.read() == ""
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "rewards_of_a_test.py").write_text(REWARDS_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rewards_of_a_test", raising=False)
    import rewards_of_a_test

    monkeypatch.setitem(sys.modules, "rewards_of_a_test", rewards_of_a_test)
    return rewards_of_a_test


def reward(function: Callable[[Episode], object], *, timeout_s: float = 60.0, high: float = 1.0) -> Reward:
    name = getattr(function, "__name__", "nameless")
    return Reward(name=name, function=function, timeout_s=timeout_s, high=high)  # type: ignore[arg-type]


def scorer(*rewards: Reward, num_workers: int = 1, **weights: float) -> Scorer:
    return Scorer(rewards, weights or {r.name: 1.0 for r in rewards}, num_workers=num_workers)


def episode(**info: bool | float | str | None) -> Episode:
    turn = sampled_turn((1, 2), (3,), -0.5)
    return Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0, turns=[turn], info=dict(info))


async def scored(with_scorer: Scorer, **info: bool | float | str | None) -> Episode:
    played = episode(**info)
    await with_scorer.score(played)
    return played


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def gone(pid: int) -> None:
    await until(lambda: not is_running(pid))


async def test_reward_is_the_weighted_sum(module: ModuleType) -> None:
    async with scorer(reward(module.one), reward(module.half), one=2.0, half=-0.25) as s:
        result = await scored(s)
    assert result.rewards == {"one": 1.0, "half": 0.5}
    assert result.reward == 1.875
    assert result.outcome is None and result.error is None


async def test_unscored_is_none_and_not_zero(module: ModuleType) -> None:
    async with scorer(reward(module.one), reward(module.nothing)) as s:
        result = await scored(s)
    assert result.rewards == {"one": 1.0, "nothing": None}
    assert result.reward is None and result.error is None


async def test_a_weight_of_zero_records_a_reward_that_counts_nothing(module: ModuleType) -> None:
    async with scorer(reward(module.half), reward(module.nothing), half=1.0, nothing=0.0) as s:
        result = await scored(s)
    assert result.rewards == {"half": 0.5, "nothing": None} and result.reward == 0.5


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("raises", "KeyError", "rewards_of_a_test.py"),
        ("exits", "SystemExit", "3"),
        ("dies", "ProcessDied", "exited with 7"),
        ("killed", "ProcessDied", "SIGKILL"),
        ("word", "TypeError", "'high'"),
        ("nan", "ValueError", "nan; its range is 0 to 1"),
        ("pid", "ValueError", "its range is 0 to 1"),
    ],
)
async def test_a_failing_reward_is_an_infrastructure_error_with_its_name(
    module: ModuleType, name: str, kind: str, part: str
) -> None:
    async with scorer(reward(module.half), reward(getattr(module, name)), reward(module.one)) as s:
        result = await scored(s)
    assert result.outcome is Outcome.INFRA_ERROR and result.error is not None
    assert (result.error.source, result.error.kind) == (f"reward:{name}", kind)
    assert part in result.error.message
    assert result.reward is None and result.rewards[name] is None
    assert result.rewards["half"] == 0.5


@pytest.mark.parametrize("name", ["raises", "dies", "word", "nan", "hangs_on_request"])
async def test_a_reward_that_is_only_recorded_never_costs_an_episode(
    module: ModuleType, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing = reward(getattr(module, name), timeout_s=0.2)
    inline = Reward(name="inline", function=lambda e: e.info["missing"], inline=True)  # type: ignore[arg-type,return-value]
    rewards = (failing, reward(module.half), inline, reward(module.one))
    async with scorer(*rewards, half=1.0, one=0.0, inline=0.0, **{name: 0.0}) as s:
        for _ in range(2):
            result = await scored(s, hangs=os.devnull)
            assert result.error is None and result.outcome is None and result.reward == 0.5
            assert result.rewards["half"] == 0.5 and result.rewards[name] is None and result.rewards["inline"] is None
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and all("has the weight 0" in text for text in warnings)
    assert {text.split("'")[1] for text in warnings} == {name, "inline"}


async def test_a_hanging_reward_is_killed_and_the_next_episode_is_scored(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scorer(reward(module.hangs_on_request, timeout_s=60)) as s:
        hung = asyncio.create_task(scored(s, hangs=str(tmp_path / "hangs")))
        await until((tmp_path / "hangs").exists)
        assert not hung.done()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 60)
        error = (await hung).error
        assert error is not None and error.kind == "TimeoutError"
        assert (await scored(s, score=0.25)).reward == 0.25


async def test_a_cancelled_call_does_not_answer_the_next_one(module: ModuleType) -> None:
    async with scorer(reward(module.sleeps)) as s:
        await scored(s, sleep_s=0.0, score=0.5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scored(s, sleep_s=30.0, score=0.1), 0.1)
        assert (await scored(s, sleep_s=0.0, score=0.9)).reward == 0.9


async def test_many_episodes_share_few_workers_and_keep_their_own_scores(module: ModuleType) -> None:
    async with scorer(reward(module.reported), reward(module.pid, high=1e9), num_workers=2) as s:
        results = await asyncio.gather(*(scored(s, score=i / 100) for i in range(100)))
    assert [r.rewards["reported"] for r in results] == [i / 100 for i in range(100)]
    assert len({r.rewards["pid"] for r in results}) == 2


async def test_nothing_is_left_after_close_not_even_what_a_reward_started(module: ModuleType) -> None:
    async with scorer(reward(module.pid, high=1e9), reward(module.leaves_a_child, high=1e9)) as s:
        result = await scored(s)
        pids = [int(pid) for pid in result.rewards.values() if pid]
        assert len(pids) == 2 and all(is_running(pid) for pid in pids)
    for pid in pids:
        await gone(pid)
    await s.close()


async def test_what_a_reward_prints_goes_to_the_error_stream_and_it_reads_nothing(
    module: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    async with scorer(reward(module.prints), reward(module.stdin_is_empty), reward(module.half)) as s:
        assert (await scored(s)).reward == 2.5
    printed = capfd.readouterr()
    assert printed.out == "" and "noise" in printed.err


async def test_a_plain_reward_sees_no_tokens_and_no_heavy_library(module: ModuleType) -> None:
    async with scorer(reward(module.num_turns), reward(module.heavy_imports)) as s:
        result = await scored(s)
    assert result.rewards == {"num_turns": 0.0, "heavy_imports": 0.0}
    assert len(result.turns) == 1


async def test_a_reward_that_only_this_process_can_import_fails_alone(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely = ModuleType("lonely_rewards")
    exec("def alone(episode): return 1.0", lonely.__dict__)
    monkeypatch.setitem(sys.modules, "lonely_rewards", lonely)
    async with scorer(reward(module.half), reward(lonely.alone)) as s:
        result = await scored(s)
    assert result.error is not None
    assert (result.error.source, result.error.kind) == ("reward:alone", "ModuleNotFoundError")
    assert result.rewards["half"] == 0.5


async def test_inline_and_async_rewards_start_no_process() -> None:
    async def count_turns(played: Episode) -> float:
        await asyncio.sleep(0)
        return len(played.turns) / 2

    inline = Reward(name="pid", function=lambda _: float(os.getpid()), high=1e9, inline=True)
    async with scorer(inline, reward(count_turns)) as s:
        result = await scored(s)
        assert s._pool.num_started == 0
    assert result.rewards == {"pid": os.getpid(), "count_turns": 0.5}


async def test_an_async_reward_that_waits_too_long_is_distinguished_from_one_that_raises() -> None:
    async def waits(_: Episode) -> float:
        await asyncio.sleep(60)
        return 1.0

    async def gives_up(_: Episode) -> float:
        raise TimeoutError("the judge did not answer")

    async with scorer(reward(waits, timeout_s=0.05)) as s:
        waited = await scored(s)
    async with scorer(reward(gives_up)) as s:
        raised = await scored(s)
    assert waited.error is not None and "longer than 0.05 s" in waited.error.message
    assert raised.error is not None and "the judge did not answer" in raised.error.message


async def test_an_inline_reward_that_raises_is_an_infrastructure_error() -> None:
    broken = Reward(name="broken", function=lambda e: e.info["missing"], inline=True)  # type: ignore[arg-type,return-value]
    async with scorer(broken) as s:
        result = await scored(s)
    assert result.outcome is Outcome.INFRA_ERROR
    assert result.error is not None and result.error.source == "reward:broken"


def test_the_floor_is_the_least_that_can_be_earned(module: ModuleType) -> None:
    penalty = Reward(name="penalty", function=module.one, low=-2.0, high=3.0)
    assert scorer(reward(module.half), penalty, half=1.0, penalty=0.5).floor == -1.0
    assert scorer(reward(module.half), penalty, half=1.0, penalty=-0.5).floor == -1.5


def test_wrong_names_and_weights_are_the_users_mistake(module: ModuleType) -> None:
    with pytest.raises(UserError, match=r"no reward 'hafl' to weigh. Did you mean 'half'"):
        scorer(reward(module.half), hafl=1.0)
    with pytest.raises(UserError, match="half is nan; a weight must be a finite number"):
        scorer(reward(module.half), half=math.nan)
    with pytest.raises(UserError, match="no reward is weighed"):
        Scorer([], {})


def test_a_reward_without_an_importable_name_is_refused_with_advice() -> None:
    with pytest.raises(UserError, match="top level of a module"):
        scorer(reward(lambda _: 1.0))


def test_a_range_must_be_finite_and_ordered() -> None:
    with pytest.raises(ValueError, match="range"):
        Reward(name="r", function=lambda _: 1.0, low=1.0, high=0.0)
    with pytest.raises(ValueError, match="timeout_s"):
        Reward(name="r", function=lambda _: 1.0, timeout_s=0.0)
