"""The jobs that the commands start, and what shows them. A job is imported when it starts: it imports torch."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.commands.shell import Shell
from agentgym.errors import UserError, pip_install
from agentgym.hooks import PluginRegistry
from agentgym.runs.report import JsonReporter, PlainReporter, Reporter

if TYPE_CHECKING:
    from pathlib import Path

    from agentgym.cli.restarts import Restarts
    from agentgym.evals.play import EvalResult
    from agentgym.planning.lengths import Turns
    from agentgym.planning.rates import Rates
    from agentgym.policies.conversation import CallHandler
    from agentgym.recipe import Recipe
    from agentgym.run.checkpoint_curve import Curve
    from agentgym.run.ending import TrainResult
    from agentgym.run.replay import Plan, Replay
    from agentgym.run.serving import Served
    from agentgym.runs.folder import RunFolder

NEEDED = ("torch", "torchtitan", "monarch", "transformers", "safetensors")


class Jobs:
    """Whether a job returns or raises, everything it started is gone by then."""

    async def train(
        self,
        recipe: Recipe,
        folder: RunFolder,
        reporter: Reporter,
        *,
        resume: bool,
        from_step: int | None,
        given: Sequence[str],
        registry: PluginRegistry,
        notice: asyncio.Event | None,
    ) -> TrainResult:
        """Trains by reinforcement learning or by fine-tuning, as the recipe says. notice: to save and end."""
        reporter.phase("loading torch, torchtitan and Monarch")
        with explained():
            from agentgym.run.train import train
        return await train(
            recipe, folder, reporter, resume=resume, from_step=from_step, given=given, registry=registry, notice=notice
        )

    def restart(self, restarts: Restarts) -> int:
        """The exit code of a run in processes of its own."""
        return restarts.run()

    async def evaluate(
        self,
        recipe: Recipe,
        folder: RunFolder,
        reporter: Reporter,
        *,
        step: int,
        resume: bool,
        registry: PluginRegistry,
    ) -> EvalResult:
        from agentgym.policies.outside.config import served_name  # here, not above: `--help` needs neither

        if served_name(recipe.model.path) is not None:
            from agentgym.run.evaluate import evaluate_served
            from agentgym.run.settle import settle_served

            return await evaluate_served(settle_served(recipe, registry), folder, reporter, resume=resume)
        reporter.phase("loading torch and Monarch")
        with explained():
            from agentgym.run.evaluate import evaluate
            from agentgym.run.settle import settle_sampling
        settled = settle_sampling(recipe, folder.path, reporter.note, registry)
        return await evaluate(settled, folder, reporter, step=step, resume=resume)

    async def evaluate_checkpoints(
        self, recipe: Recipe, folder: RunFolder, reporter: Reporter, *, steps: Sequence[int], registry: PluginRegistry
    ) -> Curve:
        reporter.phase("loading torch and Monarch")
        with explained():
            from agentgym.run.checkpoint_curve import evaluate_checkpoints
            from agentgym.run.settle import settle_sampling
        settled = settle_sampling(recipe, folder.path, reporter.note, registry)
        return await evaluate_checkpoints(settled, folder, reporter, steps)

    async def replay(
        self,
        plan: Plan,
        recipe: Recipe,
        reporter: Reporter,
        *,
        changed: Recipe | None,
        registry: PluginRegistry,
        bound: float | None,
    ) -> Replay:
        from agentgym.run.replay import replay

        return await replay(plan, recipe, reporter, changed=changed, registry=registry, bound=bound)

    async def check_server(self, recipe: Recipe, reporter: Reporter) -> str:
        """What the server of a policy says."""
        from agentgym.run.evaluate import check_server
        from agentgym.run.settle import settle_served

        return await check_server(settle_served(recipe), reporter)

    async def serve(
        self,
        recipe: Recipe,
        reporter: Reporter,
        *,
        bind: str,
        model: str,
        key: str,
        registry: PluginRegistry,
        ready: Callable[[Served], None],
    ) -> None:
        reporter.phase("loading torch and Monarch")
        with explained():
            from agentgym.run.serving import serve
        await serve(recipe, reporter, bind=bind, model=model, key=key, registry=registry, ready=ready)

    @asynccontextmanager
    async def handler(self, recipe: Recipe, registry: PluginRegistry, reporter: Reporter) -> AsyncIterator[CallHandler]:
        """Opens the recipe's policy for somebody who plays with it by hand."""
        with explained():
            from agentgym.run.serving import opened_handler
        async with opened_handler(recipe, registry, reporter) as handler:
            yield handler

    async def measure(
        self,
        recipe: Recipe,
        scratch: Path,
        reporter: Reporter,
        registry: PluginRegistry,
        lengths: tuple[Turns, ...] | None,
    ) -> Rates:
        """How fast this machine is at the recipe's parts.

        scratch: an empty folder. lengths: of the episodes that are planned; None takes the recipe's own.
        """
        reporter.phase("loading torch, torchtitan and Monarch")
        with explained():
            from agentgym.run.measuring import measure_rates
            from agentgym.run.settle import settle_alone
        settled = settle_alone(recipe, scratch, reporter.note, registry)
        return await measure_rates(settled, scratch, reporter, lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShell(Shell):
    """A shell whose commands can start jobs. jobs: replaced in tests."""

    jobs: Callable[[], Jobs]


def choose_reporter(shell: Shell, title: str, *, as_json: bool, plain: bool) -> Reporter:
    """Live in a terminal, lines elsewhere, JSON for scripts. From here on the command has work to do."""
    shell.goes_on()
    if as_json:
        return JsonReporter(shell.out)
    if plain or not shell.is_terminal or importlib.util.find_spec("rich") is None:
        return PlainReporter(shell.out)
    from agentgym.cli.live import LiveReporter

    return LiveReporter(title, shell.out)


@contextmanager
def explained() -> Iterator[None]:
    """Around imports: a missing optional dependency is a UserError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in NEEDED:
            raise  # the mistake is ours
        raise UserError(
            f"this needs {module}, which is not installed: {pip_install('train')}. "
            "`agentgym doctor` shows what else is missing"
        ) from error
