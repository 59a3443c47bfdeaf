"""A replica that holds other weights than the trainer is seen, whichever it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentgym.errors import InfraError
from agentgym.rollout.config import RolloutConfig
from agentgym.run import sync_check
from agentgym.types import Completion, FinishReason, GenerateRequest, Sample, VersionSpan

PROMPT = (1, 2, 3)


def completion(*logprobs: float, version: int = 4) -> Completion:
    spans = (VersionSpan(version=version, start=0, end=len(logprobs)),)
    ids = tuple(range(7, 7 + len(logprobs)))
    return Completion(completion_ids=ids, logprobs=logprobs, versions=spans, finish_reason=FinishReason.LENGTH)


class Replicas:
    def __init__(self, *answers: Completion, fails: bool = False) -> None:
        self.answers, self.fails = answers, fails

    async def generate_everywhere(self, request: GenerateRequest) -> list[Completion]:
        if self.fails:
            raise InfraError("one died")
        return list(self.answers)

    async def generate(self, request: GenerateRequest) -> Completion:
        return completion(-1.0, -2.5)


class Trainer:
    """Its log-probabilities are -1, -2, ... of every sequence."""

    async def call(self, method: object, samples: list[Sample]) -> list[list[float]]:
        return [[0.0] * len(PROMPT) + [-1.0 - n for n in range(len(s.token_ids) - len(PROMPT))] for s in samples]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sync_check, "held_out_tasks", lambda environment, count: [SimpleNamespace(prompt=[])])
    gym = SimpleNamespace(environment=None, renderer=SimpleNamespace(prompt=lambda prompt: PROMPT))

    async def run(replicas: Replicas) -> dict[str, float]:
        return await sync_check.check_sync(
            cast(Any, gym), cast(Any, replicas), cast(Any, Trainer()), RolloutConfig(), 4
        )

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
