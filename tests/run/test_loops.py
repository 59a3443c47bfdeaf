"""A loop of one's own over the services trains as the built-in one does."""

from __future__ import annotations

import asyncio
import json
import runpy
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import pytest
from same_run import differences

import agentgym
from agentgym.cli.loops import run_loop
from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.loops.pieces import Pieces
from agentgym.run.calls import Call
from agentgym.run.layers import finish_recipe
from agentgym.run.train import train
from agentgym.runs.folder import RunFolder, RunStatus

ROOT = Path(__file__).parents[2]
SETTINGS = ["--env.name=math", "--env.options.levels=[1]", "--loop.max_staleness=0", "--generator.replicas=1"]
CONSTANT = ["optimizer.warmup_steps=0", "optimizer.decay_ratio=0"]  # the learning rate, whatever the number of steps


async def test_a_call_asks_one_or_all() -> None:
    async def one(word: str, times: int = 1) -> str:
        return word * times

    async def every(word: str, times: int = 1) -> list[str]:
        return [word * times, word]

    alone, replicated = Call(one), Call(one, every)
    for call in (alone, replicated):
        assert [await call("a", times=2), await call.route("a"), await call.call_one("b")] == ["aa", "a", "b"]
    assert await alone.fanout("a") == await alone.call_all("a") == ["a"]
    assert await replicated.fanout("a", 2) == await replicated.call_all("a", 2) == ["aa", "a"]


def test_a_program_of_ones_own_explains_itself_and_mistakes(capsys, tmp_path: Path) -> None:
    main = runpy.run_path(str(ROOT / "tests" / "data" / "smallest_loop.py"))["main"]
    assert run_loop(main, ["--help"]) == 0
    assert "give the generators the new weights" in capsys.readouterr().out
    assert run_loop(main, ["--loop.stepz=3"]) == 2
    assert "Did you mean 'loop.steps'" in capsys.readouterr().err
    assert run_loop(main, [*SETTINGS, "--dry-run", f"--logging.runs_dir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "Nothing was started" in said and not [*tmp_path.iterdir()]
    assert "goes to the run's folder, tensorboard" in said and "first and last checkpoint" not in said


@pytest.mark.slow
def test_apps_grpo_and_agentgym_train_give_the_same_run_bit_for_bit(lab, tmp_path: Path) -> None:
    """Asynchronous, and the one of apps/ with an interruption; both measure the last step, which eval_every names."""
    grpo, runs_dir = runpy.run_module("apps.grpo.main")["grpo"], f"logging.runs_dir={tmp_path / 'own'}"
    words = [
        *CONSTANT, "env.name=math", "env.options.levels=[1]", "loop.deterministic=true", "loop.groups_per_step=2",
        "loop.checkpoint_every=2", "loop.eval_every=3", "loop.eval_tasks=2", "eval.at_end=false", "optimizer.lr=1e-3",
        lab.in_process,
    ]  # fmt: skip
    recipe = lab.recipe(*words, "loop.steps=3")
    with closing(lab.new_run(recipe)) as built_in:
        asyncio.run(train(recipe, built_in, lab.reporter()))
    assert run_loop(grpo, [*lab.small, *words, "logging.sinks=[tensorboard]", "loop.steps=2", runs_dir]) == 0
    [path] = (tmp_path / "own").iterdir()
    own = RunFolder.open(path)
    assert own.status().status is RunStatus.DONE and own.checkpoint_steps() == [0, 2]
    assert run_loop(grpo, ["--resume", str(path), "loop.steps=3"]) == 0
    assert differences(built_in, own) == []
    rows = own.read_metrics()
    assert ["eval/success" in row.metrics for row in rows] == [False, False, True]
    assert own.episode_steps(evaluation=True) == built_in.episode_steps(evaluation=True) == [3]
    assert max(row.metrics["loop/staleness_max"] for row in rows) == 1, "it was asynchronous"
    assert len([*(path / "tensorboard").iterdir()]) == 2  # of each start
    assert all(row.metrics["time/train_s"] <= row.metrics["time/step_s"] for row in rows)


@pytest.mark.slow
@pytest.mark.hostile
def test_the_loop_of_apps_sft_trains_as_the_built_in_one_and_its_run_goes_on(lab, tmp_path: Path) -> None:
    main, talks = runpy.run_module("apps.sft.main")["sft"], tmp_path / "talks.jsonl"
    said = [
        [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": str(n)}] for n in range(100, 120)
    ]
    talks.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in said))
    words = [
        f"sft.data=[{talks}]",
        "sft.batch_size=4",
        "sft.checkpoint_every=2",
        "trainer.device=cpu",
        lab.in_process,
        *CONSTANT,
    ]
    settings = finish_recipe(apply_overrides({}, [*words, "sft.steps=3", "logging.sinks=[]"]))[0]
    with closing(lab.new_run(settings)) as built_in:
        asyncio.run(train(settings, built_in, lab.reporter()))
    given = [*words, "sft.steps=2", f"logging.runs_dir={tmp_path / 'own'}"]
    assert run_loop(main, given, command="sft") == 0
    [path] = (tmp_path / "own").iterdir()
    own = RunFolder.open(path)
    assert own.status().status is RunStatus.DONE and own.checkpoint_steps() == [0, 2]
    assert run_loop(main, ["--resume", str(path), "sft.steps=3"], command="sft") == 0
    assert own.checkpoint_steps() == [2, 3]
    keys = ("sft/loss", "sft/held_out_loss", "sft/epoch", "train/tokens", "train/grad_norm")
    losses, wanted = (
        [{key: row.metrics.get(key) for key in keys} for row in run.read_metrics()] for run in (own, built_in)
    )
    assert [row | {"sft/held_out_loss": None} for row in losses] == [
        row | {"sft/held_out_loss": None} for row in wanted
    ]
    assert losses[-1] == wanted[-1] and losses[-1]["sft/held_out_loss"], "to the last bit"


def test_a_loop_of_fine_tuning_explains_mistakes(capsys, tmp_path: Path) -> None:
    main = runpy.run_module("apps.sft.main")["sft"]
    assert run_loop(main, ["sft.stepz=3", "sft.oracle_tasks=3"], command="sft") == 2
    assert "Did you mean 'sft.steps'" in capsys.readouterr().err
    assert run_loop(main, ["sft.oracle_tasks=3", "--reward=a"], command="sft") == 2
    assert "Did you mean '--rewards" in capsys.readouterr().err
    with pytest.raises(UserError, match="pieces are for a loop that samples"):
        agentgym.services({"sft": {"data": ["a"]}}, pieces=Pieces())


def test_a_run_goes_on_by_its_own_config(capsys, tmp_path: Path) -> None:
    grpo = runpy.run_module("apps.grpo.main")["grpo"]
    with RunFolder.create(tmp_path, "earlier") as run:
        run.save_config({"env": {"name": "math"}, "loop": {"steps": 7, "max_staleness": 0}})
    shown = ["--resume", str(run.path), "--dry-run", "loop.groups_per_step=3"]
    assert run_loop(grpo, shown) == 0
    assert "7 steps of 3 groups of 8 episodes, synchronous" in capsys.readouterr().out
    assert run_loop(grpo, [*shown, "--env=math"]) == 2
    assert "--env can't be given with it" in capsys.readouterr().err
    assert run_loop(grpo, ["--resume", str(tmp_path / "gone")]) == 2
    smallest = runpy.run_path(str(ROOT / "tests" / "data" / "smallest_loop.py"))["main"]
    assert run_loop(smallest, ["--resume", str(run.path)]) == 2  # it says nothing of resume
    with pytest.raises(UserError, match="give one of the two"):
        asyncio.run(enter(agentgym.services({"env": "math"}, name="new", resume=run.path)))


async def enter(block: AbstractAsyncContextManager[object]) -> None:
    async with block:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [("dapo", "dapo"), ("ppo_minimal", "ppo")])
