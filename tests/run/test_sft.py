"""Whole runs of supervised fine-tuning on the CPU, small ones."""

import asyncio
import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.loops.pieces import Pieces
from agentgym.models.tiny import policy_path
from agentgym.recipe import Recipe
from agentgym.run.checkpoints import Checkpoints
from agentgym.run.collecting import FILE, collect, load_lessons
from agentgym.run.demonstrations import Collection, read_file
from agentgym.run.layers import finish_recipe
from agentgym.run.resume import RunState
from agentgym.run.services import opened
from agentgym.run.settle import Settled
from agentgym.run.train import train
from agentgym.runs.curve import HELD_OUT
from agentgym.runs.evaluations import with_held_out
from agentgym.runs.folder import RunFolder
from agentgym.trainer.checkpoint import check
from agentgym.trainer.config import LoraConfig

pytestmark = pytest.mark.slow
ENV = f"{Path(__file__).parents[1] / 'data' / 'repeat_number.py'}:RepeatNumber"


def recipe(**config: object) -> Recipe:
    given = {
        "sft": {"steps": 6, "batch_size": 8, "checkpoint_every": 3, "keep_checkpoints": 0, "held_out_share": 0.1}
        | config,
        "eval": {"tasks": 4, "samples_per_task": 1, "at_end": "env" in config},
        "logging": {"sinks": []},
        "launcher": {"name": "in_process:InProcess"},
        "trainer": {"device": "cpu"},
        "generator": {"device": "cpu", "replicas": 1},
    }
    if env := given["sft"].pop("env", None):  # type: ignore[attr-defined]
        given["env"] = {"name": env}
    return finish_recipe(given)[0]


def new_run(root: Path, settings: Recipe) -> RunFolder:
    folder = RunFolder.create(root, "run")
    folder.save_config(to_mapping(settings))
    return folder


@pytest.fixture
def talks(tmp_path: Path) -> str:
    rows = [
        {"messages": [{"role": "user", "content": f"Repeat the number {n}."}, {"role": "assistant", "content": str(n)}]}
        for n in range(100, 140)
    ]
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "no messages"}]))
    return str(path)


@pytest.fixture
def begun(monkeypatch) -> list[int]:
    """The steps whose checkpoints were written while the next ones went on."""
    steps, begin = [], Checkpoints.begin

    async def counted(self, position):
        steps.append(position.step)
        await begin(self, position)

    monkeypatch.setattr(Checkpoints, "begin", counted)
    return steps


def test_a_run_learns_is_measured_and_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(
    make_lab, tmp_path, talks, begun
):
    settings, reporter = recipe(data=[talks], env=ENV), make_lab.reporter()
    folder = new_run(tmp_path, settings)
    result = asyncio.run(train(settings, folder, reporter))
    folder.close()
    rows = folder.read_metrics()
    losses = [row.metrics["sft/loss"] for row in rows]
    assert result.steps == 6 and len(rows) == 6 and losses[-1] < losses[0] / 2
    assert rows[0].metrics["train/lr"] == pytest.approx(rows[-1].metrics["train/lr"] / 5), (
        "it warms up over 5 of 6 steps"
    )
    assert [row.step for row in rows if "sft/held_out_loss" in row.metrics] == [3, 6]
    assert rows[-1].metrics["sft/held_out_loss"] < rows[2].metrics["sft/held_out_loss"]
    assert folder.checkpoint_steps() == [0, 3, 6] and begun == [3]
    assert any(f"{talks}: 40 conversations, 1 rows that can't be used" in note for note in reporter.notes)
    assert any("row 41: messages is missing" in note for note in reporter.notes)
    assert any("36 conversations of" in note and "4 more held out" in note for note in reporter.notes)

    assert result.first.num_tasks == result.last.num_tasks == 4 and result.difference is not None
    assert folder.load_comparison()["steps"] == 6
    assert [row.step for row in with_held_out(folder) if HELD_OUT in row.metrics] == [0, 6]

    Path(talks).unlink()  # the folder has them
    settings = replace(settings, eval=replace(settings.eval, at_end=False))
    settings = replace(settings, sft=replace(settings.sft, checkpoint_in_background=False, checkpoint_every=1))
    shutil.copytree(folder.path, tmp_path / "again")
    again = RunFolder.open(tmp_path / "again", for_writing=True)
    asyncio.run(train(settings, again, make_lab.reporter(), resume=True, from_step=3))
    again.close()
    repeated = [row.metrics["sft/loss"] for row in again.read_metrics()]
    assert repeated == losses and again.checkpoint_steps() == [0, 3, 4, 5, 6] and begun == [3]
    with pytest.raises(UserError, match=r"is done: it is at step 6 of 6"):
        asyncio.run(train(settings, again, make_lab.reporter(), resume=True))


