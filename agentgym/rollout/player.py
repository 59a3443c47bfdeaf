"""Plays one episode, whoever the policy is: session, start, turns, finish, score, and again where something broke."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from agentgym.env import Environment
from agentgym.errors import waited_for
from agentgym.plugin_errors import PluginError
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner, EpisodeTimeOver, end_for_time
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox
from agentgym.types import CUT, Episode, Json, Outcome, Stop, Task


@dataclass(slots=True, kw_only=True)
class Player(ABC):
    """What all episodes of a run share. greedy: the likeliest token is taken, whatever config.temperature is."""

    environment: Environment[Any]
    scorer: Scorer
    config: RolloutConfig
    sandbox: Sandbox | None
    activity: Activity
    greedy: bool = False

    @property
    def wants_session(self) -> bool:
        """Whether each episode leases a session, also where its task asks for none."""
        return False

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Entered before an episode begins."""
        return nullcontext()

    def carried(self, broken: Episode) -> dict[str, Json]:
        """The `info` with which an episode that broke is played again."""
        return {}

    async def play(self, task: Task, *, episode_id: str, seed: int) -> Episode:
        """One scored episode. What fails is on the episode, never raised, unless it is a bug of ours."""
        retries = 0
        info: dict[str, Json] = {}
        while True:
            episode = Episode(episode_id=episode_id, task=task, seed=seed, info=info, retries=retries)
            runner = EpisodeRunner(
                environment=self.environment,
                scorer=self.scorer,
                config=self.config,
                sandbox=self.sandbox,
                episode=episode,
                wants_session=self.wants_session,
            )
            try:
                async with self.slot():  # this wait and the next one are not counted in the episode's time
                    if runner.needs_session:
                        async with AsyncExitStack() as stack:
                            await runner.lease(stack)
                            await self._play(runner)
                    else:
                        await self._play(runner)
                await runner.score()
                if self.config.cut_turns == "mask" and episode.stop in CUT:
                    episode.turns = [replace(turn, masked=True) for turn in episode.turns]
                return episode
            except (EpisodeBroken, PluginError) as error:
                broken = error if isinstance(error, EpisodeBroken) else EpisodeBroken.by("", error, retry=False)
                episode.stop = episode.stop or Stop.ERROR
                episode.outcome, episode.error = Outcome.INFRA_ERROR, broken.record
                if not broken.retry or retries >= self.config.max_retries:
                    return episode
                retries += 1
                info = self.carried(episode)

    async def _play(self, runner: EpisodeRunner) -> None:
        episode = runner.episode
        began = time.monotonic()
        runner.until_s = asyncio.get_running_loop().time() + self.config.episode_time_s
        try:
            async with runner.started():
                await self._turns(runner)
        except EpisodeTimeOver as over:
            assert over.__cause__ is not None
            if (cause := waited_for(over.__cause__)) is not None:
                episode.stop = Stop.TIME
                raise EpisodeBroken.by(runner.of_sandbox, cause, retry=True) from over
            end_for_time(episode, self.config)
            episode.outcome = Outcome.INVALID  # a reply was cut short: there is nothing to score
        finally:
            episode.timing_s["episode_s"] = time.monotonic() - began

    @abstractmethod
    async def _turns(self, runner: EpisodeRunner) -> None:
        """The policy's turns and what answers them, until `episode.stop` is set. Raises EpisodeBroken."""
