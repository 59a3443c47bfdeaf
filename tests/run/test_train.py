"""Whole training runs on the CPU, small ones."""

import asyncio
import gc
import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentgym.errors import InfraError, UserError
from agentgym.evals.play import EvalResult
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.recipe import Recipe
from agentgym.rollout.garbage import THRESHOLDS
from agentgym.run.ending import TrainResult
from agentgym.run.evaluate import evaluate
from agentgym.run.settle import settle_sampling
from agentgym.run.train import train
from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import Steering
from agentgym.types import Json

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def trained_episodes(folder: RunFolder) -> list[str]:
    return [
        saved.episode.episode_id
        for step in folder.episode_steps()
        for saved in folder.read_episodes(step)
        if saved.trained
    ]


def leftovers(lab, folder: RunFolder) -> list[object]:
    shared = [path for path in Path("/dev/shm").glob("agentgym-*") if path.name.endswith(f"-{os.getpid()}")]
    return [*lab.processes(folder.path), *shared]


@dataclass(frozen=True)
class Finished:
    """A run that ended; tests that go on with it take a copy."""

    recipe: Recipe
    folder: RunFolder
    result: TrainResult
    metrics: list[Mapping[str, float]]
    searches: list[tuple[int, int, int]]  # of the garbage collector: its thresholds before, at each step, after

    def copy(self, place: Path) -> RunFolder:
        shutil.copytree(self.folder.path, place / "run")
        return RunFolder.open(place / "run", for_writing=True)

    def longer(self, steps: int) -> Recipe:
        """With fewer parts, which do not change what is resumed."""
        loop, logging = replace(self.recipe.loop, steps=steps), replace(self.recipe.logging, sinks=())
        recipe = replace(self.recipe, loop=loop, logging=logging)
        generator, loss = replace(recipe.generator, replicas=1), replace(recipe.loss, kl_coef=0.0)
        return replace(recipe, generator=generator, loss=loss)


class Noted:
    """A sink that remembers what it got."""

    rows: list[tuple[int, Mapping[str, float]]] = []

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        self.rows.clear()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((step, metrics))

    def close(self) -> None:
        self.rows.append((0, {}))


class Plugin:
    @hookimpl
    def sinks(self) -> dict[str, type]:
        return {"noted": Noted}


@pytest.fixture(scope="module")
def finished(make_lab, tmp_path_factory) -> Finished:
    """A run with settings that differ from their defaults wherever a part reads them."""
    lab = make_lab(tmp_path_factory.mktemp("finished"))
    registry = PluginRegistry.discover([])
    registry.register(Plugin(), "ours")
    recipe = lab.recipe(
        "loop.steps=4",
        "loop.max_staleness=0",
        "loop.deterministic=true",
        "task_sampler={name: learnable, candidates: 3}",
        "loop.eval_every=2",
        "loop.eval_tasks=3",
        "loop.check_sync_every=3",
        "loop.checkpoint_every=2",
        "rollout.temperature=0.7",
        "rewards={success: 2.0, tests_passed: 0.25}",
        "loss.kl_coef=0.01",
        "optimizer.lr=1e-3",
        "optimizer.warmup_steps=2",
        "generator.replicas=2",
        "generator.max_batch=5",
        "logging.sinks=[noted]",
    )
    searches = [gc.get_threshold()]
    folder, reporter = lab.new_run(recipe), lab.reporter(on_step=lambda step: searches.append(gc.get_threshold()))
    result = asyncio.run(train(recipe, folder, reporter, registry=registry))
    folder.close()
    searches.append(gc.get_threshold())
    return Finished(recipe, folder, result, reporter.metrics, searches)


def test_a_run_trains_saves_measures_and_tells_its_sinks(finished):
    before, *during, after = finished.searches
    assert during == [THRESHOLDS] * 4 and after == before != THRESHOLDS
    folder, first, last = finished.folder, finished.metrics[0], finished.metrics[-1]
    rows = folder.read_metrics()
    assert [row.step for row in rows] == [1, 2, 3, 4]
    assert Noted.rows == [*((row.step, row.metrics) for row in rows), (0, {})] and rows[0].metrics == first
    assert finished.result.first.num_episodes == finished.result.last.num_episodes == 6
    assert folder.checkpoint_steps() == [0, 2, 4]
    assert folder.load_sandbox()["backend"] == "monty"
    calls = sum(metrics["sandbox/calls"] for metrics in finished.metrics[1:])
    assert last["sandbox/calls_total"] - first["sandbox/calls_total"] == calls > 0


