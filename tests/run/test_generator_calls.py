"""What a custom loop samples ends where the environment's own episodes do, and what was cut counts as cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentgym.errors import UserError
from agentgym.rollout.tasks import held_out_tasks
from agentgym.run.calls import GeneratorCalls
from agentgym.run.gym import Gym
from agentgym.run.metrics import rollout_metrics
from agentgym.run.settle import settle_sampling
from agentgym.run.training_calls import group_of
from agentgym.types import Completion, FinishReason, GenerateRequest, SamplingParams, Stop, VersionSpan


class Engine:
    """Says 8 tokens, the end of its turn and 55 tokens more, unless the request stops it. late: its time is over."""

    version = 0

    def __init__(self, ends: int, late: bool) -> None:
        self._ends, self._late = ends, late
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest, *, session: object = None) -> Completion:
        self.requests.append(request)
        said = ([40] * 8 + [self._ends] if self._ends else []) + [41] * 1000
        ids, reason = said[: request.sampling.max_tokens], FinishReason.LENGTH
        for number, token in enumerate(ids, start=1):
            if token in request.sampling.stop_token_ids:
                ids, reason = ids[:number], FinishReason.STOP
        if self._late:
            ids, reason = ids[:4], FinishReason.TIME
        span = VersionSpan(version=0, start=0, end=len(ids))
        return Completion(
            completion_ids=tuple(ids), logprobs=(-0.5,) * len(ids), versions=(span,), finish_reason=reason
        )

    async def update_weights(self, version: int) -> int:
        raise NotImplementedError

    async def metrics(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(
    ("ends", "late", "settings", "stop"),
    [
        (True, False, (), Stop.DONE),
        (False, False, ("rollout.max_turn_tokens=64",), Stop.TURN_TOKENS),
        (False, False, ("rollout.max_turn_tokens=500",), Stop.EPISODE_TOKENS),
        (True, True, ("rollout.generate_timeout_s=7",), Stop.TIME),
    ],
)
async def test_a_loop_samples_as_an_episode_does(
    lab, tmp_path: Path, ends: bool, late: bool, settings: tuple[str], stop: Stop
) -> None:
    recipe = lab.recipe("env.name=math", "rollout.cut_turns=score", *settings)
    gym = await Gym.open(settle_sampling(recipe, tmp_path, pytest.fail), lab.reporter(), training=True)
    try:
        engine = Engine(gym.renderer.end_ids[0] if ends else 0, late)
        [task] = held_out_tasks(gym.environment, 1)
        episode = await gym.player(engine).play(task, episode_id="e", seed=1)
        [turn] = episode.turns
        calls = GeneratorCalls(engine, gym.renderer, recipe.generator, recipe.rollout)  # type: ignore[arg-type]
        said = await calls.generate(torch.tensor(turn.prompt_ids), n=2)  # type: ignore[arg-type]
        theirs, *ours = engine.requests
        for request in ours:
            assert request.sampling == replace(theirs.sampling, seed=None)
            assert all(type(token) is int for token in request.prompt_ids)
            assert request.time_s == pytest.approx(theirs.time_s, abs=0.5) and request.prompt_ids == turn.prompt_ids
        assert [(one.completion.completion_ids, one.stop) for one in said] == [(turn.completion_ids, stop)] * 2
        assert episode.stop is stop
        group = group_of(0, said, [1.0, 0.0], gym.renderer, masks_cut=False)
        for played in (group.episodes, [episode]):
            assert rollout_metrics(played)["rollout/truncated_share"] == (stop is not Stop.DONE)
        assert torch.cat([said[0].prompt_ids, said[0].token_ids]).tolist() == [*turn.prompt_ids, *turn.completion_ids]
        assert said[0].logprobs.tolist() == [-0.5] * len(turn.completion_ids) and said[0].policy_version == 0
        assert said[0].stop_reason == ("stop" if stop is Stop.DONE else "length")
        with pytest.raises(AttributeError, match=r"2 completions have no 'text': take one .* answers\[0\]\.text"):
            _ = said.text
        alone = await calls.generate("1 + 1 =", sampling=SamplingParams(max_tokens=20))
        rendered = gym.renderer.prompt_text([{"role": "user", "content": "1 + 1 ="}])
        [of_text] = await calls.generate.route(prompt=rendered)
        assert alone.text == alone[0].text and alone.prompt == "1 + 1 =" and of_text.prompt == rendered
        assert of_text.prompt_tokens == alone[0].prompt_tokens, "it is not wrapped in the template again"
        [short] = alone
        assert short.stop is (stop if late else Stop.DONE if ends else Stop.TURN_TOKENS)
    finally:
        await gym.close()


async def test_a_prompt_without_room_for_an_answer_is_refused(lab) -> None:
    recipe = lab.recipe("env.name=math")
    calls = GeneratorCalls(Engine(0, False), None, recipe.generator, recipe.rollout)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"the prompt has 512 tokens, rollout.max_episode_tokens is 512"):
        await calls.generate([7] * 512)
    for given in ([[7, 8]], None):
        with pytest.raises(UserError, match="give a text, or one row of token ids"):
            await calls.generate(given)  # type: ignore[arg-type]
