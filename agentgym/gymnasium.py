"""Adapts every environment to `gymnasium.Env`, and many episodes of it to a native vector environment.

Importing this module needs gymnasium, and registers all installed environments. Observations and actions are
text. The episodes are async; they run on one event loop in a daemon thread, which all adapters of a process
share and which ends with the last of them.
"""

from __future__ import annotations

import asyncio
import logging
import string
import threading
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, ClassVar, Final, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from agentgym.errors import UserError, nearest
from agentgym.hooks import PluginRegistry
from agentgym.rollout.calls import all_together
from agentgym.rollout.text_episode import TextEpisode, TextGame, TextGameConfig

Result = TypeVar("Result")
Info = dict[str, Any]  # as gymnasium has it

log = logging.getLogger(__name__)
_SEEDS: Final = 2**31  # that an episode's is drawn from
_SAMPLED_CHARS: Final = string.ascii_letters + string.digits + string.punctuation + " \n"


def register_gymnasium(registry: PluginRegistry | None = None) -> list[str]:
    """Make every environment of a registry known to `gymnasium.make` and `make_vec`; returns their ids.

    Done for what is installed when this module is imported, so that `make("agentgym.gymnasium:agentgym/math-v2")`
    needs no other line. Keyword arguments of `make` are the fields of `TextGameConfig`.
    """
    registry = registry or PluginRegistry.discover()
    ids = []
    for name, offer in registry.listed("environments").items():
        if isinstance(offer, UserError):
            log.warning("not registered: %s", offer)
            continue
        version = getattr(offer[0], "version", 1)
        ids.append(f"agentgym/{name}-v{version}")
        if ids[-1] not in gymnasium.registry:
            gymnasium.register(
                ids[-1],
                entry_point=f"{__name__}:TextEnv",
                vector_entry_point=f"{__name__}:TextVectorEnv",
                kwargs={"name": name},
            )
    return ids


class AnyText(gymnasium.Space[str]):
    """Every string. gymnasium's own Text lists its characters, so it cannot hold all of Unicode."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: object = None, probability: object = None) -> str:
        """A short random text."""
        size = int(self.np_random.integers(0, 40))
        return "".join(_SAMPLED_CHARS[i] for i in self.np_random.integers(0, len(_SAMPLED_CHARS), size))

    def contains(self, x: object) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)

    def __repr__(self) -> str:
        return "AnyText()"


class _SharedLoop:
    """One event loop in a daemon thread, which runs while anybody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="agentgym-gymnasium", daemon=True)
                self._thread.start()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:  # the garbage collector may run there
                self._thread.join()
                self._loop.close()
            self._loop = self._thread = None

    def run(self, call: Coroutine[object, object, Result]) -> Result:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting
            future.cancel()
            raise


_LOOP: Final = _SharedLoop()


class _Game:
    """An environment with some episodes of it, and the shared loop that they run on."""

    def __init__(self, config: TextGameConfig, num_episodes: int) -> None:
        _LOOP.acquire()
        self._end = weakref.finalize(self, _LOOP.release)
        try:
            self._shared = _LOOP.run(TextGame.start(PluginRegistry.discover(), config))
        except BaseException:
            self._end()
            raise
        self._episodes = [TextEpisode(self._shared) for _ in range(num_episodes)]

    @property
    def episodes(self) -> list[TextEpisode]:
        """Raises gymnasium's ClosedEnvironmentError after `close`."""
        if not self._end.alive:
            raise ClosedEnvironmentError("this environment is closed and plays no more episodes; make another one")
        return self._episodes

    def close(self) -> None:
        if self._end.alive:
            try:
                _LOOP.run(self._close())
            finally:
                self._end()

    async def _close(self) -> None:
        try:
            for episode in self._episodes:
                await episode.close()
        finally:
            await self._shared.close()


class TextEnv(gymnasium.Env[str, str]):
    """One environment: `make("agentgym/math-v2", split="test")`, or `TextEnv(name="my_env.py:GuessNumber")`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]

    def __init__(self, *, render_mode: str | None = None, **config: Any) -> None:
        """config: fields of `TextGameConfig`."""
        self.render_mode = render_mode
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self._game = _Game(TextGameConfig(**config), 1)
        self._transcript = ""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        """options: `task_id` chooses a task. Raises UserError for one that the split does not have."""
        (episode,) = self._game.episodes
        task_id = _option(options, "task_id")
        super().reset(seed=seed)
        text, info = _LOOP.run(episode.reset(int(self.np_random.integers(_SEEDS)), task_id))
        self._transcript = text
        return text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Raises InfraError when the episode cannot be scored."""
        (episode,) = self._game.episodes
        after = _LOOP.run(episode.step(action))
        self._transcript += f"\n\n> {action}\n\n{after.text}"
        return after

    def render(self) -> str | None:
        return self._transcript if self.render_mode == "ansi" else None

    def close(self) -> None:
        self._game.close()


class TextVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], np.ndarray[Any, Any]]):
    """Many episodes of one environment at the same time, on one event loop.

    autoreset_mode: as gymnasium has them. DISABLED, the default: finished episodes wait until
    `reset(options={"reset_mask": finished})`; until then their actions are ignored, and their text is empty and
    their reward 0. NEXT_STEP: the next step ignores their action and begins the next episode. SAME_STEP: the step
    that ends one returns the next one's prompt, with the end in the infos `final_obs` and `final_info`.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": [],
        "autoreset_mode": AutoresetMode.DISABLED,
    }

    def __init__(
        self, num_envs: int, *, autoreset_mode: AutoresetMode | str = AutoresetMode.DISABLED, **config: Any
    ) -> None:
        """config: fields of `TextGameConfig`. Raises UserError for an unknown mode."""
        try:
            self._mode = AutoresetMode(autoreset_mode)
        except ValueError:
            hint = nearest(str(autoreset_mode), [mode.value for mode in AutoresetMode])
            raise UserError(f"no autoreset_mode {autoreset_mode!r}.{hint}") from None
        self.metadata = {**type(self).metadata, "autoreset_mode": self._mode}  # type: ignore[misc]  # as in gymnasium
        self.num_envs = num_envs
        self.single_observation_space = self.single_action_space = AnyText()
        self.observation_space = self.action_space = batch_space(AnyText(), num_envs)
        self._game = _Game(TextGameConfig(**config), num_envs)
        self._texts = [""] * num_envs
        self._over = np.ones(num_envs, dtype=np.bool_)
        self._begun = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Info | None = None
    ) -> tuple[tuple[str, ...], Info]:
        """seed: of the first episode, the others count on from it; or one for each. options: `reset_mask`."""
        episodes = self._game.episodes
        mask = _option(options, "reset_mask")
        super().reset(seed=seed if isinstance(seed, int) else None)
        count = self.num_envs
        seeds = range(seed, seed + count) if isinstance(seed, int) else seed or [None] * count
        chosen = range(count) if mask is None else [int(i) for i in np.flatnonzero(mask)]
        draws = {}
        for i in chosen:
            random = self.np_random if seeds[i] is None else np.random.default_rng(seeds[i])
            draws[i] = int(random.integers(_SEEDS))
        begun = _LOOP.run(all_together([episodes[i].reset(draw) for i, draw in draws.items()]))
        infos = self._begin(draws, begun, {})
        return tuple(self._texts), infos

    def _begin(self, chosen: Iterable[int], begun: Sequence[tuple[str, Info]], infos: Info) -> Info:
        """Take in the prompts of episodes that began; returns the infos with theirs."""
        for i, (text, info) in zip(chosen, begun, strict=True):
            self._texts[i], self._over[i], self._begun[i] = text, False, True
            infos = self._add_info(infos, info, i)
        return infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], Info]:
        """Raises InfraError when an episode cannot be scored, gymnasium's ResetNeeded before the first `reset`."""
        episodes = self._game.episodes
        if not self._begun.all():
            raise ResetNeeded(f"episodes {np.flatnonzero(~self._begun).tolist()} have not begun; call reset() first")
        waiting = [int(i) for i in np.flatnonzero(self._over)] if self._mode is AutoresetMode.NEXT_STEP else []
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated, truncated = np.zeros_like(self._over), np.zeros_like(self._over)
        self._texts = [""] * self.num_envs
        live = [int(i) for i in np.flatnonzero(~self._over)]
        infos: Info = {}
        for i, after in zip(live, _LOOP.run(all_together([episodes[i].step(actions[i]) for i in live])), strict=True):
            self._texts[i], rewards[i] = after.text, after.reward
            terminated[i], truncated[i] = after.terminated, after.truncated
            if self._mode is AutoresetMode.SAME_STEP and (after.terminated or after.truncated):
                waiting.append(i)
                infos = self._add_info(infos, {"final_obs": after.text, "final_info": after.info}, i)
            else:
                infos = self._add_info(infos, after.info, i)
        self._over |= terminated | truncated
        calls = [episodes[i].reset(int(self.np_random.integers(_SEEDS))) for i in waiting]
        infos = self._begin(waiting, _LOOP.run(all_together(calls)), infos)
        return tuple(self._texts), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        self._game.close()


def _option(options: Info | None, name: str) -> Any:
    """The one option of a reset; None where it is not given. Raises UserError for others."""
    if unknown := set(options or {}) - {name}:
        raise UserError(f"reset has no option {min(unknown)!r}.{nearest(min(unknown), [name])}")
    return (options or {}).get(name)


register_gymnasium()
