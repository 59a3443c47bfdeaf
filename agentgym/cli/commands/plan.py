"""`agentgym plan`: how fast a recipe would be on so many GPUs, and how they are best shared."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import (
    add_machine_arguments,
    add_recipe_arguments,
    device_flags,
    finish,
    planned_machine,
    read_recipe,
)
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import model_architecture
from agentgym.planning.lengths import Turns, as_played, decode_context
from agentgym.planning.limit import limit_of
from agentgym.planning.placement import peak
from agentgym.planning.rates import Rates, constant_lengths, policy_of, read_rates
from agentgym.planning.splits import Split, best_splits
from agentgym.recipe import Recipe
from agentgym.run.placement import refuse_layout, unchecked, wanted_of
from agentgym.yaml import dump_yaml

DESCRIPTION = """
Predict tokens a second, idle shares and memory of a recipe, and the best split of the GPUs between training and
generating. The training loop itself runs in simulated time, with rates that are measured on this machine (--measure)
or given (--rates). Nothing is trained.
"""
EXAMPLES = """
agentgym plan apps/grpo/math.yaml --measure
agentgym plan apps/grpo/math.yaml --measure --save-rates math_rates.yaml
agentgym plan apps/grpo/qwen3_1.7b.yaml --rates rates.yaml --gpus 8 --gpu-memory 80
agentgym plan apps/grpo/qwen3_1.7b.yaml --rates rates.yaml --lengths 200+1000 --gpus 4 --gpu-memory 140
agentgym plan apps/grpo/qwen3_1.7b.yaml --rates rates.yaml --gpus 512 --gpu-memory 140 --loop.groups_per_step 64
"""
TAKES_OVERRIDES = True
ELSEWHERE = 2.0  # times the context at which the generator was measured, or a part of it: it is said
HEADER = (
    "trainer",
    "replicas",
    "step s",
    "sampled tokens/s",
    "generators idle",
    "of a full batch",
    "trainer idle",
    "controller busy",
    "most GiB",
    "",
)


def add_arguments(parser: Parser) -> None:
    parser.add_argument("recipe_files", nargs="*", metavar="RECIPE", help="of several, the later changes the earlier")
    add_recipe_arguments(parser)
    add_machine_arguments(parser)
    parser.add_argument("--measure", action="store_true", help="measure the rates here, on whatever device there is")
    parser.add_argument("--rates", metavar="FILE", help="rates that were measured before, or come from elsewhere")
    parser.add_argument("--save-rates", metavar="FILE", help="write the rates that were measured, for --rates")
    parser.add_argument(
        "--lengths", metavar="P+C", help="episodes of P tokens of prompt and C sampled ones, instead of the rates' own"
    )
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="steps to simulate (default: 12)")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.measure == bool(arguments.rates) or arguments.steps < 4:
        raise UserError("give either --measure or --rates FILE, and at least 4 --steps")
    if arguments.save_rates and not arguments.measure:
        raise UserError("--save-rates keeps what --measure found; it is of no use with --rates")
    machine = planned_machine(arguments)
    base, where = read_recipe(arguments.recipe or arguments.recipe_files)
    flags = {"env.name": arguments.env} | ({} if arguments.measure else device_flags(base, arguments))
    recipe, _, registry = finish(base, flags, arguments, where, shell)
    model = model_architecture(recipe.model.path)
    refuse_layout(recipe, model)
    rates = _rates(arguments, recipe, registry, shell)
    for doubt in rates.doubts():
        shell.warn(f"{arguments.rates or 'measured'}: {doubt}")
    splits = best_splits(
        wanted_of(recipe, model),
        recipe.loop,
        rates,
        machine,
        steps=arguments.steps,
        note=lambda text: None if arguments.json else shell.say(text),
    )
    best = splits[0]
    limit = limit_of(
        rates,
        recipe.loop,
        best.layout,
        best.forecast,
        steps=best.steps,
        may_be_staler=not recipe.generator.engine.sleeps,
    )
    if arguments.json:
        shell.say_json({"splits": [_as_json(split) for split in splits], "limit": asdict(limit)})
        return 0
    shell.say(
        f"\n{recipe.model.path}, {recipe.loop.groups_per_step} groups of {recipe.loop.group_size} a step, {machine}"
    )
    shell.say_table(HEADER, [_row(split) for split in splits])
    of = "that fit" if best.placement.fits else "of them, none of which fits"
    lines = [*best.placement.lines(), *unchecked(best.placement)]
    shell.say("\n".join(["", f"the fastest {of}:", *(f"  {line}" for line in lines)]))
    shell.say(f"\n{limit}.")
    if not best.given:
        shell.say(f"\nset it by --trainer.procs {best.procs} --generator.replicas {best.replicas}")
    return 0


def _rates(arguments: argparse.Namespace, recipe: Recipe, registry: PluginRegistry, shell: JobShell) -> Rates:
    """Rates for the requested lengths, as far as the recipe's limits allow."""
    lengths, limits = _lengths(arguments.lengths) if arguments.lengths else None, recipe.rollout
    asked = as_played(lengths, limits) if lengths else None  # refused before anything is measured
    measured = not arguments.rates
    rates = _measured(arguments, recipe, registry, shell, asked) if measured else read_rates(arguments.rates)
    given = lengths or rates.turns
    rates = replace(rates, turns=as_played(given, limits))
    if rates.turns != given:
        what = f"--lengths {arguments.lengths} is" if lengths else f"episodes of {arguments.rates} are"
        to = f" to {'+'.join(map(str, rates.turns[0][0]))}" if lengths else ""
        shell.warn(
            f"{what} cut by the recipe{to}: rollout.max_turn_tokens is {limits.max_turn_tokens}, "
            f"rollout.max_episode_tokens {limits.max_episode_tokens}; longer ones take more of these, of "
            "generator.max_model_len and of trainer.seq_len"
        )
    for text in [] if measured else _elsewhere(rates, recipe):
        shell.warn(f"{arguments.rates}: {text}")
    return rates


