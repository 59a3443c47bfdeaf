"""The calls of a loop that score and train: rewards, reference model, trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgym.actors.runtime import by_value
from agentgym.errors import UserError
from agentgym.loops.rewards import RewardService
from agentgym.rl.advantages import Advantage, assign_advantages
from agentgym.rl.said import Said
from agentgym.rl.tensors import rows_as_samples, scores_as_tensor
from agentgym.rollout.scoring import Scorer
from agentgym.run.calls import Call
from agentgym.run.checkpoints import CheckpointWriter
from agentgym.run.sinks import Sinks
from agentgym.text.chat import ChatRenderer
from agentgym.trainer.actor import TrainerActor, TrainerStatus
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.learner import TitanLearner
from agentgym.trainer.reference import BaseOfTrainer, ReferenceModel
from agentgym.types import CUT, Episode, Group, Outcome, Sample, Task, Turn


class RewardCalls:
    """The recipe's rewards, for episodes that were not played here; `environment` scores its own.

    evaluate_response(prompt, response, target): the mean of the reward functions that were asked for; evaluate_each:
    what each of them gives, by its name.
    """

    def __init__(self, scorer: Scorer, responses: RewardService | None) -> None:
        self._responses = responses
        self.score = Call(scorer.score)
        self.score_group = Call(scorer.score_group)
        self.evaluate_response = Call(self._evaluate)
        self.evaluate_each = Call(self._evaluate_each)

    async def _evaluate(self, prompt: str, response: str, target: str) -> float:
        return await self._asked().evaluate_response(prompt, response, target)

    async def _evaluate_each(self, prompt: str, response: str, target: str) -> dict[str, float]:
        return await self._asked().evaluate_each(prompt, response, target)

    def _asked(self) -> RewardService:
        if self._responses is None:
            raise UserError(
                "no functions score a response: agentgym.services(recipe, pieces=Pieces(reward_functions=[...]))"
            )
        return self._responses


class ReferenceCalls:
    """The policy as it was at the start: forward(samples) gives each token's log-probability, [L] a sample.

    Of a tensor of rows, [B, L], forward(token_ids, num_given) gives a tensor [B, L - num_given]: those of the tokens
    after the first ones of each row.
    """

    def __init__(self, model: ReferenceModel | BaseOfTrainer) -> None:
        self._model = model
        self.forward = Call(self._forward)

    async def _forward(
        self, samples: Any, max_req_tokens: int = 0, trained_only: bool = False, return_logprobs: bool = True
    ) -> Any:
        if not hasattr(samples, "ndim"):
            return await self._model.forward(samples, trained_only)
        scores = await self._model.forward(rows_as_samples(samples, max_req_tokens), True)
        return scores_as_tensor(scores, max_req_tokens)


class StepMetrics(dict[str, float]):
    """The metrics of a training step; as text, and as a number, its loss."""

    @property
    def loss(self) -> float:
        return self["train/loss"]

    @property
    def metrics(self) -> dict[str, float]:
        return self

    def __float__(self) -> float:
        return self.loss

    def __format__(self, spec: str) -> str:
        return format(self.loss, spec) if spec else repr(self)


class TrainerCalls:
    """The trainer. train_step takes groups, or single episodes.

    It asks reference, teacher and critic where loss or advantage need them.

    With tensors of the loop's own, train_step(inputs, targets), it takes a dictionary with `tokens` and one with the
    other arguments of a loss over logits for each data-parallel rank; the loss is that of the pieces, or loss=.

    Those who do that themselves give samples to forward_backward, which adds their gradient, and call optimizer_step.
    A trainer that dies comes back as long as all steps were made by train_step.
    """

    def __init__(
        self,
        learner: TitanLearner,
        client: TrainerKeeper,
        checkpoints: CheckpointWriter,
        sinks: Sinks,
        advantage: Advantage,
        loss: Callable[..., Any] | None = None,
    ) -> None:
        self._advantage, self._loss = advantage, loss
        self._learner, self._client, self._checkpoints, self._sinks = learner, client, checkpoints, sinks
        self.train_step = Call(self._train_step)
        self.push_weights = Call(self._push_weights)
        self.forward_backward = Call(self._forward_backward)
        self.optimizer_step = Call(self._optimizer_step)
        self.clear_gradients = Call(self._clear_gradients)
        self.logprobs = Call(self._logprobs)
        self.get_status = Call(self._status)

    async def _train_step(
        self, groups: Sequence[Any], targets: Sequence[Any] | None = None, *, loss: Callable[..., Any] | None = None
    ) -> StepMetrics:
        await self._sinks.ready()
        if targets is None:
            metrics = await self._learner.step(as_groups(groups, self._advantage))
        elif (own := loss or self._loss) is None:
            raise UserError(
                "train_step(inputs, targets) needs a loss over logits: give loss=, or start the services with "
                "pieces=Pieces(loss=...)"
            )
        else:
            metrics = await self._client.call_unrecorded(TrainerActor.own_step, groups, targets, by_value(own))
        await self._checkpoints.settle()
        return StepMetrics(metrics)

    async def _push_weights(self, policy_version: int) -> None:
        await self._learner.publish(policy_version)

    async def _forward_backward(self, samples: Sequence[Sample]) -> dict[str, float]:
        return await self._client.call_unrecorded(TrainerActor.forward_backward, samples)

    async def _optimizer_step(self) -> dict[str, float]:
        return await self._client.call_unrecorded(TrainerActor.optimizer_step)

    async def _clear_gradients(self) -> None:
        await self._client.call_unrecorded(TrainerActor.clear_gradients)

    async def _logprobs(self, samples: Sequence[Sample], trained_only: bool = False) -> list[tuple[float, ...]]:
        return await self._client.call(TrainerActor.logprobs, samples, trained_only)

    async def _status(self) -> TrainerStatus:
        return await self._client.call(TrainerActor.get_status)


def as_groups(items: Sequence[Any], advantage: Advantage) -> list[Group]:
    """Groups as they are; single episodes as a group for each of their tasks, with advantages among themselves.

    Raises UserError for anything else.
    """
    of_tasks: dict[str, list[Episode]] = {}
    for one in items:
        if isinstance(one, Episode):
            of_tasks.setdefault(one.task.task_id, []).append(one)
        elif not isinstance(one, Group):
            what = type(one).__name__
            raise UserError(f"train_step got a {what}; give groups, episodes, or tensors: train_step(inputs, targets)")
    groups = [one for one in items if isinstance(one, Group)]
    for number, episodes in enumerate(of_tasks.values(), start=len(groups)):
        version = min(episode.min_version for episode in episodes)
        group = Group(group_id=number, task=episodes[0].task, start_version=version, episodes=episodes)
        assign_advantages(group, advantage)
        groups.append(group)
    return groups


def group_of(
    group_id: int,
    said: Sequence[Said],
    rewards: Sequence[float | Mapping[str, float]],
    renderer: ChatRenderer,
    *,
    masks_cut: bool,
) -> Group:
    """An episode for each completion. masks_cut: those that a limit cut are not trained on."""
    task = Task(task_id=f"group/{group_id}", prompt=())
    episodes = []
    for index, (one, reward) in enumerate(zip(said, rewards, strict=True)):
        episode = Episode(episode_id=f"{group_id}/{index}", task=task, seed=0, outcome=Outcome.SCORED)
        prompt = renderer.text(one.prompt_tokens)
        episode.messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": one.text}]
        masked = one.stop in CUT and masks_cut
        episode.stop, episode.turns = one.stop, [replace(Turn.of(one.prompt_tokens, one.completion), masked=masked)]
        named: Mapping[str, float] = reward if isinstance(reward, Mapping) else {"reward": reward}
        episode.rewards, episode.reward = {**named}, sum(named.values()) / len(named)
        episodes.append(episode)
    version = min(episode.min_version for episode in episodes)
    return Group(group_id=group_id, task=task, start_version=version, episodes=episodes)
