"""The documentation is right: its programs run, its recipes build, its commands are what the parsers take."""

from __future__ import annotations

import asyncio
import fnmatch
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_commands import EXAMPLE, CommandFailed, check, registry
from pages import PAGES, ROOT, Block, Command, blocks, commands, inline_commands
from tiny_gguf import write_gguf

from agentgym.cli.catalogue import OWN, load_command
from agentgym.cli.recipes import check_names
from agentgym.hooks import PluginRegistry
from agentgym.models.smollm2 import FOLDER, converted
from agentgym.models.tiny import policy_path
from agentgym.recipe import build_recipe
from agentgym.sandbox import SandboxUnavailable
from agentgym.yaml import read_yaml

NOTEBOOK = ROOT / "docs" / "first_steps.ipynb"  # its cells are run: test_notebook.py
BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [c for block in BLOCKS if block.language in ("sh", "console") for c in commands(block)]
COMMANDS += [command for page in PAGES for command in inline_commands(page)]
COMMANDS = list({(one.words, one.output): one for one in reversed(COMMANDS)}.values())[::-1]  # each once
TREATMENTS = {
    "python": "run",
    "output": "compared",
    "sh": "commands",
    "console": "commands",
    "yaml": "recipe",
    "toml": "parsed",
}
INDENTED = re.compile(r"(    |\t)(agentgym|make|python|pip|pytest) ")
SMALL_LOOP = ["--loop.steps", "2", "--loop.groups_per_step", "2", "--loop.group_size", "4"]
STARTS_QUICKLY = """
import sys
from agentgym.cli.main import main
code = main(sys.argv[1:])
sys.exit(code or ("torch" in sys.modules and "torch was imported: seconds in which nothing else starts"))
"""
SMALL = "small = {"  # of a program that trains; with this its processes are its own, which import torch once
IN_PROCESS = SMALL + '"launcher": {"name": "in_process:InProcess"}, '
NEEDS = {'sandbox("docker")': pytest.mark.docker, "agentgym.train(": pytest.mark.slow}


def treatment(block: Block) -> str:
    """What is done with a block."""
    return "fragment" if "fragment" in block.marks else TREATMENTS.get(block.language, "unknown")


def those(kind: str) -> pytest.MarkDecorator:
    chosen = [
        pytest.param(block, id=block.name, marks=[mark for text, mark in NEEDS.items() if text in block.text])
        for block in BLOCKS
        if treatment(block) == kind
    ]
    return pytest.mark.parametrize("block", chosen)


def test_every_block_is_checked_or_says_why_not() -> None:
    unknown = [block.name for block in BLOCKS if treatment(block) == "unknown"]
    assert not unknown, (
        f"{unknown}: give each a language of {', '.join(TREATMENTS)}, "
        "or write above it why it is only shown: <!-- fragment: why -->"
    )
    indented = [line for page in PAGES for line in page.read_text().splitlines() if INDENTED.match(line)]
    assert not indented, f"{indented}: put these commands between ```sh and ```"
    counts = Counter(map(treatment, BLOCKS))
    assert all(counts[kind] for kind in ("run", "commands", "recipe", "fragment")), counts
    assert len(COMMANDS) > 50  # or this looks at the wrong places


# programs


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has a small model in the place of the package index's."""
    folder = tmp_path_factory.mktemp("models")
    write_gguf(folder / "small.gguf")
    converted(folder / "agentgym" / FOLDER, lambda: folder / "small.gguf")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: Path) -> Path:
    """A working directory as the pages take it: folders of the checkout, and every file that a page shows."""
    for name in ("apps", "benchmarks", "tests", "docs", "Makefile", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in BLOCKS:
        if name := block.marks.get("file"):
            (tmp_path / name).write_text(block.text)
    (tmp_path / "program.py").write_text("print(6 * 7)")
    guess, short = (EXAMPLE / "guess_number.py").read_text(), "def short(episode):\n    return 1.0\n"
    (tmp_path / "my_env.py").write_text(f"{guess}\n\n{short}")
    (tmp_path / "recipe.yaml").write_text("loop: {steps: 1}\n")
    (tmp_path / "tasks.jsonl").symlink_to(ROOT / "tests" / "data" / "problems.jsonl")
    rows = (ROOT / "tests" / "data" / "humaneval_shaped.jsonl").read_bytes()
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(rows))
    for file in policy_path().iterdir():  # FOLDER is this one, of a model too
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.setenv("HF_HOME", str(models))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)
    return tmp_path


@pytest.fixture
def engine() -> None:
    """A Docker engine with our image, or a skip; a failure where the environment requires one."""
    try:
        asyncio.run(PluginRegistry.discover().sandbox("docker")({}).probe())
    except SandboxUnavailable as error:
        (pytest.fail if os.environ.get("AGENTGYM_REQUIRE_DOCKER") == "1" else pytest.skip)(str(error))


@those("run")
def test_a_program_runs_and_prints_what_is_shown(block: Block, place: Path, request: pytest.FixtureRequest) -> None:
    if 'sandbox("docker")' in block.text:
        request.getfixturevalue("engine")
    (place / "pasted.py").write_text(block.text.replace(SMALL, IN_PROCESS))
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")} if SMALL in block.text else None
    command = [sys.executable, "-W", "error", "pasted.py"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=280, env=environ)
    # the program has ended by then: Python up to 3.13 and Monarch's threads, see `agentgym.commands.leaving`
    lost_at_exit = (done.returncode, done.stderr.strip()) == (-signal.SIGABRT, "FATAL: exception not rethrown")
    assert lost_at_exit or (done.returncode, done.stderr) == (0, ""), block.name
    after = BLOCKS[BLOCKS.index(block) + 1 :][:1]
    if after and after[0].page == block.page and after[0].language == "output":
        assert done.stdout.split() == after[0].text.split()


