"""A command line with jobs of our own, whose output is kept."""

from __future__ import annotations

import asyncio
import io
import shutil
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import pytest

from agentgym import Environment, Reward, Task, hookimpl
from agentgym.cli.jobs import JobShell
from agentgym.cli.main import main
from agentgym.cli.restarts import Restarts
from agentgym.errors import InfraError, UserError
from agentgym.evals.checkpoints import Point
from agentgym.evals.play import EvalResult, EvalSetup, summarize
from agentgym.evals.statistics import paired_difference, success_interval
from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import local_folder, weights_mark
from agentgym.recipe import Recipe
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.tasks import held_out_tasks
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.sandbox import DEFAULT_LIMITS, FileInfo, LimitHit, RunResult, RunStatus, SandboxUnavailable, Verdict
from agentgym.testing import FakeSandbox, FakeSession
from agentgym.testing.fakes import ABLE
from agentgym.types import Episode, ErrorRecord, Outcome

if TYPE_CHECKING:  # Monarch, which most of these tests need not load
    from agentgym.run.checkpoint_curve import Curve
    from agentgym.run.ending import TrainResult


def measured(checkpoint: str, successes: int, tasks: int = 20) -> EvalResult:
    low, high = success_interval([[number < successes] for number in range(tasks)])
    return EvalResult(
        checkpoint=checkpoint,
        success=successes / tasks,
        low=low,
        high=high,
        reward_mean=successes / tasks,
        num_tasks=tasks,
        num_episodes=tasks,
        num_unsupported=0,
        num_too_long=0,
        num_infra_errors=0,
        by_task=tuple((number < successes,) for number in range(tasks)),
    )


LIMIT = "rollout.generate_timeout_s = 60"
CUT = ErrorRecord(source="episode", kind="cut", message=LIMIT)
Solves = Callable[[str, int, int], bool]  # by model, task and sample


def play(recipe: Recipe, setup: EvalSetup, tasks: list[Task], solves: Solves) -> list[list[Episode]]:
    def one(number: int, sample: int) -> Episode:
        success = solves(recipe.model.path, number, sample)
        return Episode(
            episode_id=f"eval-{number:04d}-{sample:02d}",
            task=tasks[number],
            seed=derive_seed("eval", setup.seed, number, sample),
            info={"success": success},
            reward=float(success),
            outcome=Outcome.SCORED,
        )

    return [[one(number, sample) for sample in range(setup.samples_per_task)] for number in range(len(tasks))]


Work = Callable[[Recipe, RunFolder, Reporter], Awaitable[None]]


