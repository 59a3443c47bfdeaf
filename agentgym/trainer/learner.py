"""Groups in, an optimizer step out: the trainer, with the reference model where the loss needs one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agentgym.rl.samples import group_samples
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import BranchWeights
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.credit import Credit
from agentgym.trainer.reference import BaseOfTrainer, ReferenceModel
from agentgym.types import Group


class Sleeper(Protocol):
    """Generators on the trainer's GPU."""

    async def sleep(self) -> None:
        """Releases the memory that is not needed until the next update."""


@dataclass(slots=True, kw_only=True)
class TitanLearner:
    """What the loop trains with. reference: None for a loss without a reference model.

    sleeper: what sleeps from the beginning of a step until the weights that come of it are loaded.

    branch_weights: see RolloutConfig. credit: for advantages of whole steps; None leaves those of the groups.
    keep_logprobs: as in the trainer's setup. trained_logprobs: those of the last step, in order.
    """

    trainer: TrainerClient
    reference: ReferenceModel | BaseOfTrainer | None
    activity: Activity
    credit: Credit | None = None
    branch_weights: BranchWeights = "tokens"
    keep_logprobs: bool = False
    sleeper: Sleeper | None = None
    trained_logprobs: Sequence[float] = ()

    def ended(self, group: Group) -> None:
        """Models with processes of their own may score it while others are being sampled."""
        for model in self._scorers if group.has_signal else ():
            model.begin(group_samples([group], self.branch_weights))

    def skipped(self, groups: Sequence[Group]) -> None:
        """No step will train them."""
        for model in self._scorers:
            model.forget(group_samples([group for group in groups if group.has_signal], self.branch_weights))

    @property
    def _scorers(self) -> list[ReferenceModel]:
        found = (self.reference, self.credit.teacher if self.credit is not None else None)
        return [model for model in found if isinstance(model, ReferenceModel)]

    async def step(self, groups: list[Group]) -> dict[str, float]:
        samples = group_samples(groups, self.branch_weights)
        if self.sleeper is not None:
            with self.activity.doing("publish"):
                await self.sleeper.sleep()
        if self.reference is not None:
            with self.activity.doing("reference"):
                ref_logprobs = await self.reference.forward(samples, trained_only=True)
            samples = [
                replace(sample, ref_logprobs=logprobs) for sample, logprobs in zip(samples, ref_logprobs, strict=True)
            ]
        if self.credit is not None:
            samples = await self.credit.assign(
                groups, samples, trainer=self.trainer, activity=self.activity, branch_weights=self.branch_weights
            )
        with self.activity.doing("train"):
            metrics = await self.trainer.train_step(samples)
            if self.keep_logprobs:
                self.trained_logprobs = await self.trainer.call(TrainerActor.trained_logprobs)
            return metrics

    async def publish(self, version: int) -> None:
        with self.activity.doing("publish"):
            await self.trainer.push_weights(version)
            if self.reference is not None:
                await self.reference.follow(version)
            if self.sleeper is not None:  # its memory is wanted back
                await self.trainer.call_all(TrainerActor.release_memory)
