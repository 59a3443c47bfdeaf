"""`agentgym eval`: a checkpoint, or any Hugging Face folder, on held-out tasks."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict
from pathlib import Path

from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import add_recipe_arguments, finish, read_recipe, recipe_help
from agentgym.cli.results import HEADER, eval_row
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import sandbox_text
from agentgym.yaml import read_yaml

DESCRIPTION = """
Play a policy on held-out tasks and print its success with a 95% confidence interval. MODEL is a checkpoint of
a run (then with its config: the same environment, limits and seeds), a run (its last checkpoint), a Hugging
Face folder, a hub name, or builtin:tiny. The same tasks and seed give the same prompts and sampling seeds.
"""
EXAMPLES = """
agentgym eval builtin:tiny --env code_exec
agentgym eval builtin:tiny --env brief.py:Brief
agentgym eval runs/math-1
agentgym eval runs/math-1/checkpoints/step-000020 --tasks 200 --samples 4
agentgym eval Qwen/Qwen3-0.6B --env math --rollout.max_turn_tokens 512 --json
"""
TAKES_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a checkpoint, run, Hugging Face folder or hub name")
    add_recipe_arguments(parser)
    parser.add_argument("--tasks", type=int, metavar="N", help="sets eval.tasks")
    parser.add_argument("--samples", type=int, metavar="K", help="sets eval.samples_per_task")
    parser.add_argument("--seed", type=int, metavar="N", help="sets eval.seed")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.help_recipe:
        shell.say(recipe_help())
        return 0
    for flag in ("tasks", "samples"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise UserError(f"--{flag} is {value}; give at least 1")
    model, run_dir = find_model(arguments.model)
    base, where = base_recipe(arguments.recipe, run_dir)
    flags = {
        "model.path": model,
        "model.random_weights": False,
        "env.name": arguments.env,
        "eval.tasks": arguments.tasks,
        "eval.samples_per_task": arguments.samples,
        "eval.seed": arguments.seed,
    }
    recipe, _, registry = finish(base, flags, arguments, where, shell)
    reporter = choose_reporter(shell, f"eval {model}", as_json=arguments.json, plain=True)
    with contextlib.closing(reporter), warnings_to(reporter.note):
        job = shell.jobs().evaluate(recipe, reporter, registry=registry)
        result = run_until_stopped(job, reporter.note)
        if arguments.json:
            shell.say_json(asdict(result))
        else:
            reporter.table(f"{recipe.env.name}, held-out tasks", HEADER, [eval_row(result)])
            if result.sandbox:
                reporter.note(f"sandbox {result.sandbox}: {sandbox_text(result.sandbox_metrics)}")
    return 0


def base_recipe(recipe: str | None, run_dir: Path | None) -> tuple[dict[str, object], str]:
    """The mapping of a recipe file, else of the run's own config, and what to call it in errors."""
    if recipe is None and run_dir is not None:
        config = run_dir / "config.yaml"
        return read_yaml(config), str(config)
    return read_recipe(recipe)


def find_model(given: str) -> tuple[str, Path | None]:
    """The model's path, and the folder of the run that made it, if one did.

    Raises UserError for a run without checkpoints.
    """
    path = Path(given)
    if (path / "status.json").is_file():
        folder = RunFolder.open(path)
        steps = folder.checkpoint_steps()
        if not steps:
            raise UserError(f"run {given!r} has no checkpoint yet")
        return str(folder.checkpoint_dir(steps[-1])), path
    for parent in path.absolute().parents:
        if (parent / "status.json").is_file() and (parent / "config.yaml").is_file():
            return given, parent
    return given, None
