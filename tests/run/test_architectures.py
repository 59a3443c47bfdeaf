"""A model that no engine of the trainer computes, nor the native one."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest
from plain_model import make_model

from agentgym.errors import UserError
from agentgym.models.tiny import policy_path
from agentgym.rl.sft_config import SftConfig
from agentgym.run.evaluate import evaluate
from agentgym.run.settle import settle_sampling
from agentgym.run.train import train

pytestmark = pytest.mark.slow


@pytest.fixture
def recipe(lab, tmp_path):
    folder = make_model(tmp_path / "gpt2", seed=0, family="gpt2", vocab_size=1280).folder
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(policy_path() / name, folder / name)
    lengths = ("rollout.max_turn_tokens=8", "generator.replicas=1", "generator.device=cpu", "trainer.device=cpu")
    return lab.recipe(f"model.path={folder}", "env.name=math", "eval.tasks=2", *lengths)


def test_it_is_evaluated_by_the_slow_engine_which_says_so(lab, recipe):
    folder, reporter = lab.new_run(recipe), lab.reporter()
    result = asyncio.run(evaluate(settle_sampling(recipe, folder.path, reporter.note), folder, reporter))
    folder.close()
    assert result.num_episodes == 2
    assert any("the generator engine is transformers, which is slow" in note for note in reporter.notes)
    turns = [turn for saved in folder.read_episodes(0, evaluation=True) for turn in saved.episode.turns]
    assert len(turns) == 2 and all(0 < len(turn.completion_ids) <= 8 for turn in turns)


@pytest.mark.parametrize("sft", [None, SftConfig(data=("unread.jsonl",))], ids=["train", "sft"])
def test_training_it_is_refused_before_anything_starts(lab, recipe, sft):
    folder = lab.new_run(recipe)
    given = replace(recipe, sft=sft)
    with pytest.raises(UserError, match=r"a gpt2 can't be trained.*generator\.engine=transformers"):
        asyncio.run(train(given, folder, lab.reporter()))
    folder.close()
    assert not list((folder.path / "logs").glob("*"))
