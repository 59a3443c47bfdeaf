"""What a checkpoint keeps of the groups under way, and what a resumed run makes of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.loops.async_rl import Position
from agentgym.rollout.playing import GroupPlayer
from agentgym.run.in_flight import InFlight
from agentgym.run.layers import finish_recipe
from agentgym.run.settle import settle_deterministic
from agentgym.runs.folder import RunFolder
from agentgym.runs.in_flight import check_weights, weight_files
from agentgym.types import (
    Completion,
    Episode,
    FinishReason,
    GenerateRequest,
    Group,
    Outcome,
    SamplingParams,
    Task,
    Turn,
    VersionSpan,
)

TASK = Task(task_id="t", prompt=({"role": "user", "content": "?"},), answer=("a", 1))
SIZE = 2


class Sampler:
    def __init__(self, version):
        self.version, self.requests = version, 0

    async def generate(self, request):
        self.requests += 1
        span = VersionSpan(version=self.version, start=0, end=2)
        return Completion(
            completion_ids=(request.sampling.seed, 5), logprobs=(-0.1, -1 / 3), versions=(span,),
            finish_reason=FinishReason.STOP,
        )  # fmt: skip


@dataclass
class Player:
    generator: object


@dataclass(kw_only=True)
class Playing(GroupPlayer):
    """Plays groups of two episodes; `until` is waited for after the first turn."""

    until: asyncio.Event | None = None

    async def _play(self, player, order):
        group = Group(group_id=order.group_id, task=TASK, start_version=player.generator.version)
        for index in range(SIZE):
            name = f"{order.group_id}-{index}"
            episode = Episode(episode_id=name, task=TASK, seed=0, outcome=Outcome.SCORED, reward=1.0)
            for number in range(2):
                sampling = SamplingParams(max_tokens=2, seed=100 * order.group_id + 10 * index + number)
                request = GenerateRequest(prompt_ids=(1, index, number), sampling=sampling)
                episode.turns.append(Turn.of(request.prompt_ids, await player.generator.generate(request)))
                if self.until is not None and index == 1:
                    await self.until.wait()
            group.episodes.append(episode)
        group.advantages = [0.5, -0.5]
        return group


class Trainer:
    """Records what it is asked for."""

    def __init__(self):
        self.calls = []

    async def call(self, method, *args):
        self.calls.append(args)


def in_flight_of(run, sampler, *, pinned=False, until=None):
    return InFlight(folder=run, pinned=pinned, rollouts=Playing(player=Player(sampler), until=until))


async def begin(in_flight, group_id, *, task=TASK, size=SIZE):
    newest = in_flight.rollouts.player.generator.version
    return await in_flight.play(task, group_id, version=2, newest=newest, size=size, run_seed=0)


@pytest.fixture
def run(tmp_path):
    with RunFolder.create(tmp_path, "run") as folder:
        yield folder


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_resumed_run_uses_what_had_ended_and_finishes_what_had_not(run, pinned):
    before, position = (
        in_flight_of(run, Sampler(2), pinned=pinned),
        Position(step=3, next_group=7, versions=(2, 3) * pinned),
    )
    trained, ended = [await begin(before, number) for number in (6, 7)]
    ended.always_trained = True
    assert trained.group_id == 6
    before.rollouts.until = asyncio.Event()
    playing = asyncio.create_task(begin(before, 8))
    await asyncio.sleep(0.01)
    trainer = Trainer()
    await before.save(position, trainer)
    playing.cancel()
    assert trainer.calls == [(str(weight_files(run, 3)), [2])] * pinned

    after = in_flight_of(run, now := Sampler(3), pinned=pinned)
    assert await after.restore(position, 7, trainer) == 1
    await after.save(position, trainer)  # before anything went on: nothing is lost
    assert await after.restore(position, 7, trainer) == 1
    again = await begin(after, 7)
    assert (again.episodes, again.advantages, again.start_version) == (ended.episodes, ended.advantages, 2)
    assert now.requests == 0 and again.always_trained
    finished = await begin(after, 8)
    assert now.requests == 1, "three of its four turns were sampled before"
    assert [turn.versions[0].version for episode in finished.episodes for turn in episode.turns] == [2, 2, 2, 3]
    assert finished.start_version == 2
    assert (await begin(after, 9)).start_version == (2 if pinned else 3)


async def test_a_group_that_was_kept_is_played_again_where_the_recipe_has_changed(run):
    before, position, trainer = in_flight_of(run, Sampler(2)), Position(step=3, next_group=7), Trainer()
    await begin(before, 7)
    await before.save(position, trainer)
    for task, size in ((replace(TASK, answer=("a", 2)), SIZE), (TASK, SIZE + 1)):
        after = in_flight_of(run, now := Sampler(3))
        await after.restore(position, 7, trainer)
        await begin(after, 7, task=task, size=size)
        assert now.requests == 4


async def test_weights_stay_for_as_long_as_a_group_needs_them(run):
    class Store:
        held = [1, 2, 3, 4]

        async def versions(self):
            return [*self.held]

        async def delete(self, version):
            self.held.remove(version)

    in_flight = in_flight_of(run, Sampler(4), pinned=True)
    await in_flight.forget(Position(step=4, next_group=9, versions=(3, 4)), Store())
    assert Store.held == [3, 4]


def test_a_checkpoint_without_the_older_weights_that_it_needs_is_refused(run):
    weight_files(run, 3).mkdir(parents=True)
    (weight_files(run, 3) / "2.safetensors").touch()
    check_weights(run, 3, (2, 3))
    with pytest.raises(UserError, match=r"version \[1\]"):
        check_weights(run, 3, (1, 2, 3))


@pytest.mark.parametrize(
    ("setting", "said"),
    [("generator.engine=transformers", "generator.engine=native"), ("trainer.device=cuda", "trainer.device=cpu")],
)
def test_a_recipe_that_can_not_be_deterministic_is_refused(setting, said):
    def recipe(*settings):
        return finish_recipe(apply_overrides({}, ["generator.engine=native", *settings]))[0]

    assert settle_deterministic(recipe(setting)) == recipe(setting)
    assert settle_deterministic(recipe("loop.deterministic=true")).generator.batch_invariant
    with pytest.raises(UserError, match=said):
        settle_deterministic(recipe("loop.deterministic=true", setting))
