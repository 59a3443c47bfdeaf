"""How fast this machine is at a recipe's parts, each alone: what `agentgym plan --measure` simulates with."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from agentgym.errors import UserError
from agentgym.generators.service import GeneratorService
from agentgym.planning.lengths import Turns, decode_context
from agentgym.planning.machine import host_cores
from agentgym.planning.rates import TRAIN_SCALING, Rates, policy_of
from agentgym.planning.simulation import join_s_of
from agentgym.rl.advantages import assign_advantages
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.samples import group_samples
from agentgym.rollout.group import play_group
from agentgym.run.engines import runtime_of, trainer_setup
from agentgym.run.gym import Gym
from agentgym.run.settle import Settled
from agentgym.runs.report import Reporter
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Completion, Episode, GenerateRequest, Group, Sample, SamplingParams

MANY, FEWEST = 192, 48  # tokens of the longer of two requests whose times are compared; what both take is not counted
SHORTEST = 8  # tokens of a prompt
LONG = 256  # tokens of each request that only keeps the replica busy
PROMPT_IDS = range(5, 95)  # tokens that every vocabulary has
REPLAYED = 32  # episodes
LEAST_S = 1e-4  # of a difference of two times
TRAINED = 4  # steps of each batch; the first is not counted
LEAST_SHARE = 0.05  # of a step's time: a smaller difference is chance
PLAYED_STEPS = 2  # as many groups as so many steps train
ROUNDS_IN_FLIGHT = 4  # times the places of a replica: requests that are in flight together


async def measure_rates(
    settled: Settled, scratch: Path, reporter: Reporter, lengths: tuple[Turns, ...] | None = None
) -> Rates:
    """One replica and one trainer process are started, measured one after the other, and ended.

    What takes turns in a run does so here. settled: see `settle_alone`.

    scratch: an empty folder for logs and files. Nothing is kept. lengths: of episodes that are planned instead of those
    that are played here; the generator is measured at theirs. Raises what starting a run raises.
    """
    alone, model_path = settled.recipe, settled.model
    async with AsyncExitStack() as stack:
        gym = await Gym.open(settled, reporter, training=True)
        stack.push_async_callback(gym.close)
        runtime = await stack.enter_async_context(runtime_of(alone, scratch, model_path, reporter.note))
        store = await alone.weights.open("measure", runtime=runtime)
        stack.push_async_callback(store.close)
        reporter.phase("starting one generator replica and one trainer")
        generator = GeneratorService(
            config=alone.generator,
            store=store,
            model_path=str(model_path),
            runtime=runtime,
            peer_gpus=alone.trainer.gpus if alone.weights.store.gpu_peers else (),
            folder_is_first=False,  # else the first update loads nothing, and the timed one quantizes a reader's base
        )
        stack.push_async_callback(generator.close)
        client = TrainerClient(_setup(settled, scratch), store=store, runtime=runtime)
        stack.push_async_callback(client.close)
        if alone.generator.engine.sleeps:
            await generator.start()
            await generator.sleep()
            await client.start()
        else:
            await asyncio.gather(generator.start(), client.start())
        return await _Measurement(settled, gym, generator, client, reporter).run(lengths)


def _setup(settled: Settled, scratch: Path) -> TrainerSetup:
    recipe = settled.recipe
    setup = trainer_setup(recipe, settled.model, scratch / "trainer")
    return replace(
        setup,
        optimizer=replace(recipe.optimizer, lr=0.0),  # what is measured must not change what is sampled
        loss=Grpo() if recipe.loss.needs_reference else recipe.loss,  # whose model is not measured
        total_steps=1000,
        critic=False,
    )


@dataclass(slots=True)
class _Recorder:
    """A generator whose answers are kept, to be given again at once."""

    inner: GeneratorService
    answers: dict[tuple[tuple[int, ...], int | None], Completion] = field(default_factory=dict)
    replaying: bool = False

    @property
    def version(self) -> int:
        return self.inner.version

    async def generate(self, request: GenerateRequest) -> Completion:
        key = (tuple(request.prompt_ids), request.sampling.seed)
        if not self.replaying:
            self.answers[key] = await self.inner.generate(request)
        return self.answers[key]

    async def update_weights(self, version: int) -> None:
        await self.inner.update_weights(version)


@dataclass(slots=True)
class _Measurement:
    settled: Settled
    gym: Gym
    generator: GeneratorService
    trainer: TrainerClient
    reporter: Reporter

    async def run(self, lengths: tuple[Turns, ...] | None) -> Rates:
        recipe = self.settled.recipe
        publish_s, update_s = await self._sync()
        self.reporter.phase("playing groups")
        groups, host_s, env_s = await self._play()
        turns = lengths or tuple(_turns(episode) for group in groups for episode in group.episodes if episode.turns)
        begin, few, many = measured_lengths(decode_context(turns), recipe.generator.max_model_len)
        self.reporter.phase("measuring the generator")
        prefill, decode = await self._generate(begin, few, many)
        requests, in_flight_s = await self._in_flight(begin, few)
        self.reporter.phase("measuring the trainer")
        if recipe.generator.engine.sleeps:
            await self.generator.sleep()
        samples = group_samples(groups)[: recipe.loop.groups_per_step * recipe.loop.group_size]
        train, fixed_s = await self._train(samples)
        cores, cores_scaling = host_cores(), 1.0
        if cores > 1 and not (recipe.generator.engine.sleeps or recipe.trainer.gpus or recipe.generator.gpus):
            cores_scaling = await self._beside_sampling(samples, train, fixed_s)
        rates = Rates(
            decode=decode,
            prefill=prefill,
            train=of_one_process(train, recipe.trainer.procs),
            train_fixed_s=fixed_s,
            publish_s=publish_s,
            update_s=update_s,
            host_s=host_s,
            env_s=env_s,
            signal=max(1, sum(group.has_signal for group in groups)) / len(groups),
            turns=turns,
            cores=cores,
            cores_scaling=cores_scaling,
            context=begin + (few + many) // 2,
            policy=policy_of(recipe.model.path, recipe.trainer.lora.rank),
        )
        join_s = await asyncio.to_thread(join_s_of, rates, requests, recipe.generator.max_batch, in_flight_s)
        return replace(rates, join_s=join_s)

    async def _sync(self) -> tuple[float, float]:
        """Seconds of the trainer's and of the generators' part; the first update is left out."""
        for version in range(2):
            if self.settled.recipe.generator.engine.sleeps and version:
                await self.generator.sleep()
            began = time.perf_counter()
            await self.trainer.push_weights(version)
            if self.settled.recipe.generator.engine.sleeps:
                await self.trainer.call_all(TrainerActor.release_memory)
            pushed = time.perf_counter()
            await self.generator.update_weights(version)
        return pushed - began, time.perf_counter() - pushed

    async def _play(self) -> tuple[list[Group], float, float]:
        """Groups of the run's own tasks; seconds of the controller's core, and of waiting, for each turn."""
        recipe, recorder = self.settled.recipe, _Recorder(self.generator)
        loop, player = recipe.loop, self.gym.player(recorder)
        tasks = recipe.task_sampler.tasks(self.gym.environment, loop.seed, 0)
        some = list(islice(tasks, PLAYED_STEPS * loop.groups_per_step))
        began_cpu = time.process_time()
        played = [
            play_group(player, task, group_id=number, size=loop.group_size, run_seed=loop.seed)
            for number, task in enumerate(some)
        ]
        groups = await asyncio.gather(*played)
        num_turns = sum(len(episode.turns) for group in groups for episode in group.episodes)
        host_s = (time.process_time() - began_cpu) / max(1, num_turns)
        for group in groups:
            assign_advantages(group, recipe.advantage)
        recorder.replaying = True
        episodes = [episode for group in groups for episode in group.episodes if not episode.retries][:REPLAYED]
        began, began_cpu = time.perf_counter(), time.process_time()
        for episode in episodes:
            await player.play(episode.task, episode_id=episode.episode_id, seed=episode.seed)
        waited = time.perf_counter() - began - (time.process_time() - began_cpu)
        return groups, host_s, max(0.0, waited) / max(1, sum(len(episode.turns) for episode in episodes))

    async def _generate(self, context: int, few: int, many: int) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Tokens of prompts a second, and sampled tokens a second by the number of sequences at a time."""
        most, decode, prefill, salts = self.settled.recipe.generator.max_batch, [], 0.0, itertools.count()
        sizes = [size for size in (1, 4, 16, 64, 256) if size < most] + [most]
        for size in sizes:
            await self._requests(size, context, few, next(salts))  # what an engine compiles or allocates for it
            prompt_s, few_s, many_s = [await self._quickest(size, context, n, salts) for n in (1, few, many)]
            decode.append((size, size * (many - few) / max(LEAST_S, many_s - few_s)))
            prefill = max(prefill, size * context / prompt_s)
        return prefill, tuple(decode)

    async def _in_flight(self, context: int, mean: int) -> tuple[list[tuple[int, int]], float]:
        """Requests, as of `in_flight_s`, of various lengths, so that they join a full batch one by one; seconds."""
        count = ROUNDS_IN_FLIGHT * self.settled.recipe.generator.max_batch
        lengths = random.Random(0).choices(range(1, 2 * mean), k=count)
        requests = [self._request(number, context, tokens, -1) for number, tokens in enumerate(lengths)]
        return [(context, tokens) for tokens in lengths], await self._seconds(requests)

    async def _quickest(self, count: int, context: int, tokens: int, salts: Iterator[int]) -> float:
        """Best of two: other load can only slow a run."""
        return min([await self._requests(count, context, tokens, next(salts)) for _ in range(2)])

    async def _requests(self, count: int, context: int, tokens: int, salt: int) -> float:
        """Seconds that so many take together."""
        return await self._seconds([self._request(number, context, tokens, salt) for number in range(count)])

    def _request(self, number: int, context: int, tokens: int, salt: int) -> GenerateRequest:
        """No two have a common prefix, nor do those of another salt."""
        drawn = random.Random(f"{salt} {number}").choices(PROMPT_IDS, k=context)
        return GenerateRequest(prompt_ids=tuple(drawn), sampling=SamplingParams(max_tokens=tokens, temperature=1.0))

    async def _seconds(self, requests: Sequence[GenerateRequest]) -> float:
        """Raises UserError for an engine that ends a request before it has all its tokens."""
        began = time.perf_counter()
        completions = await asyncio.gather(*map(self.generator.generate, requests))
        took_s = time.perf_counter() - began
        for request, completion in zip(requests, completions, strict=True):
            if (got := len(completion.completion_ids)) != request.sampling.max_tokens:
                engine = type(self.settled.recipe.generator.engine).__name__
                raise UserError(
                    f"{engine} sampled {got} of the {request.sampling.max_tokens} tokens that were asked for, so "
                    "its rate can't be measured; measure with another engine "
                    "(--save-rates), and give what it found by --rates"
                )
        return took_s

    async def _train(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """Tokens a second, and seconds of a step besides: the line through a step's batch and a single sample."""
        batches = {"full": samples, "one": samples[:1]}  # in the order of a run, which then finds it compiled
        times: dict[str, list[float]] = {name: [] for name in batches}
        for repeat in range(TRAINED):
            for name, batch in batches.items():
                took = await self._step_s(batch)
                if repeat:  # what the first one compiles and allocates is left out
                    times[name].append(took)
        one, full = ((_num_tokens(batches[name]), statistics.median(times[name])) for name in ("one", "full"))
        return line_of(one, full)

    async def _beside_sampling(self, samples: Sequence[Sample], train: float, fixed_s: float) -> float:
        """What is left of the trainer's speed while the replica samples, although each has a core."""
        alone_s, done = fixed_s + _num_tokens(samples) / train, asyncio.Event()
        sampling = asyncio.create_task(self._sample_until(done))
        try:
            beside_s = statistics.median([await self._step_s(samples) for _ in range(TRAINED)])
        finally:
            done.set()
            await sampling
        return min(1.0, alone_s / beside_s)

    async def _sample_until(self, done: asyncio.Event) -> None:
        tokens = min(LONG, self.settled.recipe.generator.max_model_len - SHORTEST)
        while not done.is_set():
            await self._requests(self.settled.recipe.generator.max_batch, SHORTEST, tokens, 0)

    async def _step_s(self, batch: Sequence[Sample]) -> float:
        began = time.perf_counter()
        await self.trainer.train_step(batch)
        return time.perf_counter() - began


def _num_tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.token_ids) for sample in samples)