def test_held_out_tasks_are_played_after_the_steps_that_the_recipe_names(finished):
    assert finished.folder.episode_steps(evaluation=True) == [0, 2, 4]
    assert ["eval/success" in metrics for metrics in finished.metrics] == [False, True, False, False]
    played = [one.episode for one in finished.folder.read_episodes(2, evaluation=True)]
    assert len(played) == 3 and {episode.min_version for episode in played} == {2}
    assert finished.metrics[1]["eval/success"] == pytest.approx(sum(episode.success for episode in played) / 3)


def test_each_update_gives_the_generators_the_weights_that_were_trained(finished):
    """At the temperature of the sampler, and with every replica."""
    assert [metrics["mismatch/fresh_share"] for metrics in finished.metrics] == [1.0] * 4
    assert max(metrics["train/mismatch_fresh_max"] for metrics in finished.metrics) < 1e-4
    checked = [metrics.get("sync/mismatch_max") for metrics in finished.metrics]
    assert checked[:2] == [None] * 2 and checked[2] < 1e-4 and checked[3] is None
    assert 10 <= finished.metrics[-1]["generator/slots"] <= 50, "five for each replica and version that it holds"


def test_the_reference_stays_the_policy_of_the_start(finished):
    first, *later = (metrics["train/kl_ref"] for metrics in finished.metrics)
    assert first == pytest.approx(0, abs=1e-6) and min(later) > 1e-5
    assert [metrics["train/lr"] for metrics in finished.metrics] == pytest.approx([5e-4, 1e-3, 1e-3, 1e-3])


def test_an_episode_earns_the_weighted_sum_of_its_rewards(finished):
    saved = [one.episode for step in finished.folder.episode_steps() for one in finished.folder.read_episodes(step)]
    assert any(0 < episode.rewards["tests_passed"] < 1 for episode in saved)
    for episode in saved:
        assert episode.reward == 2 * episode.rewards["success"] + episode.rewards["tests_passed"] / 4


