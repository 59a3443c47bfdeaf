"""Runs in the Python of skyrl-gym: makes its environments and steps them, each episode's in one thread at a time.

It is loaded by `agentgym_envs.packages.serving`, and nothing of agentgym is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import os
import sys
import threading
import typing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from agentgym_envs.packages.serving import Mistake, version_of

THREADS = 64
MAX_HUNG = 16  # steps of episodes that were given up, and still run: then the process ends, and starts again
RUNS_WHAT_IS_WRITTEN = ("skyrl_gym.envs.lcb", "skyrl_gym.envs.rlm", "skyrl_gym.envs.sql")
Value = TypeVar("Value")


class Play:
    """An episode's environment. busy: one of its methods runs. over: to be closed once it does not."""

    def __init__(self) -> None:
        self.environment: Any = None
        self.busy, self.over = False, False


class Operations:
    together = ("start", "step", "finish")

    def __init__(self, _: contextlib.AsyncExitStack) -> None:
        self._plays: dict[str, Play] = {}
        self._threads = ThreadPoolExecutor(THREADS)
        self._making = threading.Lock()  # registering and importing are not for several threads
        self._ending = threading.Lock()
        self._num_hung = 0

    async def check(self, name: str, row: Mapping[str, Any], config: Mapping[str, Any], unsafe: bool) -> None:
        """Make the environment of a row once."""
        try:
            await self.start("", name, row, config, unsafe)
        except AssertionError as error:  # so they say that a row lacks a field
            raise Mistake(f"the first row is not one of {name}: {error}") from error
        await self.finish("")

    async def start(
        self, play: str, name: str, row: Mapping[str, Any], config: Mapping[str, Any], unsafe: bool
    ) -> dict[str, Any]:
        """The messages that the policy sees first, and versions."""
        extras = {key: value for key, value in row.items() if key not in ("prompt", "env_class")}
        this = self._plays[play] = Play()

        def begin() -> list[Any]:
            with self._making:
                this.environment = _made(name, config, extras)
            if not unsafe and _runs_what_is_written(this.environment):
                raise Mistake(
                    f"{name} runs what the policy writes on this machine, with your rights; allow it: "
                    "env.options.unsafe=true"
                )
            prompt, _ = this.environment.init([dict(message) for message in row["prompt"]])
            return list(prompt)

        versions = f"{version_of('skyrl-gym')}, Python {sys.version.split()[0]}"
        try:
            return {"messages": await self._in_thread(this, begin), "versions": versions}
        except BaseException:
            await self.finish(play)
            raise

    async def step(self, play: str, said: str) -> dict[str, Any]:
        this = self._plays.get(play)
        if this is None:
            raise RuntimeError("the process ended within the episode, and its environment with it")
        environment = this.environment

        def act() -> dict[str, Any]:
            out = environment.step(said)
            if not isinstance(out, Mapping):
                raise TypeError(f"step gave {out!r:.80}; a BaseTextEnvStepOutput was expected")
            answer = {key: _plain(out.get(key)) for key in ("observations", "reward", "done", "postprocessed_action")}
            answer["metrics"] = {} if not out["done"] else {k: _plain(v) for k, v in environment.get_metrics().items()}
            return answer

        return await self._in_thread(this, act)

    async def finish(self, play: str) -> None:
        this = self._plays.pop(play, None)
        if this is None:
            return
        with self._ending:
            this.over, is_busy = True, this.busy
            self._num_hung += is_busy
        if self._num_hung > MAX_HUNG:
            print(f"steps of {self._num_hung} episodes that were given up are still running", file=sys.stderr)
            os._exit(1)
        if not is_busy and this.environment is not None:
            await self._in_thread(this, this.environment.close)

    async def _in_thread(self, play: Play, function: Callable[[], Value]) -> Value:
        was_over, play.busy = play.over, True

        def run() -> Value:
            try:
                return function()
            finally:
                with self._ending:
                    play.busy = False
                    given_up = play.over and not was_over
                    self._num_hung -= given_up
                if given_up and play.environment is not None:
                    play.environment.close()

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)


def _made(name: str, config: Mapping[str, Any], extras: dict[str, Any]) -> Any:
    try:
        library = importlib.import_module("skyrl_gym")
    except ModuleNotFoundError as error:
        raise Mistake(
            f"{sys.executable} has no package skyrl_gym: {sys.executable} -m pip install skyrl-gym"
        ) from error
    if name not in library.registry:
        if ":" not in name:
            near = difflib.get_close_matches(name, library.registry, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise Mistake(
                f"skyrl-gym has no environment {name!r}.{hint} It has: {', '.join(sorted(library.registry))}. One of "
                "your own is given by its import path: --env skyrl_gym:my_environment.py:MyEnv"
            )
        library.register(id=name, entry_point=_imported(name))
    entry = library.registry[name].entry_point
    made_by = entry if callable(entry) else library.envs.registration.load_env_creator(entry)
    return library.make(name, env_config=_config_of(made_by, config), extras=extras)


def _imported(path: str) -> Any:
    """`package.module:Class` or `file.py:Class`, from the working directory as SkyRL's own runs."""
    module_name, _, attribute = path.rpartition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    if module_name.endswith(".py"):
        if not Path(module_name).is_file():
            raise Mistake(f"there is no file {module_name}")
        spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
        assert spec is not None and spec.loader is not None, "it is Python source"
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                raise  # one that it imports
            raise Mistake(f"there is no module {error.name!r} in {here} or in {sys.executable}") from error
    if not hasattr(module, attribute):
        raise Mistake(f"{module_name} has no {attribute!r}")
    return getattr(module, attribute)


def _config_of(made_by: Any, given: Mapping[str, Any]) -> Any:
    """What SkyRL has for it under `environment.skyrl_gym`: the defaults of its dataclass, and what is given."""
    hint = typing.get_type_hints(getattr(made_by, "__init__", made_by)).get("env_config")
    kinds = [kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)]
    defaults = dataclasses.asdict(kinds[0]()) if kinds and isinstance(kinds[0], type) else {}
    return importlib.import_module("omegaconf").OmegaConf.create({**defaults, **given})


def _runs_what_is_written(environment: Any) -> bool:
    shipped = any(one.__module__.startswith(RUNS_WHAT_IS_WRITTEN) for one in type(environment).__mro__)
    return shipped or any(
        "PythonCodeExecutorToolGroup" in {one.__name__ for one in type(group).__mro__}
        for group in getattr(environment, "tool_groups", ())
    )


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, which JSON has."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
