"""The environment: a Gymnasium environment whose observations are read and whose actions are written."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, ClassVar, Final, get_args

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest
from agentgym.types import Json, Message, Split, Task
from agentgym_envs.gymnasium.planning import best_actions, transitions_of
from agentgym_envs.gymnasium.words import WORDINGS, Success, Wording, drawing, find_action

TEST_ONE_IN: Final = 5  # beginnings that belong to the test split
MAX_FRUITLESS: Final = 300  # seeds in a row whose episodes begin in no new way


@dataclass(slots=True)
class Play:
    """One episode. env: of Gymnasium. observation: the last one."""

    env: Any
    observation: Any
    total: float = 0.0


class GymnasiumEnvironment(Environment[Play]):
    """An environment of Gymnasium with numbered actions or text, an action in each of the agent's turns.

    Recorded in `info`: success, return (the sum of rewards), steps (valid actions), ended (terminated, truncated or
    empty).
    """

    name: ClassVar[str] = "gymnasium"
    shorthand: ClassVar[str] = "id"
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 40
    requirements: ClassVar[str] = "pip install 'gymnasium>=1.1'"

    def __init__(
        self,
        *,
        id: Annotated[
            str, "the environment, as `gymnasium.make` takes it; --env gymnasium:ID gives it, too"
        ] = "FrozenLake-v1",
        kwargs: Annotated[Mapping[str, Json] | None, "keyword arguments of `gymnasium.make`"] = None,
        actions: Annotated[
            Sequence[str], "a name for each action; known of FrozenLake, Taxi, CliffWalking and Blackjack"
        ] = (),
        task: Annotated[str, "what to do, in words; known of the same four"] = "",
        success: Annotated[
            Success | None, "what the last step must have: a reward above 0, or only that it terminated the episode"
        ] = None,
        map_size: Annotated[int | None, "size of FrozenLake's map, drawn for each task; 0 keeps that of kwargs"] = None,
        max_steps: Annotated[int, "turns of the agent at most"] = 40,
        test_tasks: Annotated[int, "tasks of the test split at most"] = 256,
    ) -> None:
        """Raises UserError for what Gymnasium does not know, and for spaces that are neither numbered nor text."""
        if success is not None and success not in get_args(Success):
            raise UserError(f"gymnasium: no success {success!r}.{nearest(success, get_args(Success))}")
        if max_steps < 1 or test_tasks < 1:
            raise UserError(f"gymnasium: max_steps {max_steps}, test_tasks {test_tasks}: both must be at least 1")
        known = WORDINGS.get(id.rpartition("/")[2].rpartition("-v")[0], Wording(task=""))
        self._id = id
        self._kwargs = {**known.kwargs, **(kwargs or {})}
        self._map_size = known.map_size if map_size is None and "desc" not in self._kwargs else map_size or 0
        self._task = task or known.task or f"Act in {id}."
        self._names = tuple(actions) or known.actions
        self._success: Success = success or known.success
        self._describe = known.describe or drawing
        self._test_tasks = test_tasks
        self.max_turns = max_steps  # type: ignore[misc]

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """One task for each way to begin; which split it belongs to is a matter of what is seen then."""
        seen: set[str] = set()
        made = fruitless = 0
        for start, env, observation in self._beginnings(seed):
            if fruitless == MAX_FRUITLESS or (split == "test" and made == self._test_tasks):
                break
            fruitless += 1
            actions, shown = self._actions(env), self._describe(env, observation)
            if (_number(f"{self._id}\n{shown}") % TEST_ONE_IN == 0) != (split == "test"):
                continue
            if shown in seen and split == "test":
                continue
            seen.add(shown)
            made, fruitless = made + 1, 0
            choice = f"Answer with one action: {', '.join(actions)}." if actions else "Answer with your action alone."
            yield Task(
                task_id=f"gymnasium/{self._id}/{start}",
                prompt=({"role": "user", "content": f"{self._task}\n{shown}\n{choice}"},),
                answer=start,
                split=split,
            )
        if not made:
            raise UserError(
                f"gymnasium: {split} has no task: {MAX_FRUITLESS} episodes of {self._id} began in ways that belong to "
                "the other split. Give settings under which they begin in more ways"
            )

    async def start(self, context: EpisodeContext[Play]) -> Play:
        context.info.update({"success": False, "return": 0.0, "steps": 0, "ended": ""})
        return Play(*await asyncio.to_thread(self._begun, _start_of(context.task)))

    async def reply(self, context: EpisodeContext[Play]) -> Reply:
        play, said = context.state, context.messages[-1]["content"]
        names = self._actions(play.env)
        action: Any = find_action(said, names) if names else said.strip()
        if action is None:
            text = f"That names no action. Answer with one of: {', '.join(names)}."
            return Reply(messages=({"role": "user", "content": text},))
        space = play.env.action_space
        try:
            play.observation, gain, terminated, truncated, _ = await asyncio.to_thread(
                play.env.step, int(space.start) + action if names else action
            )
        except Exception:
            if names or space.contains(action):
                raise
            return Reply(messages=({"role": "user", "content": "That text is not allowed as an action."},))
        play.total += float(gain)
        done = bool(terminated or truncated)
        reached = bool(terminated) if self._success == "terminated" else done and float(gain) > 0
        ended = "terminated" if terminated else "truncated" if truncated else ""
        steps = int(str(context.info["steps"])) + 1
        context.info.update({"success": reached, "return": play.total, "steps": steps, "ended": ended})
        if done:
            return Reply(done=True)
        shown = self._describe(play.env, play.observation)
        return Reply(messages=({"role": "user", "content": f"Reward: {float(gain):g}\n{shown}"},))

    async def finish(self, context: EpisodeContext[Play]) -> None:
        if context.state is not None:
            context.state.env.close()

    def solve(self, task: Task) -> Iterator[Message] | None:
        """The best actions where the environment has a table of its transitions, as toy text does; else None."""
        env, observation = self._begun(_start_of(task))
        transitions = transitions_of(env)
        if transitions is None:
            env.close()
            return None
        settings = json.dumps([self._id, self._kwargs, _start_of(task) if self._map_size else 0])
        if settings not in _PLANS:
            _PLANS[settings] = best_actions(transitions)
        return self._actions_to_goal(env, observation, _PLANS[settings])

    def _actions_to_goal(self, env: Any, observation: Any, plan: Mapping[int, int]) -> Iterator[Message]:
        """Played in a copy with the same seed, where chance falls the same way."""
        names, done = self._actions(env), False
        try:
            while not done:
                action = plan[int(observation)]
                yield Message(role="assistant", content=names[action])
                observation, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
        finally:
            env.close()

    def _beginnings(self, seed: int) -> Iterator[tuple[int, Any, Any]]:
        """Beginnings of episodes, without end; in one environment where all have one map: making it can be slow."""
        env = None
        try:
            for index in count():
                start = _number(f"{seed}/{index}") % 2**31
                if env is not None and self._map_size:
                    env.close()
                    env = None
                env, observation = self._begun(start, env)
                yield start, env, observation
        finally:
            if env is not None:
                env.close()

    def _begun(self, start: int, env: Any = None) -> tuple[Any, Any]:
        """env: one of the same settings and map, to begin again; None makes one."""
        if env is None:
            env = _made(self._id, json.dumps(self._kwargs, sort_keys=True), self._map_size, start)
        observation, _ = env.reset(seed=start)
        return env, observation

    def _actions(self, env: Any) -> tuple[str, ...]:
        """A name for each action; none where an action is text."""
        import gymnasium

        space = env.action_space
        if isinstance(space, gymnasium.spaces.Text):
            return ()
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise UserError(
                f"gymnasium: {self._id} has the action space {space}; only Discrete and Text can be written"
            )
        names = self._names or tuple(map(str, range(int(space.start), int(space.start + space.n))))
        if len(names) != space.n:
            raise UserError(f"gymnasium: {self._id} has {space.n} actions, and `actions` names {len(names)}: {names}")
        return names


_PLANS: Final[dict[str, dict[int, int]]] = {}


def _made(id: str, kwargs: str, map_size: int, start: int) -> Any:
    """Raises UserError for what Gymnasium does not know or take."""
    try:
        import gymnasium
    except ImportError as error:
        raise UserError(f"gymnasium is not installed: {GymnasiumEnvironment.requirements}") from error
    settings = json.loads(kwargs)
    if map_size:
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        settings["desc"] = generate_random_map(size=map_size, seed=start)
    try:
        if "ansi" in _modes(id):
            settings["render_mode"] = "ansi"
        return gymnasium.make(id, **settings)
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        raise UserError(f"gymnasium: {id} with {settings} cannot be made: {type(error).__name__}: {error}") from error


@functools.cache
def _modes(id: str) -> tuple[str, ...]:
    import gymnasium

    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)  # which registers it; `gymnasium.spec` does not import it, as `make` does
    entry = gymnasium.spec(name).entry_point
    made = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    return tuple(getattr(made, "metadata", {}).get("render_modes", ()))


def _start_of(task: Task) -> int:
    return int(str(task.answer))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