@pytest.mark.hostile
def test_a_run_with_nothing_left_to_learn_ends_well_and_shows_why(lab, monkeypatch):
    """Also where its generators lag: they get the last weights before those are measured."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from arm import lag_behind

    def solved_from_group_6_on(loop):
        lag_behind(loop, 1)

        async def play(task, group_id, rollout=loop.rollout):
            group = await rollout(task, group_id)
            signal = [1.0] + [-1.0] * (len(group.episodes) - 1) if group_id < 6 else [0.0] * len(group.episodes)
            group.advantages = signal
            return group

        loop.rollout = play

    held_back = ("weights.keep=3", "loop.check_sync_every=0")
    recipe = lab.recipe(
        "launcher.name=local", "loop.steps=50", "loop.max_refills=1", "loop.checkpoint_every=0", *held_back
    )
    folder, reporter = lab.new_run(recipe), lab.reporter()
    result = asyncio.run(train(recipe, folder, reporter, change_loop=solved_from_group_6_on))
    folder.close()
    assert result.nothing_left.startswith("nothing is left to learn")
    assert f"step 3: {result.nothing_left}" in reporter.notes
    assert (result.steps, result.last.checkpoint, result.last.num_episodes) == (2, "step-000002", 6)
    assert result.difference is not None
    assert {one.episode.min_version for one in folder.read_episodes(2, evaluation=True)} == {2}
    assert folder.checkpoint_steps() == [0, 2] and folder.load_state()["position"] == {
        "step": 2,
        "next_group": 9,
        "tasks": None,
        "versions": [],
    }
    saved = list(folder.read_episodes(3))
    assert {one.group_id for one in saved} == {6, 7, 8} and not any(one.trained for one in saved)
    assert leftovers(lab, folder) == []


def test_the_last_checkpoint_evaluates_as_the_run_reported(lab, finished):
    model = replace(finished.recipe.model, path=str(finished.folder.checkpoint_dir(4)))
    recipe = replace(finished.longer(4), model=model)
    played = recipe.eval.tasks  # all that this test split has
    env = replace(recipe.env, options={**recipe.env.options, "test_tasks": played})
    recipe = replace(recipe, env=env, eval=replace(recipe.eval, tasks=played + 3))
    reporter = lab.reporter()
    with lab.new_run(recipe, "again") as folder:
        again = asyncio.run(evaluate(settle_sampling(recipe, folder.path, print), folder, reporter))
    assert again.by_task == finished.result.last.by_task
    assert (again.num_tasks, again.num_asked, finished.result.last.num_asked) == (played, played + 3, 0)
    assert f"{played} tasks, not {played + 3}: the test split has no more" in reporter.notes
    assert [one.episode.success for one in folder.read_episodes(0, evaluation=True)] == [x for [x] in again.by_task]
    assert again.sandbox == "monty" and again.sandbox_metrics["sandbox/calls"] >= again.num_episodes


@pytest.mark.hostile
def test_kill_9_of_a_generator_is_survived_and_no_episode_is_trained_twice(lab):
    more = ("generator.replicas=2", "loop.steps=60", "loop.checkpoint_every=0", "loop.check_sync_every=1")
    recipe = lab.recipe("launcher.name=local", "eval.at_end=false", *more)
    folder = lab.new_run(recipe)
    killed: list[int] = []

    def kill(step: int) -> None:
        if step == 2:
            victim = lab.processes(folder.path, "generator0")[0]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)
        elif killed:
            last = reporter.metrics[-1]
            if last["generator/respawns_total"] == 1 and last["generator/replicas_up"] == 2:
                Steering(folder.path).ask("stop")
            else:
                time.sleep(1)  # the run must not end before it has started again, however slowly

    reporter = lab.reporter(on_step=kill)
    asyncio.run(train(recipe, folder, reporter))
    folder.close()
    assert killed
    assert 3 <= len(reporter.metrics) < 60
    last = reporter.metrics[-1]
    assert last["generator/respawns_total"] == 1
    assert last["generator/replicas_up"] == 2
    assert last["rollout/infra_errors"] == 0
    assert all(metrics["sync/mismatch_max"] < 1e-4 for metrics in reporter.metrics)
    trained = trained_episodes(folder)
    assert len(trained) == len(set(trained)) > 0
    assert leftovers(lab, folder) == []


def test_a_resumed_run_continues_from_its_checkpoint(lab, finished, tmp_path):
    folder = finished.copy(tmp_path)
    longer = finished.longer(6)
    reporter = lab.reporter()
    second = asyncio.run(train(longer, folder, reporter, resume=True))
    folder.close()
    assert [row.step for row in folder.read_metrics()] == [1, 2, 3, 4, 5, 6]
    assert len(reporter.metrics) == 2
    assert second.first == finished.result.first
    trained = trained_episodes(folder)
    assert len(trained) == len(set(trained))
    groups = sorted({int(episode.split("-")[0][1:]) for episode in trained})
    skipped = {s.group_id for step in folder.episode_steps() for s in folder.read_episodes(step) if not s.trained}
    assert sorted({*groups, *skipped}) == list(range(max(groups) + 1))


def test_a_run_that_goes_on_from_a_checkpoint_takes_the_steps_that_it_took_before(lab, finished, tmp_path):
    """Weights, the optimizer's state, tasks and seeds are those of the checkpoint: not one bit differs."""
    folder, reporter = finished.copy(tmp_path), lab.reporter()
    recipe = replace(finished.recipe, logging=replace(finished.recipe.logging, sinks=()))
    recipe = replace(recipe, loop=replace(recipe.loop, eval_every=0), eval=replace(recipe.eval, at_end=False))
    with folder:
        asyncio.run(train(recipe, folder, reporter, resume=True, from_step=2))
    assert len(reporter.metrics) == 2
    for again, before in zip(reporter.metrics, finished.metrics[2:], strict=True):
        same = [name for name in before if name.startswith(("train/", "rollout/", "reward/")) and "time" not in name]
        assert len(same) > 20 and {name: again[name] for name in same} == {name: before[name] for name in same}