def of_one_process(rate: float, procs: int) -> float:
    """Tokens a second of a trainer process, from those of so many together."""
    return rate / (procs * math.pow(TRAIN_SCALING, math.log2(procs)))


def measured_lengths(context: int, max_model_len: int) -> tuple[int, int, int]:
    """Tokens of the prompts, and sampled ones of the shorter and of the longer requests.

    What is sampled between the two has this context in the mean, as far as it is possible.
    """
    many = min(MANY, max(FEWEST, 3 * (context - SHORTEST) // 2), max(2, max_model_len // 2))
    few = max(1, many // 3)
    return min(max(SHORTEST, context - (few + many) // 2), max_model_len - many), few, many


def line_of(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """(tokens, seconds) of two batches -> tokens a second, and the seconds that a batch of none would take.

    Where the larger batch is not larger, or was not slower by more than chance makes it, all its time is its tokens'.
    """
    tokens, seconds = large[0] - small[0], large[1] - small[1]
    if tokens <= 0 or seconds < LEAST_SHARE * large[1]:
        return large[0] / large[1], 0.0
    rate = tokens / seconds
    return rate, max(0.0, large[1] - large[0] / rate)


def _turns(episode: Episode) -> Turns:
    """For each turn, the number of context tokens added since the turn before, and of sampled tokens."""
    found, known = [], 0
    for turn in episode.turns:
        found.append((len(turn.prompt_ids) - known, len(turn.completion_ids)))
        known = len(turn.prompt_ids) + len(turn.completion_ids)
    return tuple(found)
