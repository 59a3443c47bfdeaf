"""Runs in the Python of an environment package of verifiers: loads it, and plays its rollouts against an endpoint.

It is loaded by `agentgym_envs.packages.serving`, and nothing of agentgym is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym_envs.packages.serving import Mistake, digest_of, version_of

KEY = "AGENTGYM_KEY_"
KEPT = 4096  # rollouts
NUMBERS = itertools.count()
SEVERAL = (
    "several agents of it are played by the policy: {}. Each has a reward of its own, and an episode has one here. Pin "
    "all but one to a model of their own in `arguments`"
)


class Classic:
    """What `load_environment` returns: verifiers before 0.4."""

    def __init__(self, library: Any, name: str, arguments: Mapping[str, Any], compares: bool) -> None:
        self._environment = library.load_environment(name, **arguments)
        if not hasattr(self._environment, "run_rollout"):
            raise Mistake("verifiers before 0.1.10 can't be played; install a newer one")
        self._compares = compares
        self._rollouts: dict[int, Any] = {}  # that a group's rewards may still ask for
        if not compares and (names := self._group_rewards()):
            raise Mistake(
                f"{name} compares the rollouts of a group, in {', '.join(names)}; allow it: "
                "env.options.group_rewards=true"
            )
        self._train, self._test = self._datasets()
        module = importlib.import_module(getattr(library, "Environment", Classic).__module__)
        self._client_of = getattr(module, "resolve_client", None)

    @property
    def sizes(self) -> list[int | None]:
        """Of the training rows and of those held out; 0 where it has none."""
        return [len(self._train), len(self._test)]

    def row(self, held_out: bool, number: int) -> tuple[Any, Any]:
        """Its prompt, and all that tells it from other rows."""
        row = (self._test if held_out else self._train)[number]
        return row.get("prompt"), {name: value for name, value in row.items() if name != "example_id"}

    async def play(self, held_out: bool, number: int, url: str, variable: str, model: str) -> dict[str, Any]:
        config = importlib.import_module("verifiers.types").ClientConfig(
            api_base_url=f"{url}/v1", api_key_var=variable, max_retries=2
        )
        row = dict((self._test if held_out else self._train)[number])
        row.setdefault("example_id", number)
        async with contextlib.AsyncExitStack() as stack:
            if self._client_of is not None:
                config = self._client_of(config)
                stack.push_async_callback(config.close)  # the library leaves its connections open
            if self._compares:
                played = await self._environment.rollout(row, config, model, {})
                await self._environment.rubric.score_group([played])
                await self._environment.rubric.cleanup(played)
            else:
                played = await self._environment.run_rollout(row, config, model, {})
        error = played.get("error")
        return {
            "reward": None if error else played.get("reward"),
            "metrics": played.get("metrics") or {},
            "ended": played.get("stop_condition"),
            "error": str(error.get("error_chain_repr") or error)
            if isinstance(error, Mapping)
            else error and str(error),
            "rollout": self._keep(played) if self._compares and not error else None,
        }

    async def compare(self, numbers: Sequence[int]) -> list[tuple[float, Mapping[str, float]]]:
        """Reward and metrics of the rollouts of a group, which are kept by these numbers."""
        if not all(number in self._rollouts for number in numbers):
            raise RuntimeError("rollouts of this group are gone: the process has ended since, or has played too many")
        rollouts = [self._rollouts[number] for number in numbers]
        await self._environment.rubric.score_group(rollouts)
        return [(one["reward"], one["metrics"]) for one in rollouts]

    def _keep(self, rollout: Any) -> int:
        number = next(NUMBERS)
        self._rollouts[number] = rollout
        if len(self._rollouts) > KEPT:
            del self._rollouts[min(self._rollouts)]
        return number

    def _group_rewards(self) -> list[str]:
        rubric: Any = getattr(self._environment, "rubric", None)
        functions = rubric._get_reward_funcs() if hasattr(rubric, "_get_reward_funcs") else ()
        return [one.__name__ for one in functions if rubric._is_group_func(one)]

    def _datasets(self) -> tuple[Sequence[Any], Sequence[Any]]:
        found: list[Sequence[Any]] = []
        for kind in ("dataset", "eval_dataset"):
            build = getattr(self._environment, f"build_{kind}", None)
            rows = build() if build is not None else getattr(self._environment, kind, None)
            found.append(() if rows is None else rows)
        return found[0], found[1]


def _share_connections() -> None:
    """Of `verifiers.v1`: it keeps a client for each key until the end, and here each episode has a key."""
    clients: Any = importlib.import_module("verifiers.v1.clients.eval")
    build: Any = getattr(clients, "build_async_httpx", None)
    shared: list[Any] = []

    def build_once(config: Any) -> Any:
        if not config.api_key_var.startswith(KEY):
            return build(config)
        if not shared:
            shared.append(build(config))
        return shared[0]

    if build is not None and build.__name__ != build_once.__name__:
        clients.build_async_httpx = build_once


class Tasksets:
    """A taskset with its environment of the new interface, `verifiers.v1`."""

    def __init__(self, name: str, arguments: Mapping[str, Any], unsafe: bool) -> None:
        configs = importlib.import_module("verifiers.v1.configs.agent")
        if not hasattr(configs, "agent_config_fields"):
            raise Mistake(f"its new interface can be played from verifiers 0.4 on; this is {version_of('verifiers')}")
        _share_connections()
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        given = dict(arguments)
        given["taskset"] = {**(given.get("taskset") or {}), "id": name}
        for _ in range(2):  # the second time with what the agents were not given
            config = loaders.resolve_env_config(given)
            agents = configs.agent_config_fields(config)
            for role, spec in agents.items():
                chosen = dict(given.get(role) or {})
                chosen.setdefault("runtime", {"type": "subprocess"})
                if spec.harness is None and loaders.default_harness_id(name) == "bash":
                    chosen.setdefault("harness", {"id": "null"})
                given[role] = chosen
        played = [role for role, spec in agents.items() if spec.model is None and spec.client is None]
        if len(played) > 1:
            raise Mistake(SEVERAL.format(", ".join(played)))
        self._pinned = set(agents) - set(played)
        for role in [] if unsafe else played:
            harness = loaders.load_harness(agents[role].harness or loaders.harness_config_type(name)(id=name))
            if harness.EXECUTES_CODE and agents[role].runtime.type == "subprocess":
                raise Mistake(
                    f"the harness {harness.config.id!r} runs what the policy writes on this machine, with your rights. "
                    f"Give another runtime, as arguments: {{{role}: {{runtime: {{type: docker}}}}}}, or allow it: "
                    "env.options.unsafe=true"
                )
        self.environment = loaders.load_environment(config)
        self._endless = not self.environment.taskset.bounded
        self._unread: Iterator[Any] = iter(self.environment.taskset)
        self._tasks: list[Any] = [] if self._endless else list(self._unread)

    @property
    def sizes(self) -> list[int | None]:
        """None: without an end."""
        return [None if self._endless else len(self._tasks), 0]

    def row(self, held_out: bool, number: int) -> tuple[Any, Any]:
        """Its prompt, and all that tells it from other rows."""
        data = self._task(number).data.model_dump(mode="json")
        system = [] if not data.get("system_prompt") else [{"role": "system", "content": data["system_prompt"]}]
        prompt = data.get("prompt") or data.get("name")
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        return [*system, *said], {name: value for name, value in data.items() if name != "idx"}

    async def play(self, held_out: bool, number: int, url: str, variable: str, model: str) -> dict[str, Any]:
        clients = importlib.import_module("verifiers.v1.clients")
        config = clients.EvalClientConfig(base_url=f"{url}/v1", api_key_var=variable)
        [slot] = self.environment.slots(self._task(number))
        episode = await self.environment.run_slot(slot, clients.ModelContext(model=model, client=config))
        traces = [trace for trace in episode.traces if trace.agent.name not in self._pinned]
        failed = [error for one in (episode, *traces) for error in one.errors]
        error = None if episode.ok else f"{failed[-1].type}: {failed[-1].message}" if failed else "it did not end well"
        return {
            "reward": None if error or not traces else sum(trace.reward for trace in traces) / len(traces),
            "metrics": {name: value for trace in traces for name, value in _scores(trace)},
            "ended": traces[-1].stop_condition if traces else None,
            "error": error,
        }

    def _task(self, number: int) -> Any:
        self._tasks.extend(itertools.islice(self._unread, max(0, number + 1 - len(self._tasks))))
        return self._tasks[number]


def _scores(trace: Any) -> Iterator[tuple[str, float | None]]:
    for name, reward in trace.rewards.items():
        yield name, None if reward is None else reward.score
    yield from trace.metrics.items()


def _load(name: str, arguments: Mapping[str, Any], unsafe: bool, compares: bool) -> Classic | Tasksets:
    try:
        library = importlib.import_module("verifiers")
    except ModuleNotFoundError as error:
        raise Mistake(
            f"{sys.executable} has no package verifiers: {sys.executable} -m pip install verifiers"
        ) from error
    module = name.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        if not _is_shipped(module):
            raise Mistake(f"there is no environment package {name!r} in {sys.executable}; install it there") from error
        return Tasksets(name, arguments, unsafe)
    if hasattr(found, "load_environment"):
        if not hasattr(library, "load_environment"):
            raise Mistake(
                f"{name!r} is of the older interface, load_environment, which {version_of('verifiers')} no longer "
                f"has: install verifiers<0.4 in {sys.executable}"
            )
        return Classic(library, name, arguments, compares)
    if compares:
        raise Mistake(f"{name!r} is of the new interface, which compares no rollouts: env.options.group_rewards=false")
    return Tasksets(name, arguments, unsafe)


def _is_shipped(module: str) -> bool:
    """Whether verifiers itself has a taskset of that name."""
    tasksets = "verifiers.v1.tasksets"
    return all(importlib.util.find_spec(one) is not None for one in ("verifiers.v1", tasksets, f"{tasksets}.{module}"))


class Operations:
    together = ("play", "compare")

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._loaded: dict[str, Classic | Tasksets] = {}
        self._stack = stack

    async def open(
        self, slot: str, name: str, arguments: dict[str, Any], unsafe: bool, compares: bool
    ) -> dict[str, Any]:
        random.seed(0)  # some draw their rows without a seed of their own
        loaded = self._loaded[slot] = _load(name, arguments, unsafe, compares)
        if isinstance(loaded, Tasksets):
            await self._stack.enter_async_context(loaded.environment.serving())
        versions = [version_of(name.rsplit("/", 1)[-1].split("@", 1)[0]), version_of("verifiers")]
        versions.append(f"Python {sys.version.split()[0]}")
        return {"sizes": loaded.sizes, "versions": ", ".join(versions)}

    async def rows(self, slot: str, held_out: bool, numbers: list[int]) -> list[tuple[Any, int]]:
        """The prompt of each, and a number that is made of all that is in it."""
        found = [self._loaded[slot].row(held_out, number) for number in numbers]
        return [(prompt, digest_of(row)) for prompt, row in found]

    async def play(
        self, slot: str, held_out: bool, number: int, digest: int, url: str, key: str, model: str
    ) -> dict[str, Any]:
        loaded = self._loaded[slot]
        if digest_of(loaded.row(held_out, number)[1]) != digest:
            raise Mistake(
                f"row {number} is another one than when its tasks were drawn, so the package draws its rows anew each "
                "time that it is loaded; give its seed in env.options.arguments"
            )
        with _variable(key) as variable:
            return await loaded.play(held_out, number, url, variable, model)

    async def compare(self, slot: str, rollouts: list[int]) -> list[Any]:
        loaded = self._loaded.get(slot)
        if not isinstance(loaded, Classic):
            raise RuntimeError("the process has ended, and the rollouts of this group with it")
        return await loaded.compare(rollouts)


@contextlib.contextmanager
def _variable(value: str) -> Iterator[str]:
    """An environment variable of its own with a key: the library takes keys from nowhere else."""
    name = f"{KEY}{os.urandom(8).hex().upper()}"
    os.environ[name] = value
    try:
        yield name
    finally:
        del os.environ[name]
