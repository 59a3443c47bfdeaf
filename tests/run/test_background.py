"""Work in threads beside the loop: its order, what it raises, and metric sinks that are slow."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import closing

import pytest

from agentgym.config import to_mapping
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.run.background import Background, Sinks
from agentgym.types import Group, Json, Task

LONG_S = 60.0


async def test_pieces_follow_one_another_while_the_loop_goes_on() -> None:
    background, done, go = Background(), list[str](), threading.Event()

    def first() -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(10)
        done.append("first")

    background.add(first)
    background.add(lambda: done.append("second"))
    await asyncio.sleep(0.05)
    assert not done
    go.set()
    await background.done()
    assert done == ["first", "second"]
    await Background().done()  # nothing was added


async def test_a_failure_is_raised_and_ends_what_comes_after_it() -> None:
    background, done = Background(), list[str]()

    def full() -> None:
        raise OSError("no space left")

    background.add(full)
    background.add(lambda: done.append("a mark"))
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            await background.done()
    assert not done
    await background.close()


async def test_who_is_cancelled_while_waiting_leaves_the_work_to_its_end() -> None:
    background, done = Background(), list[str]()
    background.add(lambda: (time.sleep(0.2), done.append("saved")))  # type: ignore[func-returns-value]
    waiting = asyncio.create_task(background.done())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not done
    await background.close()
    assert done == ["saved"]


class Slow:
    """Takes nothing before it may; remembers what it got, and in which thread."""

    got: list[tuple[str, int]] = []
    threads: set[int] = set()
    may = threading.Event()

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        self._note("open", 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.may.wait(LONG_S)
        if metrics["loss"] < 0:
            raise OSError("no way")
        self._note("log", step)

    def log_group(self, step: int, group: Group) -> None:
        self._note("group", step)

    def close(self) -> None:
        self._note("close", 0)

    def _note(self, what: str, step: int) -> None:
        self.got.append((what, step))
        self.threads.add(threading.get_ident())


class Plugin:
    @hookimpl
    def sinks(self) -> dict[str, type]:
        return {"slow": Slow}


@pytest.fixture
def opening(lab):
    Slow.got, Slow.threads, Slow.may = [], set(), threading.Event()
    recipe = lab.recipe("env.name=math", "logging.episodes_every=2", "logging.sinks=[slow]")
    registry = PluginRegistry([])
    registry.register(Plugin(), "ours")
    with closing(lab.new_run(recipe)) as folder:
        yield Sinks.opened(recipe.logging, to_mapping(recipe), folder.path, registry)


async def test_the_loop_goes_on_while_a_sink_is_slow_and_the_end_waits_for_it(opening) -> None:
    group = Group(group_id=0, task=Task(task_id="t", prompt=()), start_version=0)
    async with opening as sinks:
        for step in (1, 2, 3):
            sinks.log(step, {"loss": 1.0}, [group])
        assert Slow.got == [("open", 0)]
        Slow.may.set()
    assert Slow.got == [("open", 0), ("log", 1), ("group", 2), ("log", 2), ("log", 3), ("close", 0)]
    assert len(Slow.threads) == 1 and threading.get_ident() not in Slow.threads


async def test_what_a_sink_raises_ends_the_loop_at_a_later_step(opening) -> None:
    with pytest.raises(OSError, match="no way"):
        async with opening as sinks:
            sinks.log(1, {"loss": -1.0})
            Slow.may.set()
            await sinks.call(lambda: None)
            sinks.log(2, {"loss": 1.0})
            pytest.fail("it was not told")
    assert Slow.got == [("open", 0), ("close", 0)]


async def test_what_the_last_step_raises_is_raised_at_the_end(opening) -> None:
    Slow.may.set()
    with pytest.raises(OSError, match="no way"):
        async with opening as sinks:
            sinks.log(1, {"loss": -1.0})
