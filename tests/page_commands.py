"""Checks the commands of the pages: quick ones are run, all others are parsed by the program's own parser."""

from __future__ import annotations

import importlib.metadata
import io
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from packaging.requirements import Requirement
from pages import ROOT
from parsing import parsed
from sampled import sampled_turn

from agentgym.cli.catalogue import OWN, called, load_command
from agentgym.cli.jobs import JobShell
from agentgym.cli.main import main
from agentgym.cli.restarts import Restarts
from agentgym.commands.parser import Parser, split_overrides
from agentgym.config import to_mapping
from agentgym.errors import DISTRIBUTION
from agentgym.evals.play import EvalSetup, summarize
from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.recipe import Recipe, build_recipe
from agentgym.run.ending import TrainResult
from agentgym.runs.checkpoints import save_position
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.types import Episode, Group, Stop, Task
from agentgym_envs.code_exec import CodeExec

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXAMPLE = ROOT / "tests" / "data" / "example_plugin"
OF_THE_SYSTEM = {"systemctl", "apt-get", ".", "git", "cd", "sed"}  # not ours to check
STARTERS = {"sudo", "systemd-run"}  # they run another program
PLACEHOLDERS = {
    "NAME": "code_exec",
    "ENV": "math",
    "house_style": "math",  # which the reader of the tutorial has made
    "RUN": "runs/NAME",
    "MODEL": "builtin:tiny",
    "COMMAND": "envs",
    "FOLDER": ".",
    "FILE": str(ROOT / "tests" / "data" / "humaneval_shaped.jsonl"),
    "A": "runs/NAME",
    "B": "runs/OTHER",
    "A1,A2,A3": "runs/A1,runs/A2,runs/A3",
    "B1,B2,B3": "runs/B1,runs/B2,runs/B3",
}


class CommandFailed(Exception):
    """A command of the pages is wrong."""


def check(words: Sequence[str], folder: Path) -> str:
    """Check one command in a working directory; returns what it printed when it ran.

    Raises CommandFailed, or what the command itself raises. A program that nobody knows how to check fails.
    """
    words = list(words)
    if "&&" in words:
        place = words.index("&&")
        return check(words[:place], folder) + check(words[place + 1 :], folder)
    while words and re.match(r"\w+=", words[0]):  # variables of the environment
        words.pop(0)
    name = Path(words[0]).name or words[0]
    if name in STARTERS:
        known = re.compile("|".join(map(re.escape, [*PROGRAMS, "systemctl", "apt-get"])))
        found = next((n, match[0]) for n, word in enumerate(words) if n and (match := known.search(word)))
        return check([found[1], *words[found[0] + 1 :]], folder)
    if name in OF_THE_SYSTEM:
        return ""
    if name not in PROGRAMS:
        raise CommandFailed(f"{name}: no test knows this program; known are {', '.join(PROGRAMS)}")
    return PROGRAMS[name](words[1:], folder)


def registry(disabled: Sequence[str] = ()) -> PluginRegistry:
    """What is installed, and the example of the pages."""
    table = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]["agentgym"]
    points = [importlib.metadata.EntryPoint(name, value, "agentgym") for name, value in table.items()]
    return PluginRegistry([*importlib.metadata.entry_points(group="agentgym"), *points], disabled)


class NoJobs:
    """In place of training and evaluation: a command that gets this far was right."""

    async def train(self, recipe: Recipe, folder: RunFolder, *_: object, **__: object) -> TrainResult:
        return TrainResult(run_dir=folder.path, steps=0, first=None, last=None, difference=None)

    def restart(self, restarts: Restarts) -> int:
        return 0 if restarts.words and restarts.at_most else 1

    async def evaluate(self, *_: object, **__: object) -> NoReturn:
        raise EvaluationBegins

    serve = check_server = replay = measure = evaluate_checkpoints = evaluate

    @asynccontextmanager
    async def handler(self, *_: object, **__: object) -> AsyncIterator[NoReturn]:
        raise EvaluationBegins
        yield


class EvaluationBegins(BaseException):
    """The arguments of `agentgym eval` were accepted."""


