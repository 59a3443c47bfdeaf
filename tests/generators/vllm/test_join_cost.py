"""The part of a step with prompts that does not depend on their length, and what vLLM does with fewer such steps."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Iterable

import pytest

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.generators.slots import AdaptiveSlots
from agentgym.generators.vllm.join_cost import ENOUGH, JoinCost
from agentgym.generators.vllm.steps import EngineStep
from agentgym.planning.clock import JumpingLoop
from agentgym.types import GenerateRequest, SamplingParams

PLAIN_S, JOIN_S, TOKEN_S = 0.014, 0.016, 1e-5


def seen(steps: Iterable[tuple[float, int, int]]) -> JoinCost:
    """Of steps: seconds since the one before, tokens of prompts, sequences that go on."""
    cost, now_s = JoinCost(), 100.0
    for seconds, prompt_tokens, num_running in steps:
        now_s += seconds
        cost.saw(EngineStep(now_s, prompt_tokens, num_running, kv_share=0.1, num_preempted=0))
    return cost


def mixed(count: int, *, share: float, seed: int = 0) -> list[tuple[float, int, int]]:
    """Of which that share has prompts; none takes exactly as long as another."""
    draw = random.Random(seed)
    steps = []
    for _ in range(count):
        tokens = draw.randint(100, 2000) if draw.random() < share else 0
        seconds = PLAIN_S + (JOIN_S + TOKEN_S * tokens if tokens else 0.0)
        steps.append((seconds * draw.uniform(0.95, 1.05), tokens, 100))
    return steps


def test_it_is_what_a_step_with_prompts_takes_besides_their_tokens() -> None:
    assert seen(mixed(400, share=0.3)).seconds == pytest.approx(JOIN_S, rel=0.1)
    alike = [(PLAIN_S, 0, 9), (PLAIN_S + JOIN_S, 140, 9)] * (ENOUGH + 1)  # nothing shows what a token takes
    assert seen(alike).seconds == pytest.approx(JOIN_S)


def test_what_stood_still_for_something_else_is_left_out() -> None:
    steps = mixed(400, share=0.3)
    steps[-50] = (2.0, 500, 100)  # an update of the weights, when one joined
    steps[-20] = (2.0, 0, 100)
    assert seen(steps).seconds == pytest.approx(JOIN_S, rel=0.15)


def test_after_a_pause_in_which_nothing_ran_a_step_says_nothing() -> None:
    pauses = [(5.0, 300, 1), (PLAIN_S, 0, 0)] * 100  # one request at a time
    assert seen(pauses).seconds == 0.0
    assert seen([*mixed(400, share=0.3), *pauses]).seconds == pytest.approx(JOIN_S, rel=0.1)


def test_while_every_step_has_prompts_it_is_a_part_of_one_so_that_others_will_be_seen() -> None:
    crowded = seen(mixed(200, share=1.0)).seconds
    assert PLAIN_S / 2 < crowded < PLAIN_S + JOIN_S + 2000 * TOKEN_S
    assert seen(mixed(ENOUGH // 2, share=1.0)).seconds == 0.0, "too few to say anything"


def test_prompts_that_cost_nothing_are_nothing_to_wait_for() -> None:
    assert seen([(PLAIN_S, 0, 9), (PLAIN_S - 0.001, 100, 9)] * (ENOUGH + 1)).seconds == 0.0


class PacedEngine:
    """An engine that only passes time, in steps: a token of each sequence, and prompts that joined."""

    def __init__(self, places: AdaptiveSlots, *, together: bool) -> None:
        self.places, self.together = places, together
        self.cost = JoinCost()
        self.waiting: list[int] = []  # tokens of prompts
        self.left: dict[asyncio.Future[None], int] = {}
        self.steps = self.joins = 0

    async def sample(self, prompt: int, tokens: int) -> None:
        async with self.places.held(continues=True):
            self.waiting.append(prompt)
            done = asyncio.get_running_loop().create_future()
            self.left[done] = tokens
            await done

    async def run(self) -> None:
        while True:
            prompts, running = sum(self.waiting), list(self.left)
            self.waiting.clear()
            await asyncio.sleep(PLAIN_S + (JOIN_S + TOKEN_S * prompts if prompts else 0.0) if running else 0.001)
            if not running:
                continue
            self.steps += 1
            self.joins += prompts > 0
            for done in running:
                self.left[done] -= 1
                if not self.left[done]:
                    del self.left[done]
                    done.set_result(None)
            now_s = asyncio.get_running_loop().time()
            changed = self.cost.saw(EngineStep(now_s, prompts, len(self.left), kv_share=0.1, num_preempted=0))
            if changed and self.together:
                self.places.join_s = self.cost.seconds


def played(*, together: bool) -> tuple[float, PacedEngine]:
    """Seconds that 128 conversations of eight short turns take, with a place for each."""

    async def play() -> tuple[float, PacedEngine]:
        engine, draw = PacedEngine(AdaptiveSlots(128), together=together), random.Random(0)

        async def converse() -> None:
            for _ in range(8):
                await engine.sample(draw.randint(20, 200), draw.randint(10, 60))

        running = asyncio.create_task(engine.run())
        await asyncio.gather(*(converse() for _ in range(128)))
        running.cancel()
        return asyncio.get_running_loop().time(), engine

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(play())


def test_the_estimate_finds_its_value_while_the_requests_follow_it() -> None:
    """In the beginning nearly every step has prompts, so that nothing shows what one without them takes."""
    (apart_s, apart), (together_s, together) = played(together=False), played(together=True)
    assert apart.joins > 0.6 * apart.steps
    assert together.cost.seconds == pytest.approx(JOIN_S, rel=0.25)
    assert together.joins < apart.joins / 3 and together_s < 0.75 * apart_s


def requests(count: int) -> list[GenerateRequest]:
    draw = random.Random(0)
    return [
        GenerateRequest(
            prompt_ids=tuple(draw.randint(3, 50) for _ in range(draw.randint(5, 60))),
            sampling=SamplingParams(max_tokens=draw.randint(20, 100), seed=number),
        )
        for number in range(count)
    ]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # vllm's own
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
async def test_fewer_of_vllms_steps_have_prompts_when_requests_begin_together(old_model) -> None:
    config = GeneratorConfig(device="cpu", max_batch=16, max_model_len=256)
    engine = VllmEngineConfig(join_together=False).build(config, str(old_model.folder))
    sent = requests(80)

    async def steps_with_prompts(join_s: float) -> int:
        """join_s: given, since on a CPU it is about nothing."""
        steps: list[EngineStep] = []

        def saw(step: EngineStep) -> None:
            steps.append(step)
            engine._saw(step)

        engine._slots.join_s = join_s
        engine._llm._logger_ref[0]._report = saw
        done = await asyncio.gather(*map(engine.generate, sent))
        assert [len(one.completion_ids) for one in done] == [request.sampling.max_tokens for request in sent]
        assert sum(step.prompt_tokens for step in steps) == sum(len(request.prompt_ids) for request in sent)
        assert [step.ended_s for step in steps] == sorted(step.ended_s for step in steps)
        assert max(step.num_running for step in steps) == 16
        assert engine.metrics()["generator/join_s_mean"] == join_s
        return sum(step.prompt_tokens > 0 for step in steps)

    await engine.start()
    try:
        alone = await steps_with_prompts(0.0)
        await engine._llm.reset_prefix_cache()
        assert await steps_with_prompts(0.05) < 0.7 * alone
        engine._join_together = True
        await asyncio.gather(*map(engine.generate, sent[:60]))
        assert len(engine._join_cost._joined) > ENOUGH
        assert engine.metrics()["generator/join_s_mean"] < 0.05, "its own estimate took the place of what was given"
    finally:
        await engine.close()
