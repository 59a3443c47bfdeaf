"""A program in the form of torchforge's documents: its actors, its dictionaries of tensors, its loops and its loss.

Written anew with their constructs. What it imports is ours, and generator, trainer and reference are those of
`agentgym.services`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from agentgym import Reduce, record_metric
from agentgym.actors.actor import ServiceActor as ForgeActor
from agentgym.actors.endpoint import endpoint
from agentgym.rl.losses.ops import compute_logprobs
from agentgym.rl.said import Said as Completion


@dataclass
class Episode:
    episode_id: str
    pad_id: int
    request_len: int
    response_len: int
    target: Any | None = None
    completion: Completion | None = None
    ref_logprobs: torch.Tensor | None = None
    reward: float | None = None
    advantage: float | None = None

    @property
    def policy_version(self) -> int | None:
        return self.completion.generator_version

    @property
    def request_tensor(self) -> torch.Tensor:
        tensor: torch.Tensor = self.completion.prompt_ids.to(torch.long)
        if tensor.shape[0] < self.request_len:  # from the left
            tensor = F.pad(tensor, (self.request_len - tensor.shape[0], 0), value=self.pad_id)
        return tensor

    @property
    def response_tensor(self) -> torch.Tensor:
        tensor: torch.Tensor = self.completion.token_ids.to(torch.long)
        if tensor.shape[0] < self.response_len:  # from the right
            tensor = F.pad(tensor, (0, self.response_len - tensor.shape[0]), value=self.pad_id)
        return tensor


Group = list[Episode]


def collate(batches: list[Group]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    inputs, targets = [], []
    for batch in batches:
        request = torch.stack([e.request_tensor for e in batch])
        response = torch.stack([e.response_tensor for e in batch])
        ref_logprobs = torch.stack([e.ref_logprobs for e in batch]).squeeze()
        advantages = torch.tensor([e.advantage for e in batch]).unsqueeze(-1)
        inputs.append({"tokens": torch.cat([request, response], dim=1)})
        targets.append(
            {
                "response": response,
                "ref_logprobs": ref_logprobs,
                "advantages": advantages,
                "padding_mask": response != batch[0].pad_id,
            }
        )
    return inputs, targets


def simple_grpo_loss(
    logits: torch.Tensor,
    response: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    padding_mask: torch.Tensor,
    beta: float = 0.1,
) -> torch.Tensor:
    logprobs: torch.Tensor = compute_logprobs(logits, response)
    kl = torch.exp(ref_logprobs - logprobs) - (ref_logprobs - logprobs) - 1
    gained = torch.exp(logprobs - logprobs.detach()) * advantages
    of_tokens = -(gained - beta * kl)
    return ((of_tokens * padding_mask).sum(dim=1) / padding_mask.sum(dim=1).clamp(min=1.0)).mean()


class ShortAnswer:
    def __call__(self, prompt: str, response: str, target: str) -> float:
        return float(response.strip() == target)


def any_digit(prompt: str, response: str, target: str) -> float:
    return float(any(one.isdigit() for one in response))


@dataclass
class RewardActor(ForgeActor):
    reward_functions: list[Callable]

    @endpoint
    async def evaluate_response(self, prompt: str, response: str, target: str) -> float:
        total_rewards = 0.0
        for reward_fn in self.reward_functions:
            reward = reward_fn(prompt, response, target)
            total_rewards += reward
            name = getattr(reward_fn, "__name__", reward_fn.__class__.__name__)
            record_metric(f"reward/evaluate_response/avg_{name}_reward", reward, Reduce.MEAN)
            record_metric(f"reward/evaluate_response/count_{name}_calls", 1, Reduce.SUM)
        return total_rewards / len(self.reward_functions)


@dataclass
class ComputeAdvantages(ForgeActor):
    @endpoint
    async def compute(self, group: Group) -> list[float]:
        rewards = torch.tensor([[e.reward for e in group]])
        mean = rewards.mean(1, keepdim=True)
        std = rewards.std(1, keepdim=True)
        return ((rewards - mean) / (std + 1e-4)).squeeze(0).tolist()


@dataclass
class DatasetActor(ForgeActor):
    model: str
    size: int = 1000

    @endpoint
    async def setup(self) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(self.model)
        self._iterator = iter(range(self.size))

    @endpoint
    async def sample(self) -> dict[str, str] | None:
        try:
            number = next(self._iterator)
        except StopIteration:
            return None
        record_metric("dataset/sample/count_samples_generated", 1, Reduce.SUM)
        as_chat = [{"role": "user", "content": f"{number % 7} + 1 ="}]
        request = self._tokenizer.apply_chat_template(as_chat, tokenize=False, add_generation_prompt=True)
        return {"request": request, "target": str(number % 7 + 1)}

    @endpoint
    async def pad_token(self) -> int:
        found = self._tokenizer.pad_token_id
        return self._tokenizer.eos_token_id if found is None else found


class Pairs(DatasetActor):
    @endpoint
    async def sample(self) -> tuple[str, str]:
        return "1 + 1 =", "2"


@dataclass
class Scored:
    prompt_ids: torch.Tensor
    response_ids: torch.Tensor
    reward: float


async def generate_episode(dataloader: Any, policy: Any, reward: Any, replay_buffer: Any) -> None:
    prompt, target = await dataloader.sample.route()
    response = await policy.generate.route(prompt)
    reward_value = await reward.evaluate_response.route(prompt=prompt, response=response.text, target=target)
    await replay_buffer.add.route(
        Scored(prompt_ids=response.prompt_ids, response_ids=response.token_ids, reward=reward_value)
    )


async def multi_turn(policy: Any, question: str) -> str:
    async with policy.session():
        first = await policy.generate.route(prompt=question)
        full_prompt = question + first[0].text
        second = await policy.generate.route(prompt=full_prompt)
    return full_prompt + second[0].text


async def grpo(
    *,
    dataloader: Any,
    policy: Any,
    trainer: Any,
    replay_buffer: Any,
    compute_advantages: Any,
    ref_model: Any,
    reward_actor: Any,
    group_size: int,
    max_req_tokens: int,
    max_res_tokens: int,
    max_steps: int,
    flush: Callable[[int, Any], None],
) -> list[float]:
    """Rollouts and training side by side; returns each step's loss."""
    shutdown_event, losses = asyncio.Event(), []

    async def continuous_rollouts() -> None:
        pad_id = await dataloader.pad_token.call_one()
        while not shutdown_event.is_set():
            sample = await dataloader.sample.call_one()
            if sample is None:
                return
            prompt, target = sample["request"], sample["target"]
            responses: list[Completion] = await policy.generate.route(prompt)
            episodes = []
            input_ids = torch.ones((group_size, max_req_tokens + max_res_tokens), dtype=torch.long)
            for i, response in enumerate(responses):
                episode = Episode(
                    episode_id=str(uuid.uuid4()),
                    pad_id=pad_id,
                    request_len=max_req_tokens,
                    response_len=max_res_tokens,
                    target=target,
                    completion=response,
                )
                episode.reward = await reward_actor.evaluate_response.route(
                    prompt=prompt, response=response.text, target=target
                )
                episodes.append(episode)
                input_ids[i, :max_req_tokens] = episode.request_tensor
                input_ids[i, max_req_tokens:] = episode.response_tensor
            ref_logprobs = await ref_model.forward.route(input_ids, max_req_tokens, return_logprobs=True)
            for i, episode in enumerate(episodes):
                episode.ref_logprobs = ref_logprobs[i]
            advantages = await compute_advantages.compute.call_one(episodes)
            for episode, advantage in zip(episodes, advantages, strict=True):
                episode.advantage = advantage
                await replay_buffer.add.call_one(episode)
            record_metric("main/continuous_rollouts/count_rollout_iterations", 1, Reduce.SUM)

    async def continuous_training() -> None:
        training_step = 0
        while training_step < max_steps:
            batch = await replay_buffer.sample.call_one(curr_policy_version=training_step)
            if batch is None:
                await asyncio.sleep(0.01)
                continue
            inputs, targets = batch
            loss = await trainer.train_step.call(inputs, targets)
            losses.append(float(f"{loss:.6f}"))
            training_step += 1
            await trainer.push_weights.call(policy_version=training_step)
            await policy.update_weights.fanout(policy_version=training_step)
            flush(training_step, loss)

    rollouts = asyncio.create_task(continuous_rollouts())
    training = asyncio.create_task(continuous_training())
    try:
        done, _ = await asyncio.wait({rollouts, training}, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
        await training
    finally:
        shutdown_event.set()
        await asyncio.gather(rollouts, return_exceptions=True)
        training.cancel()
    return losses
