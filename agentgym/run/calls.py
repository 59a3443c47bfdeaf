"""The calls of a loop over services: of tasks and episodes, generators, buffers, rows, rewards."""

from __future__ import annotations

import asyncio
import operator
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.service import Session
from agentgym.errors import UserError
from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.loops.actors import DatasetActor
from agentgym.loops.async_rl import oldest_version
from agentgym.loops.pieces import Pieces
from agentgym.loops.replay_buffer import ReplayBuffer
from agentgym.loops.rewards import RewardActor, RewardService
from agentgym.loops.rows import Row
from agentgym.rl.advantages import Advantage, assign_advantages
from agentgym.rl.config import LoopConfig
from agentgym.rl.said import Answers, Said
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import turn_sampling
from agentgym.rollout.group import InfraMonitor
from agentgym.rollout.playing import GroupOrder
from agentgym.rollout.tasks import TaskStream
from agentgym.run.engines import Engines
from agentgym.run.gym import Gym
from agentgym.text.chat import ChatRenderer
from agentgym.text.roles import USER
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Group, Json, SamplingParams, Stop, Task

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[P, R]):
    """`await call(...)` asks one replica, as `route` and `call_one` do; `fanout` and `call_all` ask every one.

    every: None where there is only one. `call` asks all of them, and gives the answer itself where there is only one.
    """

    one: Callable[P, Awaitable[R]]
    every: Callable[P, Awaitable[list[R]]] | None = None

    async def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        return await self.one(*args, **options)

    async def route(self, *args: P.args, **options: P.kwargs) -> R:
        """The replica with the fewest requests answers; another one if it dies."""
        return await self.one(*args, **options)

    async def call_one(self, *args: P.args, **options: P.kwargs) -> R:
        """The name that an actor without replicas has for it."""
        return await self.one(*args, **options)

    async def fanout(self, *args: P.args, **options: P.kwargs) -> list[R]:
        """The answers of all replicas."""
        return [await self.one(*args, **options)] if self.every is None else await self.every(*args, **options)

    async def call_all(self, *args: P.args, **options: P.kwargs) -> list[R]:
        return await self.fanout(*args, **options)

    async def call(self, *args: P.args, **options: P.kwargs) -> R | list[R]:
        return await (self.one if self.every is None else self.every)(*args, **options)


def _here(function: Callable[P, R]) -> Call[P, R]:
    """A call that is answered in this process."""

    async def answer(*args: P.args, **options: P.kwargs) -> R:
        return function(*args, **options)

    return Call(answer)


MakeStream = Callable[[int, Json], TaskStream]
"""The recipe's tasks from a number on, given what an earlier stream had learned until there."""


