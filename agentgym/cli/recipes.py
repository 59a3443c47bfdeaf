"""Builds a recipe from a command's arguments, and checks every name in it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from agentgym.actors.hosts import HostsConfig
from agentgym.commands.parser import Parser
from agentgym.commands.shell import FindPlugins, Shell
from agentgym.commands.text import table_lines
from agentgym.components import name_of
from agentgym.config import COMMAND_LINE, apply_overrides
from agentgym.errors import UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.hooks import PluginRegistry
from agentgym.models.defaults import KEYS
from agentgym.models.device import pick_device
from agentgym.models.resolve import ModelUnavailable, check_local, local_folder, model_architecture
from agentgym.planning.machine import Machine, machine_of
from agentgym.policies.outside.config import served_name
from agentgym.recipe import Command, Recipe, describe_recipe
from agentgym.rl.sft_config import SftConfig
from agentgym.rollout.sandboxes import check_sandbox
from agentgym.rollout.scoring import find_reward
from agentgym.rollout.tasks import HeldOut
from agentgym.run.layers import finish_recipe
from agentgym.run.placement import placement_lines
from agentgym.run.recipe_files import read_recipe_files
from agentgym.trainer.choice import choose_engine
from agentgym.trainer.config import TrainerConfig

HELP_RECIPE = "list all fields of a recipe, then end; `agentgym settings` says what they do"
Finished: TypeAlias = tuple[Recipe, dict[str, str], PluginRegistry]
"""A recipe, where its fields come from, and the plugins that it leaves on."""


class RecipeHelp(argparse.Action):
    """`--help-recipe`: prints the fields of the recipe that the command `const` takes, and ends as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        print(recipe_help(self.const))
        parser.exit()


def add_recipe_arguments(parser: Parser, command: Command = "train") -> None:
    """The options of commands that take a recipe; for fine-tuning its file alone gives agent and rewards."""
    parser.add_argument("--recipe", "--config", metavar="FILE", help="a recipe in YAML; without one the defaults apply")
    played = "" if command == "train" else "measure in it before and after, or ask its oracle: "
    parser.add_argument(
        "--env",
        metavar="NAME",
        help=f"{played}an environment that is installed, or a file's or module's: my_env.py:Guess",
    )
    if command == "train":
        parser.add_argument(
            "--agent", metavar="NAME", help="the program that plays, by name or as package.module:Name (default: chat)"
        )
        add_reward_argument(parser, "a reward instead of the environment's own")
    else:
        parser.set_defaults(agent=None, reward=None)
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        help="set a field of the recipe; also as --section.field VALUE or section.field=VALUE",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for scripts")
    parser.add_argument("--plain", action="store_true", help="plain lines, also in a terminal")
    parser.add_argument("--help-recipe", action=RecipeHelp, nargs=0, const=command, help=HELP_RECIPE)
    parser.sections = partial(sections, command)


def add_reward_argument(parser: Parser, what: str) -> None:
    parser.add_argument(
        "--reward",
        action="append",
        metavar="NAME[=WEIGHT]",
        help=f"{what}, by name or as my.py:short; may be given several times",
    )


def sections(command: Command = "train") -> dict[str, list[str]]:
    """The recipe's sections with the names of their fields."""
    found: dict[str, list[str]] = {}
    for info in describe_recipe(command):
        section, _, field = info.key.partition(".")
        found.setdefault(section, []).append(field)
    return found


def add_machine_arguments(parser: Parser) -> None:
    """Adds the arguments of a machine that is only planned for."""
    parser.add_argument("--gpus", type=int, metavar="N", help="plan for a machine with N GPUs instead of this one")
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="with --gpus: of each")


def planned_machine(arguments: argparse.Namespace) -> Machine:
    if arguments.gpu_memory is not None and not math.isfinite(arguments.gpu_memory):
        raise UserError(f"--gpu-memory is {arguments.gpu_memory}; give the GiB of each GPU")
    return machine_of(arguments.gpus, arguments.gpu_memory)


