"""The documentation is right: its programs run, its recipes build, its commands are what the parsers take."""

from __future__ import annotations

import asyncio
import fnmatch
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from packaging.requirements import Requirement
from pages import PAGES, ROOT, Block, Command, blocks, commands, inline_commands

from agentgym.cli.catalogue import OWN, load_command
from agentgym.cli.jobs import JobShell
from agentgym.cli.main import main
from agentgym.cli.recipes import check_names
from agentgym.commands.parser import Parser, split_overrides
from agentgym.config import build, read_yaml, to_mapping
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import Episode, FinishReason, Group, Stop, Task, Turn, VersionSpan

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXAMPLE = ROOT / "tests" / "data" / "example_plugin"
BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [c for block in BLOCKS if block.language in ("sh", "console") for c in commands(block)]
COMMANDS += [command for page in PAGES for command in inline_commands(page)]
OF_THE_SYSTEM = {"systemctl", "apt-get", "apt", ".", "git", "cd"}  # not ours to check
PLACEHOLDERS = {"NAME": "code_exec", "RUN": "runs/NAME", "MODEL": "builtin:tiny", "COMMAND": "envs"}
PARSES_ONLY = """
import argparse, pathlib, runpy, sys
parse = argparse.ArgumentParser.parse_args
def parse_args(self, *words):
    parse(self, *words)
    raise SystemExit(0)
argparse.ArgumentParser.parse_args = parse_args
kind, name, *sys.argv[1:] = sys.argv[1:]
if kind == "-m":
    runpy.run_module(name, run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, str(pathlib.Path(name).parent))
    runpy.run_path(name, run_name="__main__")
"""


KINDS = {"python": "run", "sh": "commands", "console": "commands", "yaml": "recipe", "toml": "parsed", "output": "compared"}


def treatment(block: Block) -> str:
    """What is done with a block."""
    return "fragment" if "fragment" in block.marks else KINDS.get(block.language, "unknown")


def these(kind: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if treatment(block) == kind]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.name)


def test_every_block_is_checked_or_says_why_not() -> None:
    counts = Counter(map(treatment, BLOCKS))
    unknown = [block.name for block in BLOCKS if treatment(block) == "unknown"]
    assert not unknown, (
        f"{unknown}: give each a language of {', '.join(KINDS)}, "
        "or write above it why it is only shown: <!-- fragment: why -->"
    )
    print(counts)
    assert all(counts[kind] for kind in ("run", "commands", "recipe", "fragment"))  # or this looks at the wrong places