@pytest.mark.hostile
def test_a_run_that_was_stopped_in_its_last_evaluation_only_evaluates_when_it_is_resumed(lab, finished, tmp_path):
    def stop(text: str) -> None:
        if text.startswith("1 of 6 episodes"):
            raise InfraError("stopped")

    folder = finished.copy(tmp_path)
    longer = finished.longer(5)
    with pytest.raises(ExceptionGroup):
        asyncio.run(train(longer, folder, lab.reporter(on_phase=stop), resume=True))
    before = {one.episode.episode_id: one.episode for one in folder.read_episodes(5, evaluation=True)}
    assert 1 <= len(before) < 6 and folder.load_comparison()["steps"] == 4  # others may end before they are stopped

    reporter = lab.reporter(on_step=lambda step: pytest.fail("it trained"))
    result = asyncio.run(train(longer, folder, reporter, resume=True))
    assert f"{len(before)} of 6 episodes were played before" in reporter.notes
    after = {one.episode.episode_id: one.episode for one in folder.read_episodes(5, evaluation=True)}
    assert len(after) == result.last.num_episodes == 6 and before.items() <= after.items()
    assert result.first == finished.result.first and result.difference.num_tasks == 6
    comparison = folder.load_comparison()
    assert comparison["steps"] == 5 and EvalResult.from_mapping(comparison["last"]) == result.last
    with pytest.raises(UserError, match="is done: it is at step 5 of 5"):
        asyncio.run(train(longer, folder, reporter, resume=True))
    other = replace(longer, eval=replace(longer.eval, seed=7))
    (folder.path / "comparison.json").unlink()
    with_other_seeds = asyncio.run(train(other, folder, reporter, resume=True))
    folder.close()
    assert with_other_seeds.difference is None and with_other_seeds.last.num_episodes == 6
    assert leftovers(lab, folder) == []


def test_a_run_without_a_whole_checkpoint_is_refused_before_anything_starts(lab, finished, tmp_path):
    folder = finished.copy(tmp_path)
    for step in folder.checkpoint_steps():
        largest = max(folder.checkpoint_dir(step).joinpath("trainer").rglob("*"), key=lambda p: p.stat().st_size)
        largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    longer = finished.longer(5)
    reporter = lab.reporter(on_step=lambda step: pytest.fail("it trained"))
    with pytest.raises(UserError, match="checkpoint"):
        asyncio.run(train(longer, folder, reporter, resume=True))
    folder.close()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("env.name=code_exek", "code_exec"),
        ("rewards={sucess: 1}", "success"),
        ("sandbox.name=dokker", "docker"),
        ("env.options={max_dificulty: 2}", "max_difficulty"),
        ("model.path=./nowhere", "nowhere"),
        ("rollout.max_episode_tokens=4096", "would not fit"),
        ("rollout.top_p=0.9", "two different distributions"),
    ],
)
def test_a_mistake_in_the_recipe_is_refused_before_anything_starts(lab, override, says):
    recipe = lab.recipe(override)
    folder = lab.new_run(recipe)
    with pytest.raises(UserError, match=says):
        asyncio.run(train(recipe, folder, lab.reporter()))
    folder.close()
    assert lab.processes(folder.path) == []


@pytest.mark.hostile
def test_a_run_does_between_two_steps_what_it_was_asked_to_and_goes_on_where_it_stopped(lab):
    recipe = lab.recipe("loop.steps=4", "loop.checkpoint_every=0", "eval.at_end=false", "loop.eval_tasks=3")
    folder = lab.new_run(recipe)
    asked = Steering(folder.path)
    wishes = {1: ["evaluate", "checkpoint"], 2: ["stop", "checkpoint"]}
    reporter = lab.reporter(on_step=lambda step: [asked.ask(action) for action in wishes.get(step, [])])
    first = asyncio.run(train(recipe, folder, reporter))
    assert (first.steps, first.stopped) == (2, "stopped after step 2, as it was asked to")
    assert folder.checkpoint_steps() == [0, 1, 2] and folder.episode_steps(evaluation=True) == [1]
    answers = [(one.action, one.state, one.step, one.text) for one in asked.read()]
    assert answers == [
        ("evaluate", "applied", 1, ""), ("checkpoint", "applied", 1, ""), ("stop", "applied", 2, ""),
        ("checkpoint", "applied", 2, "it was there already"),
    ]  # fmt: skip
    second = asyncio.run(train(recipe, folder, lab.reporter(), resume=True))
    folder.close()
    assert (second.steps, second.stopped) == (4, "")
    assert [row.step for row in folder.read_metrics()] == [1, 2, 3, 4]
    trained = trained_episodes(folder)
    assert len(trained) == len(set(trained)) > 0