async def test_a_run_that_is_asked_to_leave_saves_after_its_step(make_lab, tmp_path, talks):
    notice = asyncio.Event()
    notice.set()
    with RunFolder.create(tmp_path, "run") as folder:
        result = await train(recipe(data=[talks]), folder, make_lab.reporter(), notice=notice)
        assert (result.steps, result.stopped) == (1, "preempted; saved after step 1")
        assert folder.checkpoint_steps() == [0, 1] and RunState.from_mapping(folder.load_state()).position.step == 1


@pytest.mark.hostile
def test_the_evaluation_before_training_has_the_quantized_base(make_lab, tmp_path, talks):
    """A step with a rate of 0 changes nothing, so both evaluations sample with the same weights."""
    settings = recipe(data=[talks], env=ENV, steps=1)
    settings = replace(
        settings,
        model=replace(settings.model, quantize="nf4"),
        trainer=replace(settings.trainer, lora=LoraConfig(rank=4)),
        optimizer=replace(settings.optimizer, lr=0.0),
    )
    folder = new_run(tmp_path, settings)
    asyncio.run(train(settings, folder, make_lab.reporter()))
    folder.close()
    first, last = (
        [one.episode.turns[0].logprobs for one in folder.read_episodes(step, evaluation=True)] for step in (0, 1)
    )
    assert len(first) == 4
    for before, after in zip(first, last, strict=True):
        assert before == pytest.approx(after, abs=1e-5)


@pytest.mark.hostile
async def test_a_loop_that_does_not_wait_for_its_checkpoint_has_it_when_its_training_ends(make_lab, tmp_path, talks):
    settings, registry = recipe(data=[talks]), PluginRegistry.discover()
    with RunFolder.create(tmp_path, "run") as folder:
        opening = opened(settings, folder, make_lab.reporter(), registry, Pieces(), resume=False)
        async with opening as run, run.training() as trainer:
            await trainer.train_step(await run.dataset.sample(1))
            saved = await run.save(1, wait=False)
            assert run.state.position.step == 0
        assert run.state.position.step == 1 and folder.checkpoint_steps() == [0, 1]
        check(str(saved / "trainer"), str(run.settled.model), step=1)


def test_an_oracles_conversations_are_kept_with_the_tools_that_it_was_shown(make_lab, tmp_path):
    settings, reporter = recipe(oracle_tasks=10, env="tool_use"), make_lab.reporter()
    settings = replace(settings, trainer=replace(settings.trainer, seq_len=4096))
    folder = new_run(tmp_path, settings)
    settled = Settled(recipe=settings, registry=PluginRegistry.discover(), model_path=policy_path())
    lessons = asyncio.run(collect(settled, folder, reporter))
    folder.close()
    assert "tool_use: the oracle succeeds in 10 of 10 tasks; the full reward is 1" in reporter.notes
    assert (len(lessons.trained), len(lessons.held_out)) == (9, 1)
    assert load_lessons(folder) == lessons
    with gzip.open(folder.path / FILE, "rt") as file:
        rows = [json.loads(line) for line in file]
    assert all(row["tools"] and row["messages"][0]["role"] == "system" for row in rows)
    collection = Collection(max_skipped_share=0.0)
    (tmp_path / "again.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read_file(str(tmp_path / "again.jsonl"), collection)
    assert [list(one.demonstration.tools) for one in collection.found] == [row["tools"] for row in rows]


def test_too_many_faults_end_the_run_before_anything_is_trained(make_lab, tmp_path, talks):
    settings = recipe(data=[talks], max_skipped_share=0.0)
    folder = new_run(tmp_path, settings)
    with pytest.raises(UserError, match="1 of 41 conversations can't be used"):
        asyncio.run(train(settings, folder, make_lab.reporter()))
    folder.close()
    assert not folder.has_state
    long = replace(settings, trainer=replace(settings.trainer, seq_len=8), sft=replace(settings.sft, data=(talks,)))
    with pytest.raises(UserError, match=r"trainer\.seq_len is 8"):
        asyncio.run(train(replace(long, sft=replace(long.sft, max_skipped_share=0.5)), folder, make_lab.reporter()))
