"""The time of a step and of the run, said before the first step: from fakes of what is measured, and in a tiny run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from agentgym.config import apply_overrides
from agentgym.recipe import Recipe
from agentgym.rl.sft_config import SftConfig
from agentgym.run.forecast import PlayedForecast, sft_forecast, steps_forecast, token_s
from agentgym.run.layers import finish_recipe
from agentgym.run.train import train
from agentgym.types import Episode, Sample, Task, Turn

SIZES = [
    "loop.steps=10", "loop.groups_per_step=4", "loop.group_size=4", "loop.max_staleness=0",
    "generator.max_batch=8", "generator.replicas=1", "eval.tasks=8", "eval.samples_per_task=2",
]  # fmt: skip


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def recipe(*settings: str) -> Recipe:
    return finish_recipe(apply_overrides({}, [*SIZES, *settings]))[0]


def episode(task: int, reward: float = 0.0, tokens: int = 50) -> Episode:
    turn = Turn(prompt_ids=(1,) * tokens, completion_ids=(), logprobs=(), versions=(), finish_reason="stop")
    return Episode(episode_id="", task=Task(task_id=str(task), prompt=()), seed=0, turns=[turn], reward=reward)


def played(made: Recipe, *, notes: list[str], seconds: float, total: int = 16, ended: int = 16) -> PlayedForecast:
    """After an evaluation of `total` episodes, of which so many ended within the seconds, one after the other."""
    clock = Clock()
    forecast = PlayedForecast(recipe=made, note=notes.append, token_s=0.001, clock=clock, cores=2)
    forecast.begin(total, evaluating=True)
    for number in range(ended):
        clock.now_s += seconds / ended
        forecast.add(episode(number // 2, reward=float(number % 2)))
    return forecast


def test_a_step_is_sampled_as_the_evaluation_was_and_trained_as_the_forward_passes_say() -> None:
    found = played(recipe(), notes=[], seconds=8.0).forecast()
    # 16 episodes a step, as many as were played in 8 s; 800 tokens at 1 ms, and twice that backward
    assert found.parts == pytest.approx({"sampling": 8.0, "training": 2.4})
    assert found.step_s == pytest.approx(10.4) and found.evaluations_s == pytest.approx(8.0)
    assert found.rest_s == pytest.approx(112.0)


def test_sampling_and_training_overlap_as_far_as_there_are_cores() -> None:
    made = recipe("loop.max_staleness=1")
    assert played(made, notes=[], seconds=8.0).forecast().step_s == pytest.approx(8.0)
    alone = played(made, notes=[], seconds=8.0)
    alone.cores = 1
    assert alone.forecast().step_s == pytest.approx(10.4)


def test_groups_that_are_skipped_take_their_time() -> None:
    made, notes = recipe(), list[str]()
    forecast = PlayedForecast(recipe=made, note=notes.append, clock=(clock := Clock()), cores=2)
    forecast.begin(16, evaluating=True)
    for number in range(16):
        forecast.add(episode(number // 2, reward=float(number == 1)))
    clock.now_s += 8.0
    # one pair of eight differs: of groups of four 1 - (7/8)^3 have signal
    assert forecast.forecast().parts == pytest.approx({"sampling": 8.0 / (1 - (7 / 8) ** 3)})


def test_a_long_evaluation_is_not_waited_for_and_a_short_one_is() -> None:
    notes: list[str] = []
    played(recipe(), notes=notes, seconds=8.0, total=16, ended=15)
    assert notes == []
    played(recipe("eval.tasks=100"), notes=notes, seconds=40.0, total=200, ended=12)
    (note,) = notes
    assert "from the first 8 episodes" in note  # as many as the generators sample at a time


def test_without_an_evaluation_the_first_groups_say_it() -> None:
    notes: list[str] = []
    forecast = PlayedForecast(recipe=recipe(), note=notes.append, clock=(clock := Clock()), cores=2)
    forecast.begin(16, evaluating=False)
    for number in range(16):
        clock.now_s += 0.5
        forecast.add(episode(number // 4, reward=float(number % 2)))
    (note,) = notes
    assert note.startswith("estimate: a step takes about 8.")


def test_a_run_of_hours_says_which_setting_makes_it_shorter() -> None:
    short, long = ([*notes][-1] for notes in (_notes(8.0), _notes(1600.0)))
    assert "with --" not in short
    # 10 steps of 1602.4 s and 1600 s of evaluation; half of the groups leave half of the steps
    assert "10 steps and evaluations of 26m40s about 4h53m" in long
    assert long.endswith("with --loop.groups_per_step 2 about 2h40m")


def _notes(seconds: float) -> list[str]:
    notes: list[str] = []
    played(recipe(), notes=notes, seconds=seconds).say()
    return notes


def test_adapters_have_half_of_the_backward_pass() -> None:
    found = played(recipe("trainer.lora.rank=8"), notes=[], seconds=8.0).forecast()
    assert found.parts["training"] == pytest.approx(1.6)


def test_forward_passes_grow_until_one_takes_long_enough() -> None:
    clock, lengths = Clock(), list[int]()

    async def score(samples: Sequence[Sample]) -> None:
        lengths.append(len(samples[0].token_ids))
        clock.now_s += 0.1 + 0.001 * lengths[-1] + (10.0 if len(lengths) == 1 else 0.0)  # the first one allocates

    assert asyncio.run(token_s(score, 1000, clock)) == pytest.approx((0.1 + 0.256) / 256)
    assert lengths == [64, 64, 128, 256]
    lengths.clear()
    assert asyncio.run(token_s(score, 48, clock)) == pytest.approx((0.1 + 0.048) / 48)


def test_fine_tuning_knows_its_tokens() -> None:
    async def score(samples: Sequence[Sample]) -> None:
        pass

    made = replace(recipe("trainer.seq_len=32"), sft=SftConfig(oracle_tasks=1, batch_size=4))
    held_out = asyncio.run(sft_forecast(made, score, 100.0, 5, 60.0, held_out_tokens=10**9))
    assert held_out.evaluations_s > 60.0
    found = asyncio.run(sft_forecast(made, score, 100.0, 5, 60.0))
    assert found.steps == 5 and found.evaluations_s == 60.0 and "400 tokens a step" in str(found)


def test_a_run_that_goes_on_has_the_pace_of_its_last_steps() -> None:
    found = steps_forecast([{"time/step_s": 900.0}, *[{"time/step_s": 3.0}] * 20], 4)
    assert found is not None and found.rest_s == pytest.approx(12.0)
    found = steps_forecast([{"time/step_s": 3.0}], 4, end_s=8.0)
    assert found is not None and found.rest_s == pytest.approx(20.0)
    assert steps_forecast([], 4) is None


@pytest.mark.slow
def test_a_tiny_run_says_it_before_its_first_step(lab) -> None:
    made, _ = finish_recipe(
        apply_overrides(
            {"env": {"name": "math", "options": {"levels": [1]}}},
            [*SIZES, "loop.steps=1", "loop.checkpoint_every=0", "logging.sinks=[]", lab.in_process],
        )
    )
    reporter = lab.reporter()
    with closing(lab.new_run(made)) as folder:
        asyncio.run(train(made, folder, reporter))
    (note,) = (note for note in reporter.notes if note.startswith("estimate: "))
    assert "1 steps and evaluations of" in note and "from the first 16 episodes and forward passes" in note
    assert reporter.after_s > 0.0  # what the last evaluation will take, as the first one did