class DatasetCalls:
    """The training tasks, endless. num_sampled: how many were drawn, which is the number of the next one.

    A sampler that learns is told what became of each task by `play_group`, or by `observe` for groups from elsewhere.
    """

    def __init__(self, make_stream: MakeStream, in_flight: int) -> None:
        """in_flight: how many tasks a sampler that learns draws ahead of what was played."""
        self._make_stream, self._in_flight = make_stream, in_flight
        self.sample = Call(self._sample)
        self._begin_at(0, None)

    def _begin_at(self, number: int, state: Json) -> None:
        self.stream = self._make_stream(number, state)
        self.num_sampled = number
        self._waiting: defaultdict[str, deque[int]] = defaultdict(deque)  # numbers of tasks that nobody plays yet

    async def _sample(self) -> Task:
        """Raises UserError where it could only wait for tasks that were sampled and never played."""
        unplayed = sum(map(len, self._waiting.values()))
        learns = self.stream.learns
        if learns and unplayed > self._in_flight:
            raise UserError(
                f"{unplayed} tasks were sampled and not played, and the task sampler waits for what becomes of them: "
                f"play them first (it draws {self._in_flight} ahead), raise loop.max_staleness, or set another "
                "task_sampler"
            )
        number, self.num_sampled = self.num_sampled, self.num_sampled + 1
        task = await self.stream.draw()
        if learns:
            self._waiting[task.task_id].append(number)
        return task

    def begin(self, task: Task) -> int | None:
        """A task is played now. Returns its number; None for one that was not sampled here."""
        numbers = self._waiting.get(task.task_id)
        number = numbers.popleft() if numbers else None
        if numbers is not None and not numbers:
            del self._waiting[task.task_id]
        return number

    def end(self, number: int | None, group: Group) -> None:
        """What became of it."""
        if number is not None:
            self.stream.observe(replace(group, group_id=number))

    def observe(self, group: Group) -> None:
        """A group of a sampled task that `play_group` did not play."""
        self.end(self.begin(group.task), group)

    def state_dict(self, next_task: int | None = None) -> dict[str, Json]:
        """next_task: the first that no step has taken; by default all that were sampled are done."""
        number = self.num_sampled if next_task is None else next_task
        if not 0 <= number <= self.num_sampled:
            raise UserError(f"next_task is {number}, and {self.num_sampled} tasks were sampled: give one of 0 to that")
        try:
            return {"next_task": number, "sampler": self.stream.state(number)}
        except KeyError as unknown:
            raise UserError(
                f"the task sampler learns from what was played, and task {unknown} before next_task {number} was not; "
                "give save the first task that no step has taken, as next_task"
            ) from None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next task is `next_task` of the state."""
        self._begin_at(state["next_task"], state["sampler"])


class EnvironmentCalls:
    """Plays the environment's tasks with the generators, and scores what was played."""

    def __init__(
        self, gym: Gym, engines: Engines, loop: LoopConfig, advantage: Advantage, dataset: DatasetCalls
    ) -> None:
        self._engines, self._loop, self._advantage, self._dataset = engines, loop, advantage, dataset
        self._monitor = InfraMonitor(engines.player.config.max_infra_error_share)
        self.environment = gym.environment
        self.play_episode = Call(self._play_episode)
        self.play_group = Call(self._play_group)

    async def _play_episode(self, task: Task, *, seed: int = 0, episode_id: str = "episode") -> Episode:
        """Raises nothing for what breaks: the episode's outcome and error say it."""
        episode = await self._engines.player.play(task, episode_id=episode_id, seed=seed)
        self._monitor.add(episode)
        return episode

    async def _play_group(self, task: Task, group_id: int, *, size: int | None = None) -> Group:
        """`size` episodes of one task, with their advantages; by default loop.group_size of them.

        Raises InfraError when too large a share of the last episodes was lost to broken infrastructure.
        """
        loop, number = self._loop, self._dataset.begin(task)
        group = await self._engines.rollouts.play(
            GroupOrder(
                task=task,
                group_id=group_id,
                version=self._engines.generator.version,
                size=size or loop.group_size,
                run_seed=loop.seed,
            )
        )
        for episode in group.episodes:
            self._monitor.add(episode)
        assign_advantages(group, self._advantage)
        self._dataset.end(number, group)
        return group


