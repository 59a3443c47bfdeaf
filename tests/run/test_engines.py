"""Each setting of a recipe reaches the part that reads it."""

from __future__ import annotations

from pathlib import Path

from agentgym.config import apply_overrides
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.rl.losses.grpo import Grpo
from agentgym.run.engines import trainer_setup
from agentgym.run.layers import finish_recipe
from agentgym.text.tokenizer import TEMPLATES
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup


def test_a_trainer_is_built_from_the_settings_of_its_recipe(tmp_path: Path) -> None:
    given = {
        "rollout.temperature": 0.7, "generator.dtype": "bfloat16", "model.chat_template": "builtin:plain",
        "loop.steps": 7, "advantage.name": "gae_tokens", "loss.kl_coef": 0.25, "optimizer.lr": 0.125,
        "trainer.seq_len": 4096,
    }  # fmt: skip
    recipe, _ = finish_recipe(apply_overrides({}, [f"{name}={value}" for name, value in given.items()]))
    assert (recipe.loss, recipe.optimizer.lr, recipe.trainer.seq_len) == (Grpo(kl_coef=0.25), 0.125, 4096)
    assert OptimizerConfig() != recipe.optimizer and TrainerConfig() != recipe.trainer
    assert trainer_setup(recipe, tmp_path / "model", tmp_path / "titan", keep_logprobs=True) == TrainerSetup(
        model_path=str(tmp_path / "model"),
        trainer=recipe.trainer,
        optimizer=recipe.optimizer,
        loss=recipe.loss,
        total_steps=7,
        folder=str(tmp_path / "titan"),
        temperature=0.7,
        publish_dtype="bfloat16",
        chat_template=TEMPLATES["builtin:plain"],
        keep_logprobs=True,
        critic=True,
    )


def test_the_trainer_of_fine_tuning_takes_the_steps_it_is_given_and_no_samplers_temperature(tmp_path: Path) -> None:
    given = ["sft.data=[talks.jsonl]", "sft.steps=3", "rollout.temperature=0.7", "model.chat_template=builtin:plain"]
    setup = trainer_setup(finish_recipe(apply_overrides({}, given))[0], tmp_path, tmp_path, steps=9)
    assert (setup.total_steps, setup.temperature) == (9, 1.0)
    assert setup.loss == CrossEntropy() and setup.chat_template == TEMPLATES["builtin:plain"]