# programs


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory as the pages take it: the checkout's folders, and every file that a page shows."""
    for name in ("apps", "benchmarks", "tests", "Makefile", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in BLOCKS:
        if name := block.marks.get("file"):
            (tmp_path / name).write_text(block.text)
    (tmp_path / "program.py").write_text("print(6 * 7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)
    return tmp_path


def shown_output(block: Block) -> str | None:
    """The `output` block that follows a program."""
    following = BLOCKS[BLOCKS.index(block) + 1 :][:1]
    same_page = following and following[0].page == block.page and following[0].language == "output"
    return following[0].text if same_page else None


def run_program(block: Block, folder: Path) -> str:
    (folder / "pasted.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "pasted.py"], cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{block.name}\n{done.stderr}"
    return done.stdout


def program(block: Block) -> object:
    """With the marks of what it needs: an engine, or the time of a training run."""
    needs = {'sandbox("docker")': pytest.mark.docker, "agentgym.train(": pytest.mark.slow}
    marks = [mark for text, mark in needs.items() if text in block.text]
    return pytest.param(block, marks=marks, id=block.name)


@pytest.fixture
def engine() -> None:
    """A Docker engine with our image, or a skip; a failure where the environment requires one."""
    try:
        asyncio.run(PluginRegistry.discover().sandbox("docker")({}).probe())
    except SandboxUnavailable as error:
        (pytest.fail if os.environ.get("AGENTGYM_REQUIRE_DOCKER") == "1" else pytest.skip)(str(error))


@pytest.mark.parametrize("block", [program(block) for block in BLOCKS if treatment(block) == "run"])
def test_a_program_runs_as_it_is(block: Block, place: Path, request: pytest.FixtureRequest) -> None:
    if 'sandbox("docker")' in block.text:
        request.getfixturevalue("engine")
    printed = run_program(block, place)
    shown = shown_output(block)
    assert shown is None or printed.split() == shown.split()


@these("fragment")
def test_a_fragment_says_why_and_is_what_it_says(block: Block) -> None:
    """`from FILE`: the file has it, line by line. Other Python at least compiles."""
    why = block.marks["fragment"]
    assert len(why.split()) >= 2, f"{block.name}: {why!r} is not a reason"
    if source := re.fullmatch(r"from (\S+)", why):
        text = (ROOT / source[1]).read_text()
        assert block.text.strip() in text, f"{block.name} shows what {source[1]} does not have"
    elif block.language == "python":
        body = textwrap.indent(textwrap.dedent(block.text), "    ")
        compile(f"async def fragment():\n{body}", block.name, "exec")


# recipes and settings


@these("recipe")
def test_a_recipe_builds_with_names_that_exist(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(block.text)
    check_names(build(Recipe, read_yaml(path), block.name), registry())


@these("parsed")
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("path", sorted((ROOT / "apps").rglob("*.yaml")), ids=lambda path: path.name)
def test_our_recipes_build(path: Path) -> None:
    check_names(build(Recipe, read_yaml(path), path.name), registry())


# commands


def registry(disabled: Sequence[str] = ()) -> PluginRegistry:
    """What is installed, and the example of the pages."""
    table = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]["agentgym"]
    points = [importlib.metadata.EntryPoint(name, value, "agentgym") for name, value in table.items()]
    return PluginRegistry([*importlib.metadata.entry_points(group="agentgym"), *points], disabled)


class NoJobs:
    """Stands in for training and evaluation: a command that comes so far was right."""

    async def train(self, recipe: Recipe, folder: RunFolder, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(run_dir=folder.path, steps=0, first=None, last=None, difference=None)

    async def evaluate(self, *_: object, **__: object) -> NoReturn:
        raise EvaluationBegins


class EvaluationBegins(BaseException):
    """The arguments of `agentgym eval` were accepted."""


def agentgym(words: Sequence[str], folder: Path) -> str:
    """What the command prints. Training and evaluation are not started; of sandboxes only the parser is asked."""
    words = [PLACEHOLDERS.get(word, word) for word in words]
    for word in words:
        if run := re.match(r"runs/[\w.-]+", word):
            earlier_run(folder / run[0])
    if words[:1] == ["runs"]:
        earlier_run(folder / "runs" / "NAME")
    if words[:1] and words[0] not in OWN and not words[0].startswith("-"):
        command = load_command(words[0])
        parser = Parser(prog=f"agentgym {words[0]}", description="", examples="")
        command.add_arguments(parser)
        parser.parse_strictly(split_overrides(words[1:])[1] if words[1:] else ["--help"])
        return ""
    for made in folder.glob("runs/*-20*"):  # by an earlier command in the same second
        shutil.rmtree(made)
    out, err = io.StringIO(), io.StringIO()
    try:
        code = main(words, JobShell(out=out, err=err, jobs=NoJobs, plugins=registry))
    except EvaluationBegins:
        code = 0
    printed = out.getvalue() + err.getvalue()
    if code and "EvaluationBegins" not in printed and words[0] != "doctor":
        raise CommandFailed(printed)
    return printed


class CommandFailed(Exception):
    """A command of the pages that is wrong."""


def earlier_run(path: Path) -> None:
    """A run as the pages speak of it: finished, with three steps, episodes and checkpoints."""
    if path.exists():
        return
    task = Task(task_id="t", prompt=({"role": "user", "content": "hello"},))
    span = (VersionSpan(version=1, start=0, end=1),)
    turn = Turn(prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.1,), versions=span, finish_reason=FinishReason.STOP)  # fmt: skip
    episodes = [
        Episode(episode_id=f"e{n}", task=task, seed=n, turns=[turn], info={"success": n % 2 == 0}, stop=Stop.DONE)
        for n in range(4)
    ]  # fmt: skip
    group = Group(group_id=0, task=task, start_version=1, episodes=episodes, advantages=[0.5, -0.5] * 2)
    with RunFolder.create(path.parent, path.name) as run:
        run.save_config(to_mapping(Recipe()))
        for step in (1, 12, 20):
            metrics = {"rollout/reward_mean": 0.5, "rollout/success_mean": 0.5}
            run.append_metrics(step, metrics | {"train/entropy": 0.1, "train/mismatch_kl": 0.0})
            run.save_groups(step, [group])
            run.save_evaluation(step, [episodes])
            run.checkpoint_dir(step).mkdir()
        run.set_status(RunStatus.DONE)


def make(words: Sequence[str], folder: Path) -> str:
    targets = [word for word in words if "=" not in word]
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True)
    return fine(done)


def python(words: Sequence[str], folder: Path) -> str:
    if words[:2] == ["-m", "pip"]:
        return pip(words[2:], folder)
    if words[:2] == ["-m", "pytest"]:
        return pytest_command(words[2:], folder)
    if words[:2] == ["-m", "venv"]:
        return ""
    kind = words[:1] if words[0] == "-m" else ["file"]
    target = list(words[1:] if words[0] == "-m" else words)
    if "--out" in target:  # a later command may use what this one makes
        (folder / target[target.index("--out") + 1] / "policy").mkdir(parents=True, exist_ok=True)
    if "argparse" not in "".join(path.read_text() for path in [folder / target[0]] if path.is_file()):
        if kind == ["file"] and (folder / target[0]).is_file() and not target[1:]:
            return ""
    done = subprocess.run(
        [sys.executable, "-c", PARSES_ONLY, *kind, *target], cwd=folder, capture_output=True, text=True
    )
    return fine(done)


def pip(words: Sequence[str], folder: Path) -> str:
    """Requirements that pip would take; of ours, extras and pins that the project has."""
    assert words[0] == "install"
    extras = PROJECT["project"]["optional-dependencies"]
    pins = {Requirement(r).name: r for rs in extras.values() for r in rs if "==" in r}
    rest = iter(words[1:])
    for word in rest:
        if word in ("--index-url", "-r", "-e"):
            value = next(rest)
            if word == "-r" and not (folder / value).is_file():
                raise CommandFailed(f"there is no file {value}")
        elif not word.startswith("-"):
            requirement = Requirement(word)
            unknown = requirement.extras - set(extras) if requirement.name == "agentgym" else set()
            pin = pins.get(requirement.name, word)
            if unknown or (str(requirement.specifier) and pin != word):
                raise CommandFailed(f"{word}: unknown extras {sorted(unknown)}, or the project pins {pin}")
    return ""


def pytest_command(words: Sequence[str], folder: Path) -> str:
    markers = {marker.partition(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    rest = iter(words)
    for word in rest:
        if word == "-m":
            unknown = set(re.findall(r"\w+", next(rest))) - markers - {"not", "and", "or"}
            if unknown:
                raise CommandFailed(f"no markers {sorted(unknown)}; there is: {sorted(markers)}")
        elif not word.startswith("-") and not (folder / word.partition("::")[0]).exists():
            raise CommandFailed(f"there is no {word}")
    return ""


def fine(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise CommandFailed(done.stderr or done.stdout)
    return done.stdout


PROGRAMS: dict[str, Callable[[Sequence[str], Path], str]] = {
    "agentgym": agentgym, "make": make, "python": python, "python3": python, "pip": pip, "pytest": pytest_command,
}  # fmt: skip


def check(words: Sequence[str], folder: Path) -> str:
    """Check one command by its program; returns what it printed when it ran. A program nobody knows fails."""
    words = list(words)
    if "&&" in words:
        place = words.index("&&")
        return check(words[:place], folder) + check(words[place + 1 :], folder)
    while words and re.match(r"\w+=", words[0]):
        words.pop(0)
    name = Path(words[0]).name if words[0] != "." else "."
    if name in ("sudo", "systemd-run", "nohup"):  # they start another program
        inner = next((n for n, word in enumerate(words) if n and re.search(r"agentgym\b|apt-get|systemctl", word)), 0)
        return check(["agentgym" if "agentgym" in words[inner] else words[inner], *words[inner + 1 :]], folder)
    if name in OF_THE_SYSTEM:
        return ""
    if name not in PROGRAMS:
        raise CommandFailed(f"{name}: no test knows this program; it knows {', '.join(PROGRAMS)}")
    return PROGRAMS[name](words[1:], folder)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.name} {' '.join(command.words)[:60]}")
def test_a_command_is_one_that_works(command: Command, place: Path) -> None:
    try:
        printed = " ".join(check(command.words, place).split())
    except CommandFailed as error:  # right where the page shows a mistake and its message
        if not command.output:
            raise
        printed = " ".join(str(error).split())
    if shown := " ".join(command.output.split()):
        pattern = re.sub(r"\[", "[[]", shown).replace("...", "*")
        assert fnmatch.fnmatchcase(printed, pattern), f"{command.name} prints\n{printed}"


@pytest.mark.parametrize("name", OWN)
def test_the_examples_of_a_command_work(name: str, place: Path) -> None:
    (place / "recipe.yaml").write_text("loop: {steps: 1}\n")
    (place / "tasks.jsonl").symlink_to(ROOT / "tests" / "data" / "problems.jsonl")
    for line in load_command(name).EXAMPLES.strip().splitlines():
        check(re.split(r"\s{3,}", line)[0].split(), place)


@pytest.mark.parametrize(
    "wrong",
    [
        "agentgym trian --env code_exec", "agentgym train --env code_exek", "agentgym train --env code_exec --loop.stepz 3",
        "agentgym train no_such.yaml", "agentgym eval no/such/model", "agentgym sandbox verfy", "agentgym sandbox verify --onli state",
        "agentgym episodes runs/NAME --sho 1", "make tset", "python benchmarks/sandbox.py --markdwon", "python benchmarks/gone.py",
        "pip install 'agentgym[dcker]'", "pip install torchtitan==0.2.0", "pytest -m qpu", "pytest tests/nowhere", "curl example.org",
    ],
)  # fmt: skip
def test_a_wrong_command_is_found(wrong: str, place: Path) -> None:
    with pytest.raises(Exception) as caught:
        check(wrong.replace("'", "").split(), place)
    assert not isinstance(caught.value, AssertionError)


# links and names


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target
    ours = [f"/{path.relative_to(ROOT)}" for room in ("agentgym", "envs", "plugins", "sandboxes", "apps", "tests", "benchmarks", "docs") for path in (ROOT / room).rglob("*")]  # fmt: skip
    shown = {block.marks["file"] for block in BLOCKS if "file" in block.marks}
    for name in re.findall(r"`([\w/.-]+\.(?:py|yaml|toml|md|png|svg))`", text):
        known = name in shown or (ROOT / name).exists() or any(path.endswith(f"/{name}") for path in ours)
        assert known or name in FILES_OF_OTHERS, f"{page.name} names {name}, which does not exist"


FILES_OF_OTHERS = {"curve.png", "config.yaml", "program.py"}
"""What a run or a reader makes."""
