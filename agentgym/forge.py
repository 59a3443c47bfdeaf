"""The names that a program of torchforge imports: its file runs with other imports and another model's name.

Generator, trainer and reference model are those of `agentgym.services`, opened by `init_provisioner` from the program's
own config; `agentgym convert` shows the recipe that they get. docs/from_torchforge.md has the table of imports.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, ClassVar, NoReturn

from agentgym.actors.actor import ServiceActor as ForgeActor
from agentgym.actors.endpoint import endpoint
from agentgym.cli.failures import explain, show
from agentgym.cli.loops import services
from agentgym.config import apply_overrides
from agentgym.errors import UserError, nearest
from agentgym.loops.actors import ReplayBufferActor as ReplayBuffer
from agentgym.loops.pieces import Pieces
from agentgym.observed import Reduce, record_metric
from agentgym.rl.losses.ops import compute_logprobs
from agentgym.rl.said import Said as Completion
from agentgym.run.torchforge_recipe import convert, resolved
from agentgym.yaml import read_yaml

__all__ = [
    "Completion",
    "DictConfig",
    "ForgeActor",
    "Generator",
    "LauncherConfig",
    "ProvisionerConfig",
    "Reduce",
    "ReferenceModel",
    "ReplayBuffer",
    "TitanTrainer",
    "Tracer",
    "compute_logprobs",
    "endpoint",
    "get_dcp_whole_state_dict_key",
    "get_or_create_metric_logger",
    "get_param_prefix",
    "get_tokenizer",
    "init_provisioner",
    "parse",
    "record_metric",
    "shutdown",
    "torchstore",
]
_OWN = "agentgym"  # the section of the config with fields of ours, over what is converted
_UNUSED = {"name": "math", "options": {"levels": [1]}}  # the program has its own data: no task is drawn
_KL = 0.1  # torchforge's beta: with a reference model, whatever the program's own loss does with it


class DictConfig(dict[str, Any]):
    """A config whose sections are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"the config has no {name!r}.{nearest(name, self)}") from None
        return DictConfig(value) if isinstance(value, dict) else value


def parse(main: Callable[[DictConfig], None]) -> Callable[[], None]:
    """Gives a function the config of the command line: `--config FILE key=value ...`.

    Ends the program with exit code 2 for a mistake in it, and 1 for a run that failed.
    """

    @wraps(main)
    def run() -> None:
        parser = argparse.ArgumentParser(description=main.__doc__)
        parser.add_argument("--config", required=True, metavar="FILE")
        arguments, words = parser.parse_known_args()
        try:
            _import_by_name(sys.modules[main.__module__])
            mapping = apply_overrides(read_yaml(arguments.config), [word.removeprefix("--") for word in words])
            _program.source, _program.config = arguments.config, mapping
            main(DictConfig(resolved(mapping, arguments.config)))
        except Exception as error:
            failure = explain(error, program=True)
            show(error, failure, partial(print, file=sys.stderr), debug=False, folder=None)
            sys.exit(failure.exit_code)

    return run


def _import_by_name(module: Any) -> None:
    """Other processes import the actors of the program, which was started as `__main__`."""
    if module.__name__ != "__main__":
        return
    if module.__spec__ is None:
        raise UserError(f"other processes import the actors of {sys.argv[0]}: start it as `python -m package.module`")
    sys.modules[module.__spec__.name] = module
    for thing in vars(module).values():
        if getattr(thing, "__module__", None) == "__main__":
            thing.__module__ = module.__spec__.name


@dataclass(slots=True)
class _Program:
    """What is open. source: the config's file. metrics: of the last training step."""

    source: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    services: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def opened(self) -> Any:
        if self.services is None:
            raise UserError("nothing is started yet: call `await init_provisioner()` first, in a program of `@parse`")
        return self.services


_program = _Program()


class _Provisioner:
    """Hosts are those of the recipe's `launcher`; the store of the weights is ours, and needs no processes here."""

    def get_host_mesh(self, name: str | None) -> _Provisioner:
        return self

    def spawn_procs(self, per_host: Mapping[str, int]) -> None:
        return None


class LauncherConfig:
    """Refused: hosts are given to our launchers."""

    def __init__(self, **settings: object) -> None:
        raise UserError(f"`provisioner` has no counterpart: set launcher and hosts in the config's section `{_OWN}`")


ProvisionerConfig = LauncherConfig


