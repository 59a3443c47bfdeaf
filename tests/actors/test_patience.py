"""A process that does not run for a while, stopped or on a frozen machine, is not a dead one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import monarch.config
import psutil
import pytest
from counting import Counting
from waiting import LONG_S, until

from agentgym.actors.launchers import CHILD_MODULE
from agentgym.actors.process_group import ProcessDied
from agentgym.actors.runtime import IDLE_LIMITS, Runtime
from agentgym.recipe import build_recipe


def test_the_patience_of_a_run_is_its_longest_deadline() -> None:
    assert build_recipe({}).patience_s == 600
    assert build_recipe({"trainer": {"step_timeout_s": 900}}).patience_s == 900
    assert build_recipe({"generator": {"start_timeout_s": 1800}}).patience_s == 1800


async def test_monarchs_limits_are_the_patience() -> None:
    async with Runtime(patience_s=1234.5):
        config = monarch.config.get_global_config()
        assert {name: config[name] for name in IDLE_LIMITS} == dict.fromkeys(IDLE_LIMITS, "20m 34s 500ms")


async def test_a_group_is_asked_a_few_times_before_it_counts_as_silent() -> None:
    async with Runtime(patience_s=5.0):
        config = monarch.config.get_global_config()
        assert os.environ["HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"] == "60s"
        assert {config[name] for name in IDLE_LIMITS} == {"3m"}


@pytest.mark.hostile
async def test_an_actor_that_is_stopped_for_seven_seconds_continues(tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path):
        group = await Counting.as_actor(0)
        os.kill(group.pids[0], signal.SIGSTOP)
        call = asyncio.create_task(group.call(Counting.add, 1, timeout_s=LONG_S))
        await asyncio.sleep(7)
        os.kill(group.pids[0], signal.SIGCONT)
        assert await call == [1]
        assert not group.dead.done()


@pytest.mark.slow
async def test_a_process_that_is_killed_while_it_starts_is_seen_at_once(tmp_path: Path) -> None:
    def starting() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if CHILD_MODULE in child.cmdline()]

    async with Runtime(log_dir=tmp_path):
        start = asyncio.create_task(Counting.options(mesh_name="early").as_actor(0))
        await until(lambda: bool(starting()))
        starting()[0].kill()
        with pytest.raises(ProcessDied, match=r"^early is dead: its process was killed by SIGKILL \(out of memory"):
            await asyncio.wait_for(start, LONG_S)
