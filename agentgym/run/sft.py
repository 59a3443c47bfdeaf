"""Supervised fine-tuning: collect demonstrations, train on them in the run's folder, measure before and after."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.run.collecting import load_lessons
from agentgym.run.ending import TrainResult, compare_ends
from agentgym.run.places import settle_places
from agentgym.run.resume import resumed_state, undo_later_steps
from agentgym.run.sft_services import DemonstrationCalls, SftServices, SftTrainerCalls, open_sft
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter


async def sft(
    recipe: Recipe,
    folder: RunFolder,
    reporter: Reporter,
    *,
    resume: bool = False,
    from_step: int | None = None,
    registry: PluginRegistry | None = None,
    notice: asyncio.Event | None = None,
) -> TrainResult:
    """Train to the last step; with an environment the first and the last weights play the same held-out tasks.

    from_step: where to resume; the newest whole checkpoint otherwise. notice: once it is set, the run saves after its
    step and ends. A resumed run goes on with the conversations
    that its folder holds. Raises UserError before anything is trained for what the user must fix; InfraError for
    what broke.
    """
    found = registry or PluginRegistry.discover(recipe.plugins.disabled)
    if resume:
        services = resumed(recipe, folder, reporter, found, from_step)
    else:
        services = await open_sft(recipe, folder, reporter, found)
    return await SftJob(services=services, notice=notice or asyncio.Event()).run()


def resumed(
    recipe: Recipe, folder: RunFolder, reporter: Reporter, registry: PluginRegistry, from_step: int | None
) -> SftServices:
    """With the conversations that the folder holds, at one of its checkpoints."""
    model_path = resolve_model(recipe.model.path, folder.path, random_weights=recipe.model.random_weights)
    recipe = settle_places(recipe, read_architecture(model_path), reporter.note)
    state = resumed_state(folder, model_path, from_step, reporter.note, recipe.trainer.lora)
    return SftServices(
        recipe=recipe,
        folder=folder,
        reporter=reporter,
        registry=registry,
        model_path=model_path,
        dataset=DemonstrationCalls(load_lessons(folder), recipe.fine_tuning),
        state=state,
    )


@dataclass(slots=True, kw_only=True)
class SftJob:
    """One run: a loop over its services, which can be told to leave."""

    services: SftServices
    notice: asyncio.Event

    @property
    def total(self) -> int:
        """Steps."""
        return self.services.dataset.num_steps

    async def run(self) -> TrainResult:
        services, state, folder = self.services, self.services.state, self.services.folder
        done = state.position.step if state.position is not None else 0
        measured = folder.load_comparison().get("steps") == done and done > 0
        if done > self.total or (done == self.total and (measured or not self.services.recipe.evaluates)):
            raise UserError(
                f"{folder.path} is done: it is at step {done} of {self.total}; raise sft.epochs or sft.steps to "
                "continue"
            )
        if state.position is not None:
            services.reporter.note(services.dataset.lessons.summary(services.recipe.fine_tuning, self.total))
            undo_later_steps(folder, state)
        elif self.services.recipe.evaluates:
            await services.evaluate(0)
        if trained := done < self.total:
            done = await self._train(done)
        if done < self.total:
            return TrainResult(
                run_dir=folder.path,
                steps=done,
                first=state.first_eval,
                last=None,
                difference=None,
                stopped=f"preempted; saved after step {done}",
            )
        if not self.services.recipe.evaluates:
            return TrainResult(run_dir=folder.path, steps=self.total, first=None, last=None, difference=None)
        last = await services.evaluate(self.total, resume=not trained)
        return compare_ends(folder, services.reporter, self.total, state.first_eval, last)

    async def _train(self, done: int) -> int:
        """The last step that was done, which is saved."""
        async with self.services.training() as trainer:
            for step in range(done + 1, self.total + 1):
                await self._step(trainer, step)
                if self.notice.is_set():
                    await self.services.save(step)
                    return step
        return self.total

    async def _step(self, trainer: SftTrainerCalls, step: int) -> None:
        services, config = self.services, self.services.recipe.fine_tuning
        metrics = await trainer.train_step(await services.dataset.sample(step))
        due = step == self.total or (config.checkpoint_every and step % config.checkpoint_every == 0)
        if due and services.dataset.lessons.held_out:
            metrics["sft/held_out_loss"] = await services.held_out_loss()
        services.record(step, metrics)
        if due:
            await services.save(step, wait=step == self.total or not config.checkpoint_in_background)