@dataclass
class FakeJobs:
    """Does `work` and then says what it would measure."""

    work: Work | None = None
    trained: list[tuple[Recipe, bool]] = field(default_factory=list)
    evaluated: list[Recipe] = field(default_factory=list)
    tuned: list[tuple[Recipe, bool]] = field(default_factory=list)
    sandbox: str = ""
    nothing_left: str = ""
    stopped: str = ""
    solves: Solves = lambda model, task, sample: task < 9
    cuts: int = 0  # tasks, the last ones, whose episodes are cut by time
    breaks_after: int = 0  # tasks, an evaluation fails, once
    notice: asyncio.Event | None = None  # of the last job
    restarts: list[Restarts] = field(default_factory=list)

    def restart(self, restarts: Restarts) -> int:
        self.restarts.append(restarts)
        return 75

    async def train(self, recipe, folder, reporter, *, resume, from_step, given, registry, notice=None) -> TrainResult:
        self.notice = notice
        if recipe.sft is not None:
            return await self._sft(recipe, folder, reporter, resume)
        self.trained.append((recipe, resume))
        reporter.phase("starting nothing")
        if self.work is not None:
            await self.work(recipe, folder, reporter)
        else:
            for step in range(1, recipe.loop.steps + 1):
                metrics = {"rollout/reward_mean": step / 100, "rollout/success_mean": step / 120}
                folder.append_metrics(step, metrics)
                reporter.step(step, recipe.loop.steps, metrics)
        first, last = measured("step-000000", 8), measured("step-000060", 14)
        difference = paired_difference(first.by_task, last.by_task, shares=True)
        folder.save_comparison({"steps": recipe.loop.steps, "difference": asdict(difference)})
        result = self._result(folder, recipe.loop.steps, first=first, last=last, difference=difference)
        return replace(result, nothing_left=self.nothing_left, stopped=self.stopped)

    async def _sft(self, recipe, folder, reporter, resume) -> TrainResult:
        """A step for each conversation of a batch, without an evaluation."""
        self.tuned.append((recipe, resume))
        if self.work is not None:
            await self.work(recipe, folder, reporter)
        steps = recipe.sft.num_steps(64)
        for step in range(1, steps + 1):
            metrics = {"sft/loss": 1 / step}
            folder.append_metrics(step, metrics)
            reporter.step(step, steps, metrics)
        folder.save_state({"position": {"step": steps, "next_group": 0}})
        return self._result(folder, steps, first=None, last=None, difference=None)

    def _result(self, folder, steps, **ends) -> TrainResult:
        from agentgym.run.ending import TrainResult

        return TrainResult(run_dir=folder.path, steps=steps, **ends)

    async def evaluate_checkpoints(self, recipe, folder, reporter, *, steps, registry) -> Curve:
        """Success grows with the step; that of the last one is unknown."""
        from agentgym.run.checkpoint_curve import Curve

        self.evaluated.append(recipe)
        if self.breaks_after:
            raise InfraError("the engine is gone")
        setup = EvalSetup(environment=recipe.env.name, version=1, data_hash="", num_tasks=recipe.eval.tasks,
                          samples_per_task=2, seed=0, greedy=False)  # fmt: skip
        shares = [None if step == steps[-1] else step / 10 for step in steps]
        return Curve(setup=setup, points=tuple(
            Point(step=step, success=share, low=None if share is None else share - 0.1,
                  high=None if share is None else share + 0.1, reward=0.25, num_tasks=4, num_episodes=8)
            for step, share in zip(steps, shares, strict=True)
        ))  # fmt: skip

    async def evaluate(self, recipe, folder, reporter, *, step, resume, registry) -> EvalResult:
        """Plays up to 20 tasks."""
        self.evaluated.append(recipe)
        reporter.phase("playing")
        environment = registry.environment(recipe.env.name)(**recipe.env.options)
        tasks = held_out_tasks(environment, min(20, recipe.eval.tasks))
        setup = EvalSetup.of(
            environment,
            tasks,
            samples_per_task=recipe.eval.samples_per_task,
            seed=recipe.eval.seed,
            greedy=recipe.eval.greedy,
        )
        files = EvaluationFiles(folder, step, weights_mark(local_folder(recipe.model.path)))
        known = files.begin(setup.to_mapping(), resume=resume)
        reporter.note(f"{len(known)} were played before")
        rows = play(recipe, setup, tasks, self.solves)
        for row in rows[len(rows) - self.cuts :]:
            row[:] = [
                replace(one, outcome=Outcome.INFRA_ERROR, reward=None, time_limit=LIMIT, error=CUT) for one in row
            ]
        for number, row in enumerate(rows):
            files.add(number, 0, row[0])
            if number + 1 == self.breaks_after:
                self.breaks_after = 0
                raise InfraError("the engine is gone")
        files.save_episodes(rows)
        metrics = {"sandbox/calls": 200.0} if self.sandbox else {}
        result = replace(summarize(rows, recipe.model.path), sandbox=self.sandbox, sandbox_metrics=metrics)
        files.save_result(setup.to_mapping(), result.to_mapping())
        return result


class Counting(Environment):
    """Counts up."""

    name = "counting"
    rewards = {"exact": 1.0}
    max_turns = 3
    requirements = "a counter"

    def __init__(self, *, start: Annotated[int, "the first number"] = 0) -> None:
        self._start = start

    def tasks(self, split, seed=0) -> Iterable[Task]:
        for number in range(self._start, self._start + 100):
            prompt = ({"role": "user", "content": f"what follows {number}?"},)
            yield Task(task_id=f"count-{number}", prompt=prompt, answer=number + 1, split=split, difficulty=number % 2)


class EchoSandbox(FakeSandbox):
    """Prints the program; available unless told otherwise."""

    kind, sessions_too, isolated = "echo", False, True

    def __init__(self, options: dict) -> None:
        if "wrong_one" in options:
            raise UserError("sandbox 'echo' has no option 'wrong_one'")
        able = replace(ABLE, isolated=self.isolated, sessions=self.sessions_too, network_allow_list=self.sessions_too)
        able = replace(able, seccomp=False, disk_limit=False, detail="an echo")
        away = "no engine answers\nstart the engine" if options.get("broken") else ""
        super().__init__(echo, name=self.kind, able=able, unavailable=away)
        self.options = options

    async def start(self) -> EchoSandbox:
        if self.options.get("broken_when_used"):
            raise SandboxUnavailable("no module to preload")
        return await super().start()

    async def run(self, code, *, stdin="", limits=DEFAULT_LIMITS) -> RunResult:
        assert self.is_open
        return await super().run(code, stdin=stdin, limits=limits)


