"""Compares generators and trainer while they hold the same weights."""

from __future__ import annotations

import asyncio

from agentgym.errors import InfraError
from agentgym.generators.service import GeneratorService
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.tasks import held_out_tasks
from agentgym.run.gym import Gym
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.types import Completion, GenerateRequest, Sample, SamplingParams


async def check_sync(
    gym: Gym, generator: GeneratorService, trainer: TrainerClient, rollout: RolloutConfig, step: int
) -> dict[str, float]:
    """Distances between their log-probabilities of a few new tokens, which the weights after `step` sample.

    Every replica is asked: one that holds other weights than the rest shows in the largest distance.
    """
    [task] = held_out_tasks(gym.environment, 1)
    prompt_ids = gym.renderer.prompt(task.prompt)
    sampling = SamplingParams(max_tokens=32, temperature=rollout.temperature, seed=derive_seed("sync", step))
    request = GenerateRequest(prompt_ids=prompt_ids, sampling=sampling)
    async with asyncio.timeout(rollout.generate_timeout_s):
        try:
            completions = await generator.generate_everywhere(request)
        except InfraError:  # of one that is about to be replaced
            completions = []
        completions = completions or [await generator.generate(request)]
    versions = {span.version for completion in completions for span in completion.versions}
    assert versions == {step}, f"after the update to {step} the generators sample from {versions}"
    samples = [_untrained(f"sync-{step}-{n}", prompt_ids, one) for n, one in enumerate(completions)]
    scored = await trainer.call(TrainerActor.logprobs, samples)
    distances = [
        abs(a - b)
        for logprobs, completion in zip(scored, completions, strict=True)
        for a, b in zip(logprobs[len(prompt_ids) :], completion.logprobs, strict=True)
    ]
    return {"sync/mismatch_max": max(distances), "sync/mismatch_mean": sum(distances) / len(distances)}


def _untrained(sample_id: str, prompt_ids: tuple[int, ...], completion: Completion) -> Sample:
    token_ids = prompt_ids + completion.completion_ids
    zeros = (0.0,) * len(token_ids)
    return Sample(
        sample_id=sample_id,
        token_ids=token_ids,
        loss_mask=zeros,
        logprobs=zeros,
        advantages=zeros,
        versions=(-1,) * len(zeros),
    )