def _elsewhere(rates: Rates, recipe: Recipe) -> Iterator[str]:
    """What differs between a measurement and what is planned."""
    own, context = policy_of(recipe.model.path, recipe.trainer.lora.rank), decode_context(rates.turns)
    if rates.policy not in ("", own):
        yield (
            f"measured with {rates.policy}, and planned is {own}: a step, a sequence and a weight update take another "
            "time; measure with this recipe"
        )
    if rates.context and not 1 / ELSEWHERE <= context / rates.context <= ELSEWHERE:
        yield (
            f"decode was measured at a context of {rates.context:,} tokens, and these episodes are sampled at "
            f"{context:,} in the mean, where a sequence takes another time; measure with --lengths"
        )


def _lengths(words: str) -> tuple[Turns, ...]:
    prompt, _, completion = words.partition("+")
    if not (prompt.isdecimal() and completion.isdecimal() and int(completion)):
        raise UserError(f"--lengths is {words!r}; write tokens of prompt and sampled ones, as in 200+1000")
    return constant_lengths(int(prompt), int(completion))


def _measured(
    arguments: argparse.Namespace,
    recipe: Recipe,
    registry: PluginRegistry,
    shell: JobShell,
    lengths: tuple[Turns, ...] | None,
) -> Rates:
    reporter = choose_reporter(shell, "plan", as_json=arguments.json, plain=True)
    with tempfile.TemporaryDirectory(prefix="agentgym-plan-") as folder:
        job = shell.jobs().measure(recipe, Path(folder), reporter, registry, lengths)
        rates = run_until_stopped(job, reporter.note)
    if arguments.save_rates:
        Path(arguments.save_rates).write_text(dump_yaml(to_mapping(rates)))
    if not arguments.json:
        decode = ", ".join(f"{rate:,.0f} with {size}" for size, rate in rates.decode)
        shared = f"; {rates.cores_scaling:.0%} of that where both share the host" if rates.cores_scaling < 1 else ""
        shell.say(
            f"measured: sampling {decode} sequences a replica, at a context of {rates.context:,} tokens, prompts "
            f"{rates.prefill:,.0f}, training {rates.train:,.0f} tokens/s{shared}; {1000 * rates.join_s:.0f} ms for "
            f"requests that join a batch, {rates.publish_s + rates.update_s:.2f} s an update"
        )
    return rates


def _row(split: Split) -> tuple[str, ...]:
    forecast = split.forecast
    return (
        str(split.procs),
        str(split.replicas),
        f"{forecast.step_s:.2f}",
        f"{forecast.tokens_per_s:,.0f}",
        f"{_idle(forecast.generate_busy):.0%}",
        f"{forecast.batch_share:.0%}",
        f"{_idle(forecast.train_busy):.0%}",
        f"{forecast.controller_busy:.0%}",
        f"{_most_gib(split):.1f}",
        ", ".join(["the recipe's own"] * split.given + ["does not fit"] * (not split.placement.fits)),
    )


def _idle(busy: float) -> float:
    return max(0.0, 1.0 - busy)  # a sum of times may be longer than all of it by rounding, which would print -0%


def _most_gib(split: Split) -> float:
    """Memory of the fullest GPU, or of the host where there is no GPU."""
    procs = split.placement.procs
    return max(peak([proc for proc in procs if proc.gpu == gpu]) for gpu in {proc.gpu for proc in procs})


def _as_json(split: Split) -> dict[str, object]:
    return {
        "trainer_procs": split.procs,
        "generator_replicas": split.replicas,
        "given": split.given,
        "problems": split.placement.problems,
        **asdict(split.forecast),
        "most_gib": _most_gib(split),
    }
