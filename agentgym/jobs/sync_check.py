"""Compares generators and trainer while they hold the same weights."""

from __future__ import annotations

import asyncio

from agentgym.generators.service import GeneratorService
from agentgym.jobs.gym import Gym
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.tasks import held_out_tasks
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.client import TrainerClient
from agentgym.types import GenerateRequest, Sample, SamplingParams


async def check_sync(
    gym: Gym, generator: GeneratorService, trainer: TrainerClient, rollout: RolloutConfig, step: int
) -> dict[str, float]:
    """Distances between their log-probabilities of a few new tokens, which the weights after `step` sample."""
    [task] = held_out_tasks(gym.environment, 1)
    prompt_ids = gym.renderer.prompt(task.prompt)
    sampling = SamplingParams(max_tokens=32, temperature=rollout.temperature, seed=derive_seed("sync", step))
    request = GenerateRequest(prompt_ids=prompt_ids, sampling=sampling)
    async with asyncio.timeout(rollout.generate_timeout_s):
        completion = await generator.generate(request)
    versions = {span.version for span in completion.versions}
    assert versions == {step}, f"after the update to {step} the generators sample from {versions}"
    known = len(prompt_ids)
    zeros = (0.0,) * (known + len(completion.completion_ids))
    sample = Sample(
        sample_id=f"sync-{step}",
        token_ids=prompt_ids + completion.completion_ids,
        loss_mask=zeros,
        logprobs=zeros,
        advantages=zeros,
        versions=(-1,) * len(zeros),
    )
    [logprobs] = await trainer.call(TitanTrainer.logprobs, [sample])
    distances = [abs(a - b) for a, b in zip(logprobs[known:], completion.logprobs, strict=True)]
    return {"sync/mismatch_max": max(distances), "sync/mismatch_mean": sum(distances) / len(distances)}
