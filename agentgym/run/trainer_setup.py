"""What a run's trainer is built from."""

from __future__ import annotations

from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder
from agentgym.text.tokenizer import read_template
from agentgym.trainer.setup import TrainerSetup


def trainer_setup(recipe: Recipe, folder: RunFolder, model_path: str, *, keep_logprobs: bool) -> TrainerSetup:
    """keep_logprobs: see TrainerSetup."""
    return TrainerSetup(
        model_path=model_path,
        trainer=recipe.trainer,
        optimizer=recipe.optimizer,
        loss=recipe.loss,
        total_steps=recipe.loop.steps,
        folder=str(folder.path / "trainer"),
        temperature=recipe.rollout.temperature,
        publish_dtype=recipe.generator.dtype,
        chat_template=read_template(recipe.model.chat_template),
        keep_logprobs=keep_logprobs,
        critic=recipe.advantage.needs_critic,
    )