def device_flags(base: Mapping[str, object], arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the device overrides: on a planned machine with GPUs, `auto` is the GPU."""
    flags: dict[str, object] = {}
    for section in ("trainer", "generator") if arguments.gpus else ():
        given = base.get(section)
        words = [word.removeprefix("--") for word in arguments.overrides]
        if not (isinstance(given, Mapping) and "device" in given) and f"{section}.device" not in str(words):
            flags[f"{section}.device"] = "cuda"
    return flags


def planned_lines(recipe: Recipe, arguments: argparse.Namespace) -> list[str]:
    """The planned placement, with estimated memory. Raises UserError where it does not fit, or a folder has no model
    that can be trained.
    """
    machine = planned_machine(arguments)
    check_local(recipe.model.path)
    try:
        model = model_architecture(recipe.model.path)
    except ModelUnavailable as error:
        return placement_lines(recipe, None, machine, str(error))
    if Path(recipe.model.path).is_dir() and (folder := local_folder(recipe.model.path)):
        choose_engine(
            recipe.trainer, folder, recipe.model.quantize
        )  # of others, the start says what its engine does not compute
    return placement_lines(recipe, model, machine)


def finish(
    base: Mapping[str, object],
    flags: Mapping[str, object],
    arguments: argparse.Namespace,
    where: str,
    shell: Shell,
    *,
    served: bool = False,
    command: Command = "train",
) -> Finished:
    """The recipe from base, the command's flags (dotted), the overrides, `--agent` and `--reward`.

    served: whether the policy may be one that a server holds.
    """
    flags = {**flags, "agent.name": arguments.agent}
    where = where if base else COMMAND_LINE
    given = apply_overrides(with_flags(base, flags, where), arguments.overrides)
    weights = given_weights(arguments.reward)
    return finish_checked(given, weights, base=base, where=where, plugins=shell.plugins, served=served, command=command)


def with_flags(base: Mapping[str, object], flags: Mapping[str, object], where: str) -> dict[str, object]:
    """The mapping with a command's flags, by dotted key, in their sections. One that is None is left out."""
    mapping = dict(base)
    for key, value in flags.items():
        if value is None:
            continue
        section, _, name = key.partition(".")
        inner = mapping.get(section) or {}
        if isinstance(inner, str):  # a component by its name alone
            inner = {"name": inner}
        if not isinstance(inner, Mapping):
            raise UserError(f"{where}: {section} is {inner!r}, not a section")
        mapping[section] = {**inner, name: value}
    return mapping


def given_weights(words: Sequence[str] | None) -> dict[str, float | None]:
    """Weights of `--reward` NAME or NAME=WEIGHT, where NAME may be an import path; None is the reward's own weight."""
    weights: dict[str, float | None] = {}
    for word in words or ():
        name, equals, weight = word.partition("=")
        try:
            weights[name] = float(weight) if equals else None
        except ValueError:
            raise UserError(f"--reward {word}: {weight!r} is not a number; write NAME=WEIGHT") from None
    return weights


def full_weights(
    weights: Mapping[str, float | None], environment: object, registry: PluginRegistry
) -> dict[str, float]:
    """The weights, with a reward's own where none was given. Raises UserError for an unknown reward."""
    return {
        name: find_reward(name, environment, registry).weight if weight is None else weight
        for name, weight in weights.items()
    }


def finish_checked(
    given: Mapping[str, object],
    weights: Mapping[str, float | None],
    *,
    base: Mapping[str, object],
    where: str,
    plugins: FindPlugins = PluginRegistry.discover,
    served: bool = False,
    command: Command | None = "train",
) -> Finished:
    """The recipe with every name in it checked. Raises UserError.

    weights: of the rewards instead of the recipe's own; None is the reward's default. The rest: see `finish_recipe`
    and `finish`.
    """
    recipe, sources = finish_recipe(given, base=base, where=where, plugins=plugins, command=command)
    registry = plugins(recipe.plugins.disabled)
    if weights:
        recipe = replace(recipe, rewards=full_weights(weights, registry.environment(recipe.env.name), registry))
    check_names(recipe, registry)
    if not served or served_name(recipe.model.path) is None:
        local_folder(recipe.model.path)  # raises for a path where nothing is
    return recipe, sources, registry


def read_recipe(given: str | Sequence[str] | None, command: Command = "train") -> tuple[dict[str, object], str]:
    """The mapping of recipe files, the later over the earlier, and what to call it in errors; nothing for no file."""
    return read_recipe_files([given] if isinstance(given, str) else given or [], command)


def check_names(recipe: Recipe, registry: PluginRegistry) -> None:
    """Raises UserError, with the nearest name, for what no plugin provides, before anything is started."""
    environment = registry.environment(recipe.env.name) if recipe.env.name else None
    if isinstance(environment, type):  # the rewards of others are known when they are built
        for name in recipe.rewards:
            find_reward(name, environment, registry)
    check_sandbox(recipe.sandbox.name, recipe.sandbox.options, registry)
    for name in recipe.logging.sinks:
        registry.sink(name)()  # an incomplete one is refused here; the run makes its own


def recipe_help(command: Command = "train") -> str:
    """Every field with its type and default."""
    rows = [
        (info.key, info.type_name, "from the model" if info.key in KEYS else info.default or "(required)")
        for info in describe_recipe(command)
    ]
    return "\n".join(
        [
            *table_lines(("field", "type", "default"), rows),
            "",
            "In a file:          trainer:\n                      procs: 2",
            "On the command line: --trainer.procs 2",
        ]
    )


def source_lines(sources: Mapping[str, str]) -> list[str]:
    """Where the values of a finished recipe come from, one source after another."""
    by_source: dict[str, list[str]] = {}
    for key, source in sources.items():
        by_source.setdefault(source, []).append(key)
    lines = [f"  {source}: {', '.join(keys)}" for source, keys in by_source.items()]
    return ["Where the values come from; all others are defaults:", *lines] if lines else []


def plan(recipe: Recipe, held_out: HeldOut | None = None, *, custom: bool = False) -> list[str]:
    """What a run of this recipe starts and does, in lines for a person.

    held_out: how many tasks, where it is known. custom: its loop is the user's own.
    """
    trainer, env = recipe.trainer, recipe.env
    lines = [f"policy       {recipe.model.path}" + (" with random weights" if recipe.model.random_weights else "")]
    if env.name:
        lines.append(f"environment  {env.name}" + (f" {env.options}" if env.options else ""))
    of_trainer = f"trainer      {trainer.procs} process(es) on {_devices(recipe, 'trainer')}, {trainer.dtype}"
    lines += _rl_plan(recipe, of_trainer) if recipe.sft is None else _sft_plan(recipe, recipe.sft, of_trainer)
    if custom:
        sinks = ", ".join(["the run's folder", *recipe.logging.sinks])
        lines.append(
            f"metrics      what the loop records goes to {sinks}; held-out tasks are played where the loop says so"
        )
    elif recipe.evaluates:
        lines.append(
            f"at the end   first and last checkpoint on {held_out or HeldOut(asked=recipe.eval.tasks)}, "
            f"{recipe.eval.samples_per_task} times each"
        )
    return lines


def _rl_plan(recipe: Recipe, of_trainer: str) -> list[str]:
    loop, generator = recipe.loop, recipe.generator
    mode = "synchronous" if loop.max_staleness == 0 else f"asynchronous, staleness at most {loop.max_staleness}"
    weights = ", ".join(f"{name} x {weight:g}" for name, weight in recipe.rewards.items())
    agent = name_of("agents", recipe.agent)
    lines = [
        *([] if agent == "chat" else [f"agent        {agent}"]),
        "rewards      " + (weights or "the environment's own"),
        f"sandbox      {recipe.sandbox.name}",
        of_trainer,
        f"generator    {_replicas(generator)} replica(s) on {_devices(recipe, 'generator')}, "
        f"engine {name_of('generator_engines', generator.engine)}",
        *([f"rollouts     {workers} worker process(es)"] if (workers := recipe.rollout.workers) else []),
        f"weights      through {name_of('weight_stores', recipe.weights.store)}",
        f"processes    by the launcher {name_of('launchers', recipe.launcher)}{_hosts(recipe.hosts)}",
        f"algorithm    loss {name_of('losses', recipe.loss)}, "
        f"advantage {name_of('advantages', recipe.advantage)}, tasks {name_of('task_samplers', recipe.task_sampler)}",
        f"loop         {loop.steps} steps of {loop.groups_per_step} groups of {loop.group_size} episodes, {mode}",
    ]
    if recipe.needs_reference:
        own = "1 model" if recipe.needs_reference_model else "the trainer without its adapters"
        every, mix = recipe.trainer.reference_every, recipe.trainer.reference_mix
        follows = f"moved {mix:g} of the way to the policy every {every} step(s)"
        lines.append(f"reference    {own}, {follows if every else 'the policy as it is at the start'}")
    return lines


def _replicas(generator: GeneratorConfig) -> str:
    fewest, most = generator.fewest_replicas, generator.most_replicas
    return str(generator.replicas) + (f", later {fewest} to {most}," if fewest < most else "")


def _sft_plan(recipe: Recipe, config: SftConfig, of_trainer: str) -> list[str]:
    sources = [*config.data, *(f"{path} (reward at least {config.min_reward:g})" for path in config.episodes)]
    if config.oracle_tasks:
        sources.append(f"{config.oracle_tasks} tasks that {recipe.env.name} solves itself")
    length = f"{config.steps} steps" if config.steps else f"{config.epochs:g} epochs"
    return [
        f"imitates     {', '.join(sources)}",
        of_trainer,
        f"algorithm    loss {name_of('losses', recipe.loss)}, learning rate {recipe.optimizer.lr:g}",
        f"length       {length} of {config.batch_size} conversations",
    ]


def _hosts(hosts: HostsConfig) -> str:
    chosen = (("trainer", hosts.trainer), ("generator", hosts.generator), ("worker", hosts.worker))
    return "".join(f", {part} on {', '.join(names)}" for part, names in chosen if names)


def _devices(recipe: Recipe, section: Literal["trainer", "generator"]) -> str:
    config: TrainerConfig | GeneratorConfig = getattr(recipe, section)
    where: str = config.device
    if where == "auto" and name_of("launchers", recipe.launcher) in ("local", "process"):
        where = "the GPU" if pick_device(where, section) == "cuda" else "CPU"
    elif where == "auto":
        where = "the GPU if there is one, else CPU"  # of hosts that are not asked yet
    return f"{where} {','.join(map(str, config.gpus))}" if config.gpus else where