def _agentgym(words: Sequence[str], folder: Path) -> str:
    words = ["new", "of_my_own"] if list(words) == ["new", "NAME"] else [PLACEHOLDERS.get(word, word) for word in words]
    for word in ("runs/NAME", "evals/NAME", *words):
        for run in re.findall(r"(?:^|,)(runs/[\w.-]+)", word):
            make_run(folder / run)
        if evaluation := re.match(r"evals/[\w.-]+", word):
            make_evaluation(folder / evaluation[0], RunStatus.INTERRUPTED if "--resume" in words else RunStatus.DONE)
    for made in folder.glob("runs/*-20*"):  # named by time: another command of the same second made it
        shutil.rmtree(made)
    if words[:1] == ["launch"]:
        words = [*words, "--dry-run"]  # nothing is submitted, where there is a scheduler
    if words[:1] == ["convert"]:
        (theirs := folder / "theirs.yaml").write_text("group_size: 4\nmodel: Qwen/Qwen3-0.6B\n")
        words = ["convert", str(theirs), *words[2:]]
    is_server = (  # it would not end
        words[:1] == ["host"] or words[:2] == ["envs", "serve"] or (words[:1] == ["view"] and "--export" not in words)
    )
    name, rest, moved = called(words) if words else ("", [], "")
    if moved:
        raise CommandFailed(moved)
    needs_more = words[:2] in (["agents", "check"], ["eval", "merge"]) or {"openenv", "harbor", "swe"} & {
        *words
    }  # a program, shards, a server, containers
    if is_server or needs_more or (name and name not in OWN and not name.startswith("-")):
        command = load_command(name)
        parser = Parser(prog=f"agentgym {name}", description="", examples="")
        command.add_arguments(parser)
        if rest:
            parser.parse_strictly(split_overrides(rest)[1])
        return ""
    if words[:2] == ["envs", "check"] and "--only" not in words:
        words = [*words, "--only", "oracle", "--tasks", "2"]  # the rest is tested elsewhere, and takes seconds
    out, err = io.StringIO(), io.StringIO()
    code = main(words, JobShell(out=out, err=err, jobs=NoJobs, plugins=registry))
    printed = out.getvalue() + err.getvalue()
    if "the run is done, not running" in printed:  # of a run that goes on, the request would have been taken
        return printed
    if re.search(r"\w+: (the package '\w+' is not installed|path '\.' has no folder '\w+' in it)", printed):
        return printed  # all else was right
    if code and "EvaluationBegins" not in printed and name not in ("doctor", "runs audit"):  # they may find faults
        raise CommandFailed(printed)
    return printed


def made_once(make: Callable[..., None]) -> Callable[..., None]:
    """make(path, ...): is called once for a name and what else it gets, and its folder is copied from then on."""
    kept: dict[object, Path] = {}
    place = tempfile.TemporaryDirectory(prefix="agentgym-pages-")  # until the process ends

    def copied(path: Path, *more: object) -> None:
        if path.exists():
            return
        key = (path.name, *more)
        if key not in kept:
            kept[key] = Path(tempfile.mkdtemp(dir=place.name), path.name)
            make(kept[key], *more)
        shutil.copytree(kept[key], path)

    return copied


@made_once
def make_evaluation(path: Path, status: RunStatus) -> None:
    """As `agentgym eval` leaves it: two tasks, each solved by its second sample."""
    tasks = [Task(task_id=name, prompt=({"role": "user", "content": "hello"},)) for name in "tu"]
    rows = [
        [
            Episode(episode_id=f"{task.task_id}{n}", task=task, seed=n, info={"success": n > 0}, reward=float(n))
            for n in range(2)
        ]
        for task in tasks
    ]
    setup = EvalSetup.of(CodeExec(), tasks, samples_per_task=2, seed=0, greedy=False)
    with RunFolder.create(path.parent, path.name) as made:
        made.save_config(to_mapping(Recipe()))
        files = EvaluationFiles(made, 0)
        files.save_episodes(rows)
        files.save_result(setup.to_mapping(), summarize(rows, "builtin:tiny").to_mapping())
        made.set_status(status)


