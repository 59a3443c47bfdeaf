"""Endpoints by their names: the forms in which torchforge's documents call services and actors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from forge_counter import ForgeCounter, Judge, brevity

from agentgym.actors.runtime import Runtime
from agentgym.errors import InfraError, UserError


async def test_a_service_is_called_by_the_names_of_its_endpoints_and_a_session_stays(tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path):
        counter = await ForgeCounter.as_service(initial_value=0)
        assert len(counter.replicas) == 2, "by the class's attribute"
        [await counter.increment.route() for _ in range(2)]
        assert await counter.increment.fanout() == [2, 2] and await counter.get_value.call(plus=5) == [7, 7]
        async with counter.session():
            await counter.reset.route()
            assert [await counter.increment.route() for _ in range(3)] == [1, 2, 3]
            assert await counter.get_value.route() == 3
        assert sorted(await counter.get_value.fanout()) == [2, 3]
        await asyncio.gather(*(counter.increment.route() for _ in range(40)))
        assert sum(await counter.get_value.fanout()) == 45, "plain functions take turns"
        assert await counter.num_threads.fanout() == [2, 2], "and run beside the event loop"
        for wrong, words in (
            (lambda: counter.incremnt, r"ForgeCounter has no endpoint 'incremnt'\. Did you mean 'increment'\?"),
            (
                lambda: ForgeCounter.options(num_replica=2),
                r"options has no 'num_replica'\. Did you mean 'num_replicas'",
            ),
            (lambda: ForgeCounter.options(mesh_name="a/b"), "files are named after it, so give one without a slash"),
            (lambda: counter.increment(), r"increment\.route\(\.\.\.\) asks one replica, increment\.fanout"),
        ):
            with pytest.raises(UserError, match=words):
                wrong()
        with pytest.raises(UserError, match=r"ForgeCounter\.get_value\(self, \*, plus: 'int' = 0\) .* can't be called"):
            await counter.get_value.route(minus=1)
        with pytest.raises(UserError, match=r"ForgeCounter\(self, initial_value: 'int'\) .*missing .* 'initial_value'"):
            await ForgeCounter.as_service()
        assert not hasattr(counter, "_missing")
        await counter.shutdown()


async def test_an_actor_is_called_by_the_names_of_its_endpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(log_dir=tmp_path):
        judge = await Judge.options(procs=2, mesh_name="judges").as_actor(reward_functions=[brevity])
        asked = {"prompt": "", "response": "36", "target": "36"}
        assert await judge.evaluate_response.call(**asked) == [0.5, 0.5] and judge.name == "judges"
        await Judge.shutdown(judge)
        alone = await Judge.as_actor(reward_functions=[brevity])
        assert await alone.evaluate_response.call_one("", response="36", target="36") == 0.5
        await Judge.shutdown(alone)
        with pytest.raises(InfraError, match=r"judge is dead: Judge\.__init__ failed: .*ValueError: no functions$"):
            await Judge.as_actor(reward_functions=[])
        left_open = await ForgeCounter.as_service(initial_value=1)
        assert await left_open.get_value.route() == 1
    assert not caplog.messages, "the runtime closes it: nothing starts again"