class GeneratorCalls:
    """The generators: all replicas at one version of the weights."""

    def __init__(
        self,
        service: GeneratorService,
        renderer: ChatRenderer,
        config: GeneratorConfig,
        rollout: RolloutConfig,
        session: Session[Generator] | None = None,
        completions: int = 1,
    ) -> None:
        """completions: of a prompt, where a call does not say how many."""
        self.config, self._completions = config, completions
        self._service, self._renderer, self._rollout = service, renderer, rollout
        self._session: ContextVar[Session[Generator] | None] = ContextVar("session", default=session)
        self.generate = Call(self._generate, self._everywhere)
        self.update_weights = Call(self._update_weights)
        self.get_version = Call(self._version)
        self.get_metrics = Call(service.metrics)

    async def _generate(
        self, prompt: str | Sequence[int], *, n: int | None = None, sampling: SamplingParams | None = None
    ) -> Answers:
        """n completions of a prompt: a user's words, a text that the chat template has made already, or token ids,
        as a tensor or a list.

        Each ends where an episode's turn does: with the end of the turn, or at the limits of the recipe's `rollout`.
        sampling: by default as in the recipe; with a seed, completion i gets the seed + i. One without stop_token_ids
        ends with the turn, too. Raises UserError for a prompt that leaves no room in rollout.max_episode_tokens.
        """
        requests, session = self._requests(prompt, n, sampling), self._session.get()
        answers = await asyncio.gather(*(self._service.generate(one, session=session) for one in requests))
        return Answers(self._said(prompt, one, answer) for one, answer in zip(requests, answers, strict=True))

    async def _everywhere(
        self, prompt: str | Sequence[int], *, n: int | None = None, sampling: SamplingParams | None = None
    ) -> list[Answers]:
        """Completions by replica."""
        requests = self._requests(prompt, n, sampling)
        answers = await asyncio.gather(*map(self._service.generate_everywhere, requests))
        by_replica = zip(*answers, strict=False)  # of one that dies meanwhile some are missing
        both = (zip(requests, given, strict=True) for given in by_replica)
        return [Answers(self._said(prompt, *one) for one in of_replica) for of_replica in both]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[GeneratorCalls]:
        """Calls that stay with one replica, for its caches, and move only when it dies: those of the session, and in
        the block those of the generators.
        """
        outer, session = self._session.get(), self._service.new_session()
        self._session.set(session)
        try:
            yield GeneratorCalls(self._service, self._renderer, self.config, self._rollout, session, self._completions)
        finally:
            self._session.set(outer)

    @cached_property
    def _opening_end(self) -> str:
        """What the template writes after a user's words; empty if it has no special token, which users may write."""
        end = self._renderer.prompt_text([USER]).rpartition(USER["content"])[2]
        return end if any(token in end for token in self._renderer.tokenizer.special_tokens) else ""

    def _ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            try:
                return tuple(map(operator.index, getattr(prompt, "tolist", lambda: prompt)()))
            except TypeError:
                raise UserError(f"the prompt is {prompt!r:.80}; give a text, or one row of token ids") from None
        if self._opening_end and prompt.endswith(self._opening_end):
            return self._renderer.tokenizer.encode(prompt)
        return self._renderer.prompt([{"role": "user", "content": prompt}])

    def _requests(
        self, prompt: str | Sequence[int], n: int | None, given: SamplingParams | None
    ) -> list[GenerateRequest]:
        config, ids, n = self._rollout, self._ids(prompt), self._completions if n is None else n
        room = config.max_episode_tokens - len(ids)
        if given is None and room < 1:
            raise UserError(
                f"the prompt has {len(ids)} tokens, rollout.max_episode_tokens is {config.max_episode_tokens}: "
                "raise it, or give a shorter prompt"
            )
        how = given or turn_sampling(config, self._renderer, min(room, config.max_turn_tokens), seed=None)
        how = replace(how, stop_token_ids=how.stop_token_ids or self._renderer.end_ids)
        each = [how if how.seed is None else replace(how, seed=how.seed + i) for i in range(n)]
        time_s = min(config.episode_time_s, config.generate_timeout_s)
        return [GenerateRequest(prompt_ids=ids, sampling=one, time_s=time_s) for one in each]

    def _said(self, prompt: str | Sequence[int], request: GenerateRequest, completion: Completion) -> Said:
        room = self._rollout.max_episode_tokens - len(request.prompt_ids)
        if completion.finish_reason is FinishReason.STOP:
            stop = Stop.DONE
        elif completion.finish_reason is FinishReason.TIME:
            stop = Stop.TIME
        else:
            stop = Stop.TURN_TOKENS if request.sampling.max_tokens < room else Stop.EPISODE_TOKENS
        text = self._renderer.text(completion.completion_ids)
        tokens = tuple(request.prompt_ids)
        return Said(prompt=prompt, text=text, prompt_tokens=tokens, completion=completion, stop=stop)

    async def _update_weights(self, policy_version: int) -> None:
        await self._service.update_weights(policy_version)

    async def _version(self) -> int:
        return self._service.version


ROWS_TIMEOUT_S = 300.0  # a hub may be slow


