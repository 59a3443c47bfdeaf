"""`agentgym benchmark`: a published benchmark with its official options, as `agentgym eval` plays it."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from agentgym.cli.commands import eval as evaluation
from agentgym.cli.evaluating import find_policy
from agentgym.cli.jobs import JobShell
from agentgym.commands.parser import Parser, split_overrides
from agentgym.commands.shell import Shell
from agentgym.env import Benchmark
from agentgym.errors import UserError, nearest
from agentgym.hooks import PluginRegistry
from agentgym.types import Json

DESCRIPTION = """
Play a published benchmark whole: its test split, its number of tasks, its grading, greedily. Without a NAME the
benchmarks are listed. It is short for `agentgym eval` with options, which --dry-run shows; all options of `eval` may be
given and win over the benchmark's own: --samples and --rollout.temperature sample instead of playing greedily.

Data come from where the list says: the Hugging Face hub, or an installed package. --data gives a copy of them.
docs/benchmarks.md says how verdicts differ from those of the authors' own graders.
"""
EXAMPLES = """
agentgym benchmark
agentgym benchmark humaneval builtin:tiny --dry-run
agentgym benchmark humaneval runs/NAME --data HumanEval.jsonl.gz
agentgym benchmark gsm8k openai:gpt-5-mini --tasks 200
agentgym benchmark mbpp runs/NAME --samples 8 --rollout.temperature 0.8
"""
TAKES_OVERRIDES = True
HEADER = ("benchmark", "tasks", "environment", "licence", "data from")
_ALONE = "checkpoints are measured one by one, as in RUN/checkpoints/step-000020"
OTHERS = {
    "env": "a benchmark has its own environment",
    "resume": "an evaluation is continued by agentgym eval --resume FOLDER",
    "every_checkpoint": _ALONE,
    "checkpoints": _ALONE,
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("benchmark", nargs="?", metavar="NAME", help="one of those that are listed without it")
    parser.add_argument("--data", metavar="PATH", help="a copy of the benchmark's data: a file or folder")
    evaluation.add_arguments(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    found = benchmarks(shell.plugins())
    name = arguments.benchmark
    if name is None:
        return _list(found, shell, as_json=arguments.json)
    if name not in found:
        raise UserError(f"there is no benchmark {name!r}; `agentgym benchmark` lists them.{nearest(name, found)}")
    if arguments.model is None:
        raise UserError(f"agentgym benchmark {name} needs a MODEL, as in: agentgym benchmark {name} builtin:tiny")
    for option, why in OTHERS.items():
        if getattr(arguments, option):
            raise UserError(f"agentgym benchmark takes no --{option.replace('_', '-')}: {why}")
    words = official_words(*found[name], arguments)
    if arguments.dry_run and not arguments.json:
        others = _other_words(arguments.words, name, arguments.model)
        shell.say(f"agentgym eval {shlex.join([arguments.model, *words, *others])}\n")
    overrides, others = split_overrides(words)
    parser = Parser(prog="agentgym eval", description="", examples="")
    evaluation.add_arguments(parser)
    official = parser.parse_strictly(others)
    for option in ("env", "tasks", "greedy"):
        if getattr(arguments, option) is None:
            setattr(arguments, option, getattr(official, option))
    arguments.overrides = [*overrides, *arguments.overrides]
    return evaluation.run(arguments, shell)


def benchmarks(registry: PluginRegistry) -> dict[str, tuple[str, Benchmark]]:
    """Each benchmark with its environment, by name; plugins' environments have some, too."""
    return {
        name: (environment, one)
        for environment, offer in registry.listed("environments").items()
        if not isinstance(offer, UserError)
        for name, one in getattr(offer[0], "benchmarks", {}).items()
    }


def official_words(environment: str, benchmark: Benchmark, arguments: argparse.Namespace) -> list[str]:
    """What `agentgym eval` is given; nothing of a run's own environment is left. Raises UserError for --data."""
    options = benchmark.options if arguments.data is None else _local_options(benchmark, arguments)
    words = ["--env", environment]
    if find_policy(arguments.model).run_dir is not None:
        words = ["--set", f"env={{name: {environment}}}", "--set", "rewards={}"]
    settings = {f"env.options.{key}": value for key, value in options.items() if value != ""}
    for key, value in (settings | dict(benchmark.settings)).items():
        words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    if not any("env.options." in word for word in arguments.overrides):  # with options of one's own it is another one
        words += ["--eval.benchmark", arguments.benchmark]
    words += [] if arguments.tasks else ["--tasks", str(benchmark.tasks)]
    sampled = arguments.samples or any("rollout.temperature" in word for word in arguments.overrides)
    return words if sampled or arguments.greedy else [*words, "--greedy"]


def _local_options(benchmark: Benchmark, arguments: argparse.Namespace) -> dict[str, Json]:
    path = Path(arguments.data)
    if not path.exists():
        raise UserError(f"--data: there is no file or folder {arguments.data!r}")
    options = {**(benchmark.options if benchmark.local is None else benchmark.local), "path": str(path)}
    if "source" in options and path.suffix == ".parquet":
        options["source"] = "parquet"
    elif "source" in options and (path.is_dir() or path.read_bytes()[:64].lstrip().startswith(b"[")):
        options["source"] = "json"  # a folder of files, or one list of rows
    return options


def _list(found: Mapping[str, tuple[str, Benchmark]], shell: Shell, *, as_json: bool) -> int:
    if as_json:
        rows = [{"name": name, "environment": env, **asdict(one)} for name, (env, one) in found.items()]
        shell.say_json(rows)
        return 0
    cells = [(name, f"{one.tasks:,}", env, one.licence, one.source) for name, (env, one) in found.items()]
    shell.say_table(HEADER, cells)
    shell.say("\nplay one: agentgym benchmark NAME MODEL; --dry-run shows the `agentgym eval` that it stands for")
    return 0


def _other_words(words: Sequence[str], *left_out: str) -> list[str]:
    """What `agentgym eval` is given besides. left_out: the benchmark's name and the model, as --data and --dry-run."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--data":
            next(rest, None)
        elif word not in ("--dry-run", *left_out) and not word.startswith("--data="):
            kept.append(word)
    return kept
