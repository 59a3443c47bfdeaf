"""Prompts that cannot be played are refused before anything is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.run.gym import Gym, refuse_long_prompts
from agentgym.run.settle import settle_sampling

SOURCE = """
from agentgym import Environment, Task

class Long(Environment):
    rewards = {"success": 1.0}
    def tasks(self, split, seed=0):
        for number in range(100):
            words = "word " * (900 if (split, number) == ("SPLIT", 7) else 3)
            yield Task(task_id=f"{split}-{number}", prompt=({"role": "user", "content": words},), split=split)
"""


@pytest.mark.parametrize(
    ("long_in", "training", "refused"), [("train", True, True), ("train", False, False), ("test", False, True)]
)
async def test_a_task_that_does_not_fit_is_refused_by_name_with_what_to_set(
    lab, tmp_path: Path, long_in: str, training: bool, refused: bool
) -> None:
    (tmp_path / "long.py").write_text(SOURCE.replace("SPLIT", long_in))
    recipe = lab.recipe(f"env.name={tmp_path / 'long.py'}:Long", "eval.tasks=20")
    opening = Gym.open(settle_sampling(recipe, tmp_path, print), lab.reporter(), training=training)
    if not refused:
        await (await opening).close()
        return
    with pytest.raises(UserError) as error:
        await opening
    said = str(error.value)
    assert f"task '{long_in}-7'" in said and "rollout.max_episode_tokens is 512" in said
    assert "1 of the first" in said and "--trainer.seq_len 1024" in said


def test_a_dry_run_measures_prompts_too_where_the_tokenizer_is_here(lab, tmp_path: Path) -> None:
    registry = PluginRegistry.discover()
    for words, advice in (("1100", "the model has 1024 positions.* No setting helps"), ("900", "Give --rollout")):
        path = tmp_path / f"long{words}.py"
        path.write_text(SOURCE.replace("SPLIT", "train").replace("900", words))
        given = f"env.name={path}:Long"
        with pytest.raises(UserError, match=rf"task 'train-7' has a prompt of \d+ tokens.*{advice}") as error:
            refuse_long_prompts(lab.recipe(given, "eval.tasks=20", "generator.max_model_len=4000"), registry)
    lengths = [" ".join(one).replace(" ", "=") for one in re.findall(r"--(\S+) (\d+)", str(error.value))]
    fitting = ["rollout.max_episode_tokens=1024", "generator.max_model_len=1024", "trainer.seq_len=1024"]
    assert lengths == fitting  # and so of use for this model
    refuse_long_prompts(lab.recipe(given, "eval.tasks=20", *lengths), registry)
    with pytest.raises(UserError, match=r"give --generator.max_model_len 1024 --rollout.max_episode_tokens 1024"):
        refuse_long_prompts(lab.recipe(given, "eval.tasks=20", *lengths, "generator.max_model_len=4000"), registry)
    refuse_long_prompts(lab.recipe(given, "eval.tasks=20", "model.path=nobody/out-of-reach"), registry)
    served = lab.recipe(given, "eval.tasks=20", "model.path=openai:tester", *lengths, "rollout.max_turn_tokens=128")
    refuse_long_prompts(served, registry, here=False)  # without a tokenizer here