@pytest.mark.slow
def test_the_environment_of_the_first_screen_is_trained(place: Path) -> None:
    """The README's file and command, for two steps; what was trained is measured by the command line too."""

    def run(*words: str) -> str:
        small = ["--eval.tasks", "8", "--eval.samples_per_task", "1", "--generator.replicas", "1"]
        command = [sys.executable, "-c", STARTS_QUICKLY, *words, *small, "--logging.sinks", "[]"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stdout

    words = next(c.words for c in COMMANDS if "digits.py:Digits" in c.words and "train" in c.words)
    printed = run(*words[1:], *SMALL_LOOP, "--json", "--name", "one")
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2]
    assert events[-1]["event"] == "result" and events[-1]["steps"] == 2 and events[-1]["last"]
    assert "digits.py:Digits, held-out tasks" in run("eval", "runs/one", "--plain")


@those("fragment")
def test_a_fragment_says_why_and_is_what_it_says(block: Block) -> None:
    """`from FILE`: the file has it, line by line. Other Python compiles at least."""
    why = block.marks["fragment"]
    assert len(why.split()) >= 2, f"{block.name}: {why!r} is not a reason"
    if source := re.fullmatch(r"from (\S+)", why):
        text = (ROOT / source[1]).read_text()
        assert block.text.strip() in text, f"{block.name} shows what {source[1]} does not have"
    elif block.language == "python":
        body = textwrap.indent(textwrap.dedent(block.text), "    ")
        compile(f"async def fragment():\n{body}", block.name, "exec")


# recipes


@those("recipe")
def test_a_recipe_builds_with_names_that_exist(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(block.text)
    check_names(build_recipe(read_yaml(path), block.name, registry), registry())


@those("parsed")
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


# commands


SLOW = re.compile(r"python benchmarks/|agentgym plan ")
"""Commands that take seconds each: they import torch, or simulate many GPUs."""


def each_command() -> Iterator[Any]:
    for one in COMMANDS:
        words = " ".join(one.words)
        marks = [pytest.mark.hostile] if SLOW.match(words) else []
        yield pytest.param(one, id=f"{one.name} {words[:60]}", marks=marks)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("command", [*each_command()])
def test_a_command_is_one_that_works(command: Command, place: Path) -> None:
    try:
        printed = " ".join(check(command.words, place).split())
    except CommandFailed as error:  # right where the page shows a mistake and its message
        if not command.output:
            raise
        printed = " ".join(str(error).split())
    if shown := " ".join(command.output.split()):
        pattern = shown.replace("[", "[[]").replace("...", "*")
        assert fnmatch.fnmatchcase(printed, pattern), f"{command.name} prints\n{printed}"


FEWER = {"plan": ["--steps", "4"]}  # than its own, which take seconds for many GPUs


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.hostile] * (n == "plan")) for n in OWN])
def test_the_examples_of_a_command_work(name: str, place: Path) -> None:
    for line in load_command(name).EXAMPLES.strip().splitlines():
        check([*shlex.split(re.split(r"\s{3,}", line)[0]), *FEWER.get(name, [])], place)


@pytest.mark.parametrize(
    "wrong",
    [
        "agentgym trian --env code_exec",
        "agentgym train --env code_exek",
        "agentgym train --env code_exec --loop.stepz 3",
        "agentgym train no_such.yaml",
        "agentgym eval no/such/model",
        "agentgym sandbox verfy",
        "agentgym sandbox verify --onli state",
        "agentgym runs episodes runs/NAME --sho 1",
        "agentgym episodes runs/NAME --show 1",
        "make tset",
        "python benchmarks/sandbox.py --markdwon",
        "python benchmarks/gone.py",
        "pip install -e .[dcker]",
        "pip install gymwright[dcker]",
        "pip install torchtitan==0.2.0",
        "pytest -m qpu",
        "pytest tests/nowhere",
        "curl example.org",
    ],
)
def test_a_wrong_command_is_found(wrong: str, place: Path) -> None:
    with pytest.raises((CommandFailed, ValueError)):
        check(wrong.split(), place)


# links and names


def test_every_page_is_in_the_menu_of_the_site() -> None:
    """As the strict build of `make site` demands, which `make test` does not make."""
    menu = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert sorted(menu) == sorted(
        [*pages, "environments_catalogue.md", "first_steps.md"]
    )  # website/hooks.py makes both


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", NOTEBOOK], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, NOTEBOOK], ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    rooms = ("agentgym", "envs", "plugins", "sandboxes", "apps", "tests", "benchmarks", "docs")
    ours = [f"/{path.relative_to(ROOT)}" for room in rooms for path in (ROOT / room).rglob("*.*")]
    shown = {block.marks["file"] for block in BLOCKS if "file" in block.marks}
    made = {"curve.png", "config.yaml", "program.py", "prices.yaml"}  # by a run or a reader
    for name in re.findall(r"`([\w/.-]+\.(?:py|yaml|toml|md|png|svg))`(?! of commit )", page.read_text()):
        exists = (ROOT / name).exists() or any(path.endswith(f"/{name}") for path in ours)
        assert exists or name in shown | made, f"{page.name} names {name}, which does not exist"