def echo(code: str, stdin: str) -> RunResult:
    failed = "raise" in code
    status = RunStatus.ERROR if failed else RunStatus.OK
    return RunResult(status=status, exit_code=int(failed), stdout=code + stdin, stderr="")


class ImageSandbox(EchoSandbox):
    kind = "image"

    async def build(self, say, *, pull=None) -> str:
        await self.probe()
        say(" ".join(["building", *self.options.get("packages", [])]))
        return f"sha256:{pull or 'built'}"

    async def clean(self, say) -> int:
        await self.probe()
        say("removed container 0123 of this:9:1, which is gone")
        return 3


class SteadySandbox(EchoSandbox):
    """Contains, as far as it says; answers what a benchmark asks; has sessions. `limit` ends every call."""

    kind, sessions_too = "steady", True

    async def run(self, code, *, stdin="", limits=DEFAULT_LIMITS) -> RunResult:
        if self.options.get("limit"):
            hit = LimitHit(resource="wall_s", used=3.04, allowed=limits.wall_s)
            return RunResult(status=RunStatus.TIMEOUT, exit_code=None, stdout="\x1b[2J", stderr="", limit=hit)
        return RunResult(status=RunStatus.OK, exit_code=0, stdout="42\n" if "6 * 7" in code else "", stderr="")

    async def grade(self, request) -> Verdict:
        self.judge = not self.options.get("wrong")
        return await super().grade(request)

    def metrics(self) -> dict[str, float]:
        return {"sandbox/containers_live": 1.0, "sandbox/start_p50_s": 0.2}

    @asynccontextmanager
    async def session(self, *, network=()):
        yield SteadySession(self, network)


class SteadySession(FakeSession):
    def __init__(self, sandbox: SteadySandbox, network: tuple[str, ...]) -> None:
        super().__init__(echo, {"network.txt": " ".join(network).encode()})
        self._sandbox = sandbox

    async def run(self, code, *, stdin="", limits=DEFAULT_LIMITS) -> RunResult:
        shown = self._sandbox.options.get("shows_code")
        return await (super().run(code) if shown else self._sandbox.run(code))

    async def exec(self, command, *, stdin="", folder=".", limits=DEFAULT_LIMITS) -> RunResult:
        return await self._sandbox.run("6 * 7")

    async def files(self, path="."):
        found = await super().files(path)
        return (*found, FileInfo(path="../../sly", size=0)) if self._sandbox.options.get("sly") else found


class PlainSandbox(EchoSandbox):
    """Contains nothing, and says so."""

    kind, isolated = "plain", False


class Plugin:
    @hookimpl
    def environments(self):
        return {"counting": Counting}

    @hookimpl
    def rewards(self):
        return {"exact": Reward(name="exact", function=lambda episode: 1.0, inline=True)}

    @hookimpl
    def sandboxes(self):
        return {"echo": EchoSandbox, "image": ImageSandbox, "plain": PlainSandbox, "steady": SteadySandbox}


def fake_plugins(disabled: Iterable[str] = ()) -> PluginRegistry:
    registry = PluginRegistry([], disabled)
    registry.register(Plugin(), "fakes")
    return registry


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Cli:
    def __init__(self, jobs: FakeJobs) -> None:
        self.jobs = jobs
        self.plugins = fake_plugins

    def __call__(self, *words: str) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        code = main(words, self.shell(out, err))
        return Ended(code, out.getvalue(), err.getvalue())

    def shell(self, out: TextIO, err: TextIO) -> JobShell:
        return JobShell(out=out, err=err, jobs=lambda: self.jobs, plugins=self.plugins)

    def train(self, *words: str) -> Ended:
        return self("train", "--env", "counting", "--set", "logging.sinks=[]", *words)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(FakeJobs())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs and evaluations are kept once they are made: a test changes a copy."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def made_once(cli: Cli, kept: Path, tmp_path: Path) -> Callable[[Callable[[], None]], None]:
    """What a function makes with `cli`: by it for the first test of a file, by a copy for the others."""

    def made(make: Callable[[], None]) -> None:
        if any(kept.iterdir()):
            shutil.copytree(kept, tmp_path, symlinks=True, dirs_exist_ok=True)
        else:
            make()
            for place in (path for name in ("runs", "evals") if (path := tmp_path / name).exists()):
                shutil.copytree(place, kept / place.name, symlinks=True)

    return made
