"""`agentgym.train`, `agentgym.sft` and `agentgym.evaluate`: what the commands do, from Python and notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from agentgym.cli.evaluating import base_recipe, find_policy, new_name, run_evaluation
from agentgym.cli.jobs import Jobs
from agentgym.cli.recipes import Finished, finish_checked, read_recipe
from agentgym.cli.recording import default_name, run_training
from agentgym.commands.stopping import run_until_stopped, stoppable
from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.held_loop import LoopWatch
from agentgym.import_path import import_path_of
from agentgym.recipe import Command, Recipe
from agentgym.rewards import RewardFunction
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import PlainReporter, Reporter

if TYPE_CHECKING:
    from agentgym.evals.play import EvalResult
    from agentgym.run.ending import TrainResult

T = TypeVar("T")
Env: TypeAlias = type[Environment[Any]] | str | Mapping[str, object]
"""A class, a name or an import path; with options `{"name": GuessNumber, "options": {"largest": 20}}`."""
Rewards: TypeAlias = Iterable[str | RewardFunction] | Mapping[str | RewardFunction, float]
"""Names, import paths or functions; in a mapping with their weights."""
_SHORT = {"env": "name", "model": "path", "sandbox": "name", "agent": "name"}  # a section that may be this field alone


def train(
    env: Env | None = None,
    *,
    recipe: str | None = None,
    rewards: Rewards = (),
    name: str | None = None,
    reporter: Reporter | None = None,
    **sections: object,
) -> TrainResult:
    """Train in an environment, and return the first and the last checkpoint's measure when it is done.

    recipe: a file. rewards: instead of the environment's own. name: of the run's folder. sections: of the recipe,
    as in `loop={"steps": 20}`; `model` and `sandbox` can be a name. Progress goes to `reporter`, by default to
    standard output. Beside a running event loop, as in a notebook, the work is done in a thread; the call
    returns when it has ended. Raises UserError for a mistake in what was given.
    """
    return _trained(recipe, {"env": env, **sections}, rewards, name, reporter)


def sft(
    env: Env | None = None,
    *,
    recipe: str | None = None,
    name: str | None = None,
    reporter: Reporter | None = None,
    **sections: object,
) -> TrainResult:
    """Fine-tune on demonstrations, as in `sft={"data": ["talks.jsonl"]}`; with an environment, measured in it.

    The arguments are those of `train`; without `env` nothing is played, unless the recipe names one.
    """
    return _trained(recipe, {"env": env, **sections}, (), name, reporter, command="sft")


def _trained(
    recipe: str | None,
    sections: Mapping[str, object],
    rewards: Rewards,
    name: str | None,
    reporter: Reporter | None,
    command: Command = "train",
) -> TrainResult:
    base, where = read_recipe(recipe, command)
    settings, sources, registry = _settings(base, where, sections, rewards, command)
    with RunFolder.create(settings.logging.runs_dir, name or default_name(settings), numbered=not name) as folder:
        shown = reporter or PlainReporter(sys.stdout)
        return run_training(settings, sources, folder, registry, shown, Jobs(), run_anywhere)


def evaluate(
    model: str,
    env: Env | None = None,
    *,
    recipe: str | None = None,
    rewards: Rewards = (),
    name: str | None = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    **sections: object,
) -> EvalResult:
    """Measure a policy on held-out tasks: a checkpoint, a run, a Hugging Face folder, a hub name.

    A run's own config counts where nothing else is given. name: of the folder in `logging.evals_dir` that gets the
    episodes and the result. trust: run the code that the folder of a run names, although another user made it. The
    rest is as in `train`.
    """
    policy = find_policy(model)
    base, where = base_recipe(recipe, policy.run_dir, trust=trust)
    given = {"env": env, **sections, "model": {"path": policy.path, "random_weights": False}}
    settings, sources, registry = _settings(base, where, given, rewards)
    shown = reporter or PlainReporter(sys.stdout)
    made = RunFolder.create(settings.logging.evals_dir, name or new_name(policy, settings), numbered=not name)
    with made as folder, contextlib.closing(shown):
        return run_evaluation(settings, sources, folder, registry, shown, Jobs(), run_anywhere)


def recipe_of(given: Mapping[str, object] | str) -> Recipe:
    """Builds a recipe from a file, or from sections as `train` takes them. Raises UserError."""
    base, where = read_recipe(given if isinstance(given, str) else None)
    sections = {} if isinstance(given, str) else given
    return _settings(base, where, sections, (), None)[0]


def run_anywhere(job: Coroutine[Any, Any, T], say: Callable[[str], None]) -> T:
    """Run a job to its end, whether or not this thread runs an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if threading.current_thread() is threading.main_thread():
            return run_until_stopped(job, say)
        return _watched_run(job, say, lambda watch: None)
    return _run_in_thread(job, say)


def _watched_run(job: Coroutine[Any, Any, T], say: Callable[[str], None], begun: Callable[[LoopWatch], None]) -> T:
    async def supervise(watch: LoopWatch) -> T:
        with watch.on_loop(say):
            begun(watch)
            return await job

    with LoopWatch(say) as watch:
        return asyncio.run(supervise(watch))


def _run_in_thread(job: Coroutine[Any, Any, T], say: Callable[[str], None]) -> T:
    """A signal to the waiting thread cancels the job, and is raised when that has cleaned up."""
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None, LoopWatch]] = Future()
    ended: Future[T] = Future()

    def begun(watch: LoopWatch) -> None:
        running.set_result((asyncio.get_running_loop(), asyncio.current_task(), watch))

    def work() -> None:
        try:
            ended.set_result(_watched_run(job, say, begun))
        except BaseException as error:
            ended.set_exception(error)

    is_main = threading.current_thread() is threading.main_thread()
    thread = threading.Thread(target=work, name="agentgym-job")
    with stoppable() if is_main else contextlib.nullcontext():
        try:
            thread.start()
            return ended.result()
        except KeyboardInterrupt:
            loop, task, watch = running.result()
            watch.stop()
            if task is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                    loop.call_soon_threadsafe(task.cancel)
            raise
        finally:
            thread.join()


def _settings(
    base: Mapping[str, object],
    where: str,
    given: Mapping[str, object],
    rewards: Rewards,
    command: Command | None = "train",
) -> Finished:
    sections = {key: _section(key, value) for key, value in given.items() if value is not None}
    weights = {_path(one): rewards[one] if isinstance(rewards, Mapping) else None for one in rewards}
    return finish_checked(_merged(base, sections), weights, base=base, where=where, command=command)


def _section(key: str, value: object) -> object:
    if isinstance(value, Mapping):
        inner = dict(value)
    elif key in _SHORT:
        inner = {_SHORT[key]: value}
    else:
        return value  # not a section: the recipe's builder says so
    if key == "env" and "name" in inner:
        inner["name"] = _path(inner["name"])
    return inner


def _path(thing: object) -> str:
    """A name or an import path, as it is; of a class or a function, its import path."""
    if isinstance(thing, str):
        return thing
    if not hasattr(thing, "__qualname__"):
        raise UserError(
            f"{thing!r:.80} is an object; give a name, an import path, a class or a function. "
            'An environment\'s options go beside its class: env={"name": GuessNumber, "options": {...}}'
        )
    return import_path_of(thing)


def _merged(base: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    result = dict(base)
    for key, value in given.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return result
