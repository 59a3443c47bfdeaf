"""The advantages of a whole step: asks the models that they read, and gives the samples what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.rl.advantages import Advantage, StepBatch, TurnTokens
from agentgym.rl.advantages.assign import assign_batch
from agentgym.rl.samples import group_samples
from agentgym.rl.trained import columns_of, exact_by_turn, of_trained
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import BranchWeights
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.reference import ReferenceModel
from agentgym.types import Group, Sample


@dataclass(slots=True, kw_only=True)
class Credit:
    """teacher: None where the advantage names none."""

    advantage: Advantage
    teacher: ReferenceModel | None = None

    async def assign(
        self,
        groups: Sequence[Group],
        samples: list[Sample],
        *,
        trainer: TrainerClient,
        activity: Activity,
        branch_weights: BranchWeights = "tokens",
    ) -> list[Sample]:
        """samples: what `group_samples` made of the groups, with the reference's log-probabilities if there are some.

        The groups get their final advantages too. Samples come back as they are where the advantage has no `of_batch`.
        """
        advantage = self.advantage
        if type(advantage).of_batch is Advantage.of_batch:
            return samples

        def by_turn(columns: Sequence[Sequence[float]]) -> dict[str, TurnTokens]:
            return exact_by_turn(groups, of_trained(samples, columns))

        reference, teacher, values = dict[str, TurnTokens](), dict[str, TurnTokens](), dict[str, TurnTokens]()
        if advantage.needs_reference:
            reference = by_turn([sample.ref_logprobs for sample in samples])
        if self.teacher is not None:
            with activity.doing("teacher"):
                teacher = by_turn(await self.teacher.forward(samples, trained_only=True))
        if advantage.needs_critic:
            with activity.doing("critic"):
                values = by_turn(await trainer.call(TrainerActor.values, samples))
        batch = StepBatch(groups=groups, reference=reference, teacher=teacher, values=values)
        returns = assign_batch(batch, advantage)
        columns = columns_of(samples, groups, returns) if returns else [()] * len(samples)
        return [
            replace(new, ref_logprobs=old.ref_logprobs, returns=column)
            for new, old, column in zip(group_samples(groups, branch_weights), samples, columns, strict=True)
        ]