class BufferCalls:
    """Groups, or anything else, with the version of the weights that sampled them. It is in this process."""

    def __init__(self, buffer: ReplayBuffer[Any], version: Callable[[], int] = lambda: 0) -> None:
        """version: of the generators now, for items that say none."""
        self.buffer, self.version = buffer, version
        self.add, self.sample = _here(self._add), _here(self._sample)
        self.evict, self.clear, self.numel = _here(buffer.evict), _here(buffer.clear), _here(buffer.__len__)
        self.get_metrics = _here(buffer.get_metrics)
        self.state_dict, self.load_state_dict = _here(buffer.state_dict), _here(buffer.load_state_dict)

    @classmethod
    def of(cls, loop: LoopConfig, pieces: Pieces) -> BufferCalls:
        own = {"batch_size": loop.groups_per_step, "max_policy_age": loop.max_staleness, "seed": loop.seed}
        return cls(ReplayBuffer(**{**own, **pieces.replay_buffer}))

    def _add(self, item: object, policy_version: int | None = None) -> None:
        """policy_version: of a group or an episode the oldest weights that sampled it, of another item its attribute;
        where it has none, the generators' weights now.
        """
        if policy_version is None and isinstance(item, Group):
            policy_version = oldest_version(item)
        elif policy_version is None and isinstance(item, Episode):
            policy_version = item.min_version
        elif policy_version is None and getattr(item, "policy_version", None) is None:
            policy_version = self.version()
        self.buffer.add(item, policy_version)

    def _sample(self, curr_policy_version: int, batch_size: int | None = None) -> Any:
        """batch_size items; None while there are too few. With dp_size above 1: [dp_size][batch_size]; with `collate`
        what it makes of that.
        """
        batch = self.buffer.sample(curr_policy_version, batch_size)
        return batch if batch is None or self.buffer.dp_size > 1 or self.buffer.collate is not None else batch[0]


class RowCalls:
    """Rows of data sets, from the process that reads them."""

    def __init__(self, actor: ProcessGroup[DatasetActor]) -> None:
        self._actor = actor
        self.sample = Call(self._sample)
        self.sample_many = Call(self._sample_many)
        self.state_dict = Call(self._state)
        self.load_state_dict = Call(self._load)

    async def _sample(self) -> Row | None:
        """None when all sources have ended."""
        return await self._actor.call_one(DatasetActor.sample, timeout_s=ROWS_TIMEOUT_S)

    async def _sample_many(self, count: int) -> list[Row]:
        """Fewer than count when all sources have ended."""
        return await self._actor.call_one(DatasetActor.sample_many, count, timeout_s=ROWS_TIMEOUT_S)

    async def _state(self) -> dict[str, Any]:
        return await self._actor.call_one(DatasetActor.state_dict, timeout_s=ROWS_TIMEOUT_S)

    async def _load(self, state: Mapping[str, Any]) -> None:
        await self._actor.call_one(DatasetActor.load_state_dict, state, timeout_s=ROWS_TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedPieces:
    """rows, responses: None where none were asked for."""

    asked: Pieces
    buffer: BufferCalls
    rows: RowCalls | None
    responses: RewardService | None


async def start_pieces(pieces: Pieces, buffer: BufferCalls, stack: AsyncExitStack) -> StartedPieces:
    """Start the processes that they need, to be closed with the stack. Raises UserError for a mistake."""
    rows = responses = None
    if pieces.rows:
        actor = await DatasetActor.as_actor(tuple(pieces.rows), dict(pieces.row_settings))
        stack.push_async_callback(DatasetActor.shutdown, actor)
        rows = RowCalls(actor)
    if pieces.reward_functions:
        launch = RewardActor.options(num_replicas=pieces.reward_replicas)
        service = await launch.as_service(tuple(pieces.reward_functions))
        stack.push_async_callback(RewardActor.shutdown, service)
        responses = RewardService(service=service, timeout_s=pieces.reward_timeout_s)
    return StartedPieces(asked=pieces, buffer=buffer, rows=rows, responses=responses)
