"""Metric sinks: what they get and when, and what follows when one is slow, raises or hangs."""

from __future__ import annotations

import asyncio
import itertools
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.plugin_errors import PluginError
from agentgym.run.collecting import FILE
from agentgym.run.layers import finish_recipe
from agentgym.run.settle import settle_served
from agentgym.run.sinks import MAX_BEHIND, Sinks, open_sinks
from agentgym.run.train import train
from agentgym.runs.files import read_json_lines
from agentgym.sinks import StepEpisodes
from agentgym.types import Episode, Group, Json, Task

LONG_S = 60.0


class Noted:
    """Writes down what it gets; waits at each step while `may` is not set; raises where `fails` says."""

    got: list[tuple[str, int]]
    threads: set[int]
    may: threading.Event
    fails: str
    error: Exception

    def __init__(self) -> None:
        self.got = self.got  # of its own test, however late its thread wakes

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        self._note("open", 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.may.wait(LONG_S)
        self._note("log", step)

    def log_group(self, step: int, group: Group) -> None:
        self._note("group", step)

    def close(self) -> None:
        self._note("close", 0)

    def _note(self, what: str, step: int) -> None:
        if what == self.fails:
            raise self.error
        self.got.append((what, step))
        self.threads.add(threading.get_ident())


class Other(Noted):
    got: list[tuple[str, int]]


class Table(Noted):
    """Gets episodes too."""

    episodes_share: object = 1.0
    played: list[StepEpisodes]

    def log_episodes(self, played: StepEpisodes) -> None:
        assert self.may.wait(LONG_S)
        self._note(played.source, played.step)
        self.played.append(played)


class Plugin:
    @hookimpl
    def sinks(self) -> dict[str, type]:
        return {"noted": Noted, "other": Other, "table": Table}


@pytest.fixture
def opening(lab):
    for sink in (Noted, Other, Table):
        sink.got, sink.threads, sink.may, sink.fails = [], set(), threading.Event(), ""
        sink.may.set()
        sink.error = OSError("no way")
    Table.played, Table.episodes_share = [], 1.0
    registry, numbers = PluginRegistry([]), itertools.count()
    registry.register(Plugin(), "ours")

    @asynccontextmanager
    async def opened(*words: str, for_episodes: bool = False) -> AsyncIterator[Sinks]:
        recipe = lab.recipe("env.name=math", "logging.episodes_every=2", *words)
        with closing(lab.new_run(recipe, f"run-{next(numbers)}")) as folder:
            settled = replace(settle_served(recipe), registry=registry)
            async with open_sinks(settled, folder.path, for_episodes=for_episodes) as sinks:
                yield sinks

    return opened


def group(number: int = 0) -> Group:
    task = Task(task_id="t", prompt=())
    return Group(group_id=number, task=task, start_version=0, episodes=[Episode(episode_id="e", task=task, seed=0)])


async def test_the_loop_goes_on_while_a_sink_is_slow_and_the_end_waits_for_it(opening) -> None:
    Noted.may.clear()
    async with opening("logging.sinks=[noted]") as sinks:
        for step in (1, 2, 3):
            sinks.log(step, {"loss": 1.0}, [group()])
        assert Noted.got == [("open", 0)]
        Noted.may.set()
    assert Noted.got == [("open", 0), ("log", 1), ("group", 2), ("log", 2), ("log", 3), ("close", 0)]
    assert len(Noted.threads) == 1 and threading.get_ident() not in Noted.threads


@pytest.mark.parametrize("how", ["raised", "hangs"])
async def test_a_sink_that_fails_is_named_once_and_left_out_and_the_others_go_on(opening, caplog, how: str) -> None:
    """One that hangs is still hanging when the run has ended."""
    Noted.fails = "log" if how == "raised" else ""
    words = ["logging.sink_timeout_s=1"] if how == "hangs" else []
    if how == "hangs":
        Noted.may.clear()
    async with opening("logging.sinks=[noted,other]", *words) as sinks:
        for step in (1, 2, 3):
            sinks.log(step, {})
    assert Other.got == [("open", 0), *(("log", step) for step in (1, 2, 3)), ("close", 0)]
    [warning] = caplog.messages
    assert f"the sink 'noted' {how}" in warning and "logging.sink_errors: end would end it" in warning
    if how == "raised":
        assert warning.startswith("step 1: ") and "OSError: no way, at " in warning and "in _note" in warning
        assert Noted.got == [("open", 0), ("close", 0)]  # it may have something to save
    Noted.may.set()


async def test_what_a_sink_raises_ends_the_run_where_the_recipe_says_so(opening) -> None:
    Noted.fails = "log"
    with pytest.raises(PluginError, match=r"the sink 'noted' raised OSError: no way"):
        async with opening("logging.sinks=[noted]", "logging.sink_errors=end") as sinks:
            sinks.log(1, {})
    assert Noted.got == [("open", 0), ("close", 0)]


async def test_a_sink_that_cannot_be_opened_is_named_before_the_run_starts(opening) -> None:
    Noted.fails = "open"
    with pytest.raises(PluginError, match=r"the sink 'noted' raised OSError: no way, at .* in _note"):
        async with opening("logging.sinks=[other,noted]"):
            pytest.fail("it was opened")
    assert Other.got == [("open", 0), ("close", 0)]
    Noted.error = UserError("install it")
    with pytest.raises(UserError, match=r"^install it$"):
        async with opening("logging.sinks=[noted]"):
            pytest.fail("it was opened")
    Table.episodes_share = 2
    with pytest.raises(PluginError, match=r"'table' raised ValueError: its `episodes_share` is 2; give a number above"):
        async with opening("logging.sinks=[table]"):
            pytest.fail("it was opened")


async def test_a_sink_gets_all_groups_of_a_step_and_evaluations_and_one_that_asks_for_none_makes_none(opening) -> None:
    async with opening("logging.sinks=[noted,table]") as sinks:
        sinks.log(1, {}, [group(1), group(2)], [group(3)])
        sinks.log_episodes(lambda: StepEpisodes(step=1, source="eval", groups=[group(0)]))
    assert Table.got == [("open", 0), ("train", 1), ("log", 1), ("eval", 1), ("close", 0)]
    assert [one.group_id for one in (*Table.played[0].groups, *Table.played[0].skipped)] == [1, 2, 3]
    async with opening("logging.sinks=[noted]") as sinks:
        assert not sinks.want_episodes
        sinks.log_episodes(lambda: pytest.fail("nobody asks"))
    Noted.got.clear()
    async with opening("logging.sinks=[noted,table]", for_episodes=True) as sinks:
        assert sinks.want_episodes and Noted.got == []
        while "sink-noted" in {thread.name for thread in threading.enumerate()}:
            await asyncio.sleep(0.01)


async def test_a_share_of_the_groups_is_about_that_and_the_same_ones_each_time(opening) -> None:
    Table.episodes_share = 0.25
    async with opening("logging.sinks=[table]") as sinks:
        for _ in range(2):
            sinks.log(1, {}, [group(n) for n in range(400)])
    first, again = ([one.group_id for one in played.groups] for played in Table.played)
    assert first == again and 70 < len(first) < 130


async def test_a_run_waits_for_a_sink_that_is_far_behind_with_episodes_and_names_it(opening, caplog) -> None:
    Table.may.clear()
    async with opening("logging.sinks=[table]") as sinks:
        for step in range(MAX_BEHIND):
            sinks.log(step, {}, [group()])
        await sinks.ready()
        assert not caplog.messages
        sinks.log(MAX_BEHIND, {}, [group()])
        waiting = asyncio.create_task(sinks.ready())
        await asyncio.sleep(0)
        assert not waiting.done()
        Table.may.set()
        await waiting
        assert ("train", 0) in Table.got
    [warning] = caplog.messages
    assert warning.startswith("the sink 'table' is") and "steps behind with its episodes" in warning


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of the sink in docs/metrics.md."""
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    [code] = [one for one in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "EpisodeTable" in one]
    (tmp_path / "table.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return "table.py:EpisodeTable"


def rows_of(folder: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "episodes.sqlite")) as found:
        return found.execute("SELECT source, step, episode, reward, tokens FROM episodes ORDER BY 1, 2, 3").fetchall()


@pytest.mark.hostile
async def test_the_documented_table_has_a_row_for_every_episode_that_the_run_saves(lab, table) -> None:
    words = ("env.name=math", "loop.steps=1", "loop.group_size=2", "eval.tasks=2", f"logging.sinks=[{table}]")
    with closing(lab.new_run(recipe := lab.recipe(*words))) as folder:
        await train(recipe, folder, lab.reporter())
        saved = [
            ("eval" if evaluation else "train", step, one.episode)
            for evaluation in (False, True)
            for step in folder.episode_steps(evaluation=evaluation)
            for one in folder.read_episodes(step, evaluation=evaluation)
        ]
        found = rows_of(folder.path)
    assert {row[:2] for row in found} == {("train", 1), ("eval", 0), ("eval", 1)}
    wanted = [(s, step, e.episode_id, e.reward, e.num_sampled_tokens) for s, step, e in saved]
    assert found == sorted(wanted, key=lambda row: row[:3])


async def test_the_documented_table_has_what_fine_tuning_imitates(lab, table) -> None:
    words = ("env.name=math", "sft.oracle_tasks=6", "sft.steps=2", "sft.batch_size=2", f"logging.sinks=[{table}]")
    recipe = finish_recipe(apply_overrides({}, [*words, lab.in_process, "eval.at_end=false"]), command="sft")[0]
    with closing(lab.new_run(recipe)) as folder:
        await train(recipe, folder, lab.reporter())
        kept = {row["name"]: sum(map(int, row["trained"])) for row in read_json_lines(folder.path / FILE)}
        found = rows_of(folder.path)
    assert [row[:2] for row in found] == [("sft", 1)] * 2 + [("sft", 2)] * 2
    assert all(reward is None and tokens == kept[name] for _, _, name, reward, tokens in found)