@made_once
def make_run(path: Path) -> None:
    """A run as the pages speak of it: finished, with a few steps, episodes and checkpoints."""
    task = Task(task_id="t", prompt=({"role": "user", "content": "hello"},))
    turn = sampled_turn((1, 2), (3,), version=1)
    one = {"task": task, "turns": [turn], "stop": Stop.DONE}
    episodes = [Episode(episode_id=f"e{n}", seed=n, info={"success": n > 1}, **one) for n in range(4)]
    group = Group(group_id=0, task=task, start_version=1, episodes=episodes, advantages=[0.5, -0.5] * 2)
    names = ("rollout/reward_mean", "rollout/success_mean", "train/entropy", "train/mismatch_kl")
    tuned = to_mapping(build_recipe({"sft": {"data": ["talks.jsonl"]}}))
    with RunFolder.create(path.parent, path.name) as run:
        run.save_config(tuned if path.name == "warm" else to_mapping(Recipe()))
        for step in (1, 12, 19, 20, *{"gsm8k": [208], "warm": [14, 40]}.get(path.name, [])):
            run.append_metrics(step, dict.fromkeys(names, 0.5))
            run.save_groups(step, [group])
            run.save_evaluation(step, [episodes])
            run.checkpoint_dir(step).mkdir(parents=True)
            (run.checkpoint_dir(step) / "hf").symlink_to(policy_path())
            save_position(run, step, {"step": step})
        run.set_status(RunStatus.DONE)


def _make(words: Sequence[str], folder: Path) -> str:
    return _finished(["make", "-n", *words], ROOT)


def _python(words: Sequence[str], folder: Path) -> str:
    kind, *target = words if words[0] == "-m" else ("file", *words)
    own = {"pip": _pip, "pytest": _pytest, "venv": lambda words, folder: ""}
    if kind == "-m" and target[0] in own:
        return own[target[0]](target[1:], folder)
    if "--out" in target:  # a later command may use the policy that this one makes
        (folder / target[target.index("--out") + 1] / "policy").mkdir(parents=True, exist_ok=True)
    script = folder / target[0]
    if kind == "file" and script.is_file() and "argparse" not in script.read_text() and not target[1:]:
        return _finished([sys.executable, target[0]], folder)
    found = parsed(words, folder)
    if found["code"]:
        raise CommandFailed(found["errors"] or found["printed"])
    return str(found["printed"])


def _pip(words: Sequence[str], folder: Path) -> str:
    """What pip would take; of ours, extras and pins that the project has."""
    extras = PROJECT["project"]["optional-dependencies"]
    pins = {Requirement(r).name: r for rs in extras.values() for r in rs if "==" in r}
    rest = iter(words[1:])
    for word in rest:
        if word in ("--index-url", "-r"):
            value = next(rest)
            if word == "-r" and not (folder / value).is_file():
                raise CommandFailed(f"there is no file {value}")
        elif word.startswith(".[") or not word.startswith(("-", ".")):
            requirement = Requirement(word.replace(".", "checkout", 1) if word[0] == "." else word)
            unknown = requirement.extras - set(extras) if requirement.name in ("checkout", DISTRIBUTION) else set()
            pin = pins.get(requirement.name, word)
            if unknown or (str(requirement.specifier) and pin != word):
                raise CommandFailed(f"{word}: unknown extras {sorted(unknown)}, or the project pins {pin}")
    return ""


def _pytest(words: Sequence[str], folder: Path) -> str:
    markers = {marker.partition(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    rest = iter(words)
    for word in rest:
        if word == "-m":
            unknown = set(re.findall(r"\w+", next(rest))) - markers - {"not", "and", "or"}
            if unknown:
                raise CommandFailed(f"no markers {sorted(unknown)}; there are: {sorted(markers)}")
        elif not word.startswith("-") and not (folder / word.partition("::")[0]).exists():
            raise CommandFailed(f"there is no {word}")
    return ""


def _finished(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise CommandFailed(done.stderr or done.stdout)
    return done.stdout


PROGRAMS: dict[str, Callable[[Sequence[str], Path], str]] = {
    "agentgym": _agentgym,
    "make": _make,
    "python": _python,
    "python3": _python,
    "pip": _pip,
    "pytest": _pytest,
}