async def init_provisioner() -> _Provisioner:
    """Starts generators, trainer and, where the config has a section `ref_model`, the reference model."""
    theirs = {key: value for key, value in _program.config.items() if key != _OWN}
    made = convert(theirs, _program.source)
    recipe = {**made.recipe, "env": _UNUSED}
    if "ref_model" in theirs:
        recipe["loss"] = {"kl_coef": _KL}
    for key, value in _program.config.get(_OWN, {}).items():
        section = recipe.get(key)
        recipe[key] = {**section, **value} if isinstance(section, dict) and isinstance(value, Mapping) else value
    completions = resolved(theirs, _program.source).get("group_size", 1)
    opening = services(recipe, pieces=Pieces(completions=int(str(completions))))
    _program.services = await _program.stack.enter_async_context(opening)
    return _Provisioner()


async def shutdown() -> None:
    """Ends all of it; actors of the program's own end with it."""
    await _program.stack.aclose()
    _program.services = None


class _Ours:
    """A part that `init_provisioner` has started: its options and settings are those of the config."""

    part: ClassVar[str]

    @classmethod
    def options(cls, **fields: object) -> type[_Ours]:
        return cls

    @classmethod
    async def as_service(cls, **settings: object) -> Any:
        return getattr(_program.opened(), cls.part)

    @classmethod
    async def as_actor(cls, **settings: object) -> Any:
        return await cls.as_service(**settings)


class Generator(_Ours):
    """`generate.route(prompt)` gives `group_size` completions."""

    part = "generator"


class ReferenceModel(_Ours):
    """`forward.route(input_ids, max_req_tokens, return_logprobs=True)`."""

    part = "reference"


class TitanTrainer(_Ours):
    """`train_step.call(inputs, targets)` with the program's loss over logits; `push_weights.call(version)`."""

    part = "trainer"

    @classmethod
    async def as_service(cls, **settings: Any) -> Any:
        trainer = _program.opened().trainer
        step = trainer.train_step.one

        async def train_step(inputs: Sequence[Any], targets: Sequence[Any]) -> Any:
            _program.metrics = metrics = await step(inputs, targets, loss=settings.get("loss"))
            return metrics

        trainer.train_step = replace(trainer.train_step, one=train_step)
        return trainer


class _MetricLogger:
    """Records go where the recipe's `logging.sinks` say, in the run's folder and on the terminal."""

    def __init__(self) -> None:
        self.init_backends, self.flush = _Asked(self._init_backends), _Asked(self._flush)

    async def _init_backends(self, config: object) -> None:
        _program.opened()

    async def _flush(self, step: int) -> None:
        _program.opened().record(step, [], _program.metrics)


@dataclass(frozen=True, slots=True)
class _Asked:
    call_one: Callable[..., Coroutine[Any, Any, None]]


async def get_or_create_metric_logger(process_name: str | None = None) -> Any:
    return _MetricLogger()


class Tracer:
    """Records the seconds of a block's steps, and of all of it."""

    def __init__(self, prefix: str, track_memory: bool = False, timer: str = "cpu") -> None:
        self._prefix = prefix

    def start(self) -> None:
        self._began_s = self._last_s = time.perf_counter()

    def step(self, name: str) -> None:
        now_s = time.perf_counter()
        self._record(f"{name}/duration", now_s - self._last_s)
        self._last_s = now_s

    def stop(self) -> None:
        self._record("total_duration", time.perf_counter() - self._began_s)

    def _record(self, name: str, seconds: float) -> None:
        record_metric(f"{self._prefix}/{name}_avg_s", seconds, Reduce.MEAN)
        record_metric(f"{self._prefix}/{name}_max_s", seconds, Reduce.MAX)


class torchstore:
    """Our weight stores hold the versions that are in use, and drop the others: nothing is left to a program."""

    @staticmethod
    def LocalRankStrategy() -> None:
        return None

    @staticmethod
    async def initialize(mesh: object = None, strategy: object = None) -> None:
        return None

    @staticmethod
    async def keys(prefix: str) -> list[str]:
        return []


def get_param_prefix(version: int) -> str:
    return f"policy_ver_{version:010d}"


def get_dcp_whole_state_dict_key(version: int) -> str:
    return f"{get_param_prefix(version)}.dcp_whole_state_dict"


def get_tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.removeprefix("hf://"))


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"{name!r} of torchforge has no counterpart in agentgym.forge.{nearest(name, __all__)}")
