"""An episode that is played again gets the turns that were sampled for it, as long as it asks the same."""

from __future__ import annotations

from agentgym.rollout.generator import GroupGenerator
from agentgym.types import Completion, FinishReason, GenerateRequest, SamplingParams, VersionSpan


class Sampler:
    """Says how often it was asked."""

    version = 9

    def __init__(self):
        self.asked = []

    async def generate(self, request):
        self.asked.append(request)
        count = len(self.asked)
        span = VersionSpan(version=request.version or self.version, start=0, end=1)
        return Completion(completion_ids=(count,), logprobs=(-1.0,), versions=(span,), finish_reason=FinishReason.STOP)


def request(seed, *prompt):
    return GenerateRequest(prompt_ids=prompt, sampling=SamplingParams(max_tokens=4, seed=seed))


async def test_kept_turns_are_given_once_to_the_same_requests_and_kept_further():
    sampler = Sampler()
    first = GroupGenerator(sampler, version=3)
    said = [await first.generate(request(seed, 1, 2)) for seed in (11, 12)]
    again = GroupGenerator(sampler, version=3, kept=first.kept)
    assert again.kept == first.turns
    assert await again.generate(request(12, 1, 2)) is said[1] and len(sampler.asked) == 2
    other = await again.generate(request(11, 1, 3))  # the environment said something else this time
    assert other.completion_ids == (3,)
    assert (await again.generate(request(12, 1, 2))).completion_ids == (4,), "a retry samples again"
    assert [turn.completion for turn in again.kept][:2] == [said[1], other]


async def test_only_a_pinned_group_names_its_weights():
    sampler = Sampler()
    for pinned in (False, True):
        group = GroupGenerator(sampler, version=3, pinned=pinned)
        await group.generate(request(1, 1))
        assert group.version == 3
    assert [one.version for one in sampler.asked] == [None, 3]
