"""Runs in the Python of an environment package: loads it, and plays its rollouts against an endpoint.

Nothing of agentgym is imported. Requests and answers are lines of JSON on standard input and on what standard output
was at the start; what the package prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

MAX_LINE = 1 << 26
ORDERLY_S = 5.0  # for the package to end what it started, once agentgym was killed
KEY = "AGENTGYM_KEY_"
TAG = "AGENTGYM_AGENT"  # as in agentgym/programs.py
SEVERAL = "several agents of it are played by the policy: {}. Pin all but one to a model of their own in `arguments`"


class Mistake(Exception):
    """The user's: told without a traceback."""


class Classic:
    """What `load_environment` returns: verifiers before 0.4."""

    def __init__(self, library: Any, name: str, arguments: Mapping[str, Any]) -> None:
        self._environment = library.load_environment(name, **arguments)
        if not hasattr(self._environment, "run_rollout"):
            raise Mistake("verifiers before 0.1.10 can't be played; install a newer one")
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
            played = await self._environment.run_rollout(row, config, model, {})
        error = played.get("error")
        return {
            "reward": None if error else played.get("reward"),
            "metrics": played.get("metrics") or {},
            "ended": played.get("stop_condition"),
            "error": str(error.get("error_chain_repr") or error)
            if isinstance(error, Mapping)
            else error and str(error),
        }

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
            raise Mistake(f"its new interface can be played from verifiers 0.4 on; this is {_version('verifiers')}")
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


def _load(name: str, arguments: Mapping[str, Any], unsafe: bool) -> Classic | Tasksets:
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
                f"{name!r} is of the older interface, load_environment, which {_version('verifiers')} no longer "
                f"has: install verifiers<0.4 in {sys.executable}"
            )
        return Classic(library, name, arguments)
    return Tasksets(name, arguments, unsafe)


def _is_shipped(module: str) -> bool:
    """Whether verifiers itself has a taskset of that name."""
    tasksets = "verifiers.v1.tasksets"
    return all(importlib.util.find_spec(one) is not None for one in ("verifiers.v1", tasksets, f"{tasksets}.{module}"))


class Server:
    def __init__(self, out: int) -> None:
        self._out = out
        self._loaded: dict[str, Classic | Tasksets] = {}
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._stack = contextlib.AsyncExitStack()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with self._stack:
            while line := await reader.readline():
                request = json.loads(line)
                if request["op"] == "cancel":
                    self._write({"id": request["target"], "value": None})  # at once: to clean up may take long
                    if task := self._playing.get(request["target"]):
                        task.cancel()
                    continue
                task = asyncio.create_task(self._answer(request))
                self._playing[request["id"]] = task
                if request["op"] != "play":
                    await task
            for task in self._playing.values():
                task.cancel()
            await asyncio.gather(*self._playing.values(), return_exceptions=True)

    async def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request.pop("id")}
        try:
            answer["value"] = await getattr(self, request.pop("op"))(**request)
        except asyncio.CancelledError:
            answer["error"] = {"kind": "cancelled", "text": ""}
        except Mistake as error:
            answer["error"] = {"kind": "mistake", "text": str(error)}
        except BaseException as error:  # of a package of anybody's
            traceback.print_exc()
            answer["error"] = {"kind": "failed", "text": f"{type(error).__name__}: {error}"}
        finally:
            self._playing.pop(answer["id"], None)
        self._write(answer)

    def _write(self, answer: Mapping[str, Any]) -> None:
        line = json.dumps(answer, default=str).encode() + b"\n"
        while line:
            line = line[os.write(self._out, line) :]

    async def open(self, slot: str, name: str, arguments: dict[str, Any], unsafe: bool) -> dict[str, Any]:
        random.seed(0)  # some draw their rows without a seed of their own
        loaded = self._loaded[slot] = _load(name, arguments, unsafe)
        if isinstance(loaded, Tasksets):
            await self._stack.enter_async_context(loaded.environment.serving())
        versions = [_version(name.rsplit("/", 1)[-1].split("@", 1)[0]), _version("verifiers")]
        versions.append(f"Python {sys.version.split()[0]}")
        return {"sizes": loaded.sizes, "versions": ", ".join(versions)}

    async def rows(self, slot: str, held_out: bool, numbers: list[int]) -> list[tuple[Any, int]]:
        """The prompt of each, and a number that is made of all that is in it."""
        found = [self._loaded[slot].row(held_out, number) for number in numbers]
        return [(prompt, _digest(row)) for prompt, row in found]

    async def play(
        self, slot: str, held_out: bool, number: int, digest: int, url: str, key: str, model: str
    ) -> dict[str, Any]:
        loaded = self._loaded[slot]
        if _digest(loaded.row(held_out, number)[1]) != digest:
            raise Mistake(
                f"row {number} is another one than when its tasks were drawn, so the package draws its rows anew each "
                "time that it is loaded; give its seed in env.options.arguments"
            )
        with _variable(key) as variable:
            return await loaded.play(held_out, number, url, variable, model)


def _version(package: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return f"{package} {metadata.version(package)}"
    return package


def _digest(row: Any) -> int:
    text = json.dumps(row, sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


@contextlib.contextmanager
def _variable(value: str) -> Iterator[str]:
    """An environment variable of its own with a key: the library takes keys from nowhere else."""
    name = f"{KEY}{os.urandom(8).hex().upper()}"
    os.environ[name] = value
    try:
        yield name
    finally:
        del os.environ[name]


def _end_without(parent: int) -> None:
    """Waits until agentgym is gone: a package that hangs does not see the end of its requests."""
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(ORDERLY_S)
    _end_all()


def _end_all() -> None:
    """Kill what the package has started, which inherited the tag, and this process with its group."""
    sign = f"{TAG}={os.environ[TAG]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            if folder.name != str(os.getpid()) and sign in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    sys.path.pop(0)  # this file's folder, whose modules are not the package's
    threading.Thread(target=_end_without, args=(int(sys.argv[1]),), daemon=True).start()
    out = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(Server(out).serve())
    _end_all()


if __name__ == "__main__":
    main()
