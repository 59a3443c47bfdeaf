"""A replica that holds other weights than the trainer is seen, whichever it is."""

from __future__ import annotations

from typing import Any

import pytest
from bare_gym import bare_gym

from agentgym.env import Environment
from agentgym.errors import InfraError
from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.recipe import ModelConfig
from agentgym.rollout.config import RolloutConfig
from agentgym.run.gym import open_renderer
from agentgym.run.sync_check import check_sync
from agentgym.types import Completion, FinishReason, GenerateRequest, Sample, Task, VersionSpan


def completion(*logprobs: float, version: int = 4) -> Completion:
    spans = (VersionSpan(version=version, start=0, end=len(logprobs)),)
    ids = tuple(range(7, 7 + len(logprobs)))
    return Completion(completion_ids=ids, logprobs=logprobs, versions=spans, finish_reason=FinishReason.LENGTH)


class Replicas:
    def __init__(self, *answers: Completion, fails: bool = False) -> None:
        self.answers, self.fails = answers, fails

    async def generate_everywhere(self, request: GenerateRequest) -> list[Completion]:
        assert request.sampling.temperature == 0.7, "that of the recipe"
        if self.fails:
            raise InfraError("one died")
        return list(self.answers)

    async def generate(self, request: GenerateRequest) -> Completion:
        return completion(-1.0, -2.5)


class OneTask(Environment[None]):
    name = "one_task"

    def tasks(self, split: str, seed: int = 0) -> Any:
        yield Task(task_id="1", prompt=({"role": "user", "content": "?"},), split=split)


class Trainer:
    """Its log-probabilities are -1, -2, ... of every sequence that follows a prompt."""

    def __init__(self, prompt_ids: tuple[int, ...]) -> None:
        self.prompt_ids = prompt_ids

    async def call(self, method: object, samples: list[Sample]) -> list[list[float]]:
        length = len(self.prompt_ids)
        assert all(sample.token_ids[:length] == self.prompt_ids for sample in samples)
        return [[0.0] * length + [-1.0 - n for n in range(len(sample.token_ids) - length)] for sample in samples]


@pytest.fixture
def check() -> Any:
    gym = bare_gym(OneTask(), chat=open_renderer(ModelConfig(), policy_path(), PluginRegistry([])))
    trainer: Any = Trainer(gym.renderer.prompt(({"role": "user", "content": "?"},)))

    async def run(replicas: Any) -> dict[str, float]:
        return await check_sync(gym, replicas, trainer, RolloutConfig(temperature=0.7), 4)

    return run


async def test_the_worst_of_the_replicas_is_reported(check: Any) -> None:
    found = await check(Replicas(completion(-1.0, -2.0), completion(-1.0, -2.75), completion(-1.0, -2.0)))
    assert found == {"sync/mismatch_max": 0.75, "sync/mismatch_mean": 0.125}


async def test_a_replica_with_another_version_is_an_error(check: Any) -> None:
    with pytest.raises(AssertionError, match="after the update to 4"):
        await check(Replicas(completion(-1.0), completion(-1.0, version=3)))


@pytest.mark.parametrize("replicas", [Replicas(), Replicas(fails=True)], ids=["all died", "one failed"])
async def test_where_replicas_are_lost_meanwhile_one_is_asked_that_is_left(check: Any, replicas: Replicas) -> None:
    assert await check(replicas) == {"sync/mismatch_max": 0.5, "sync/mismatch_mean": 0.25}