def test_the_other_loops_of_apps_train_and_measure(module: str, name: str, lab, tmp_path: Path) -> None:
    loop = runpy.run_module(f"apps.{module}.main")[name]
    words = [
        "--config",
        str(ROOT / "apps" / module / "math.yaml"),
        *(f"--{word}" for word in [*lab.small, lab.in_process]),
    ]
    assert run_loop(loop, [*words, *SETTINGS[1:], "--loop.steps=2", f"--logging.runs_dir={tmp_path}"]) == 0
    [path] = tmp_path.iterdir()
    run = RunFolder.open(path)
    assert [row.step for row in run.read_metrics()] == [1, 2] and run.checkpoint_steps() == [2]
    assert run.episode_steps(evaluation=True) == [0, 2]
    assert len((ROOT / "apps" / module / "main.py").read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.hostile
async def test_every_service_answers_under_each_of_its_names_and_what_the_loop_raises_ends_them(lab, tmp_path) -> None:
    given = [word.removeprefix("--") for word in SETTINGS]
    recipe = lab.recipe(
        *given, "launcher.name=local", "loss.kl_coef=0.1", "generator.replicas=2", f"logging.runs_dir={tmp_path}"
    )
    with pytest.raises(RuntimeError, match="mine"):
        async with agentgym.services(recipe, name="all") as services:
            task = await services.dataset.sample()
            group = await services.environment.play_group(task, 0, size=4)
            services.dataset.observe(group)
            assert len(group.episodes) == 4 and all(len(episode.turns) == 1 for episode in group.episodes)
            [said] = await services.generator.generate.route("1 + 1 =")
            assert said.text == services.gym.renderer.text(said.completion.completion_ids)
            assert len(await services.generator.generate("1 + 1 =", n=2)) == 2
            everywhere = await services.generator.generate.fanout("1 + 1 =", n=2)
            assert [len(answers) for answers in everywhere] == [2, 2]  # two answers of each of two replicas
            async with services.generator.session() as session:
                assert len(await session.generate("1 + 1 =")) == 1 and len(await session.generate("2 + 2 =", n=2)) == 2
            assert await services.generator.get_version.fanout() == [0]
            assert services.reference is not None and (await services.trainer.get_status()).step == 0
            raise RuntimeError("mine")
    status = RunFolder.open(tmp_path / "all").status()
    assert status.status is RunStatus.FAILED and "mine" in status.reason
    assert lab.processes(tmp_path / "all") == []
