"""How near an asynchronous loop comes to its limit: the slower of generation alone and training alone.

    python benchmarks/loop_limit.py --steps 20                                    the shipped policy in code_exec
    python benchmarks/loop_limit.py apps/grpo/qwen3_1.7b.yaml --random FOLDER --tokens 1024 --prompt-tokens 300
    python benchmarks/loop_limit.py apps/grpo/qwen3_1.7b.yaml --random FOLDER --engine FullVllm --out loop.jsonl
    python benchmarks/loop_limit.py apps/grpo/smollm2_135m.yaml apps/presets/gpus/two.yaml --eval --set loop.seed=1

One run has phases (loop_phases.py), so that engines start and compile once. Synchronous steps measure both alone, since
nothing else runs beside either: `time/generate_s` and `time/train_s`. They drain their longest completions with few
requests in flight, so a second limit is harder: the tokens of a step over the rate at which requests that are always in
flight are sampled while nothing is trained, which is the last phase. Between them the loop is asynchronous, with at
most one, then three versions of staleness. The first --skip steps of the run are left out, since they compile, and the
first --settle of each later phase; figures are medians of the others, beside them the mean of a step, which is what a
plan is compared with, and how far sampler and trainer are apart: of the worst step, on the tokens that are not stale.
The lines of JSON have the most that the trainer held of its GPU, too.

--random: a model folder as benchmarks/qwen3_folder.py writes it (with --weights they are drawn once, not by every run).
Lengths have a heavy tail and being short is paid for (tailed_engine.py); with an engine `Full...` each completion has
--tokens, and a hash of it is paid. --prompt-tokens: of each question, at least; with long ones the trainer has more to
do for each sampled token. --eval: runs of their own, each from the start, and the held-out success of their ends.
--rates: a file of `agentgym plan --measure --save-rates`, or where to keep one that is measured first; then the table
has the seconds of a step by the plan, too.
generators busy: time with a request in flight; trainer busy: time/train_s; GPUs busy: nvidia-smi, of each, where it is.

Prints a line of JSON when a phase or run ends and keeps it in --out, whose runs are not repeated; then a summary in
JSON and a Markdown table, of what ended where it was stopped or failed. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from finished_arms import ArmFailed, Figures, FinishedArms, run_or_fail, seconds_of, stoppable
from gpu_sampler import GpuSampler, UnreadGpus, has_nvidia_smi
from loop_phases import IDLE
from qwen3_folder import model_field
from tailed_engine import shortened

from agentgym.actors.gpus import gpus_of_machine
from agentgym.config import apply_overrides
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.planning.machine import this_machine
from agentgym.planning.placement import place
from agentgym.planning.rates import read_rates
from agentgym.planning.simulation import simulate
from agentgym.planning.splits import layout_of
from agentgym.run.layers import finish_recipe
from agentgym.run.places import wanted_of
from agentgym.run.recipe_files import read_recipe_files
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.yaml import read_yaml
from agentgym_envs.math.environment import INSTRUCTION

HERE = Path(__file__).parent
MEDIANS = ["time/step_s", "time/generate_s", "time/train_s", "time/publish_s"]
MEDIANS += ["rollout/success_mean", "rollout/completion_tokens_mean", "loop/staleness_mean"]
MISMATCH, PEAK = "mismatch/engine_kl", "train/gpu_peak_gib"
QUESTIONS = 4096
SYNCHRONOUS, IN_FLIGHT = "staleness 0", "always in flight"
PLAIN = ["env={name: math}", "rollout.cut_turns=score", "rollout.max_turns=1"]
TAILED, FULL = ("tailed_engine", "short"), ("trl_rate", "hashed")  # module of the engine, its reward
ENGINES = {"TailedVllm": TAILED, "TailedNative": TAILED, "FullVllm": FULL, "FullNative": FULL}
QUIET = ["loop.checkpoint_every=0", "loop.check_sync_every=0", "loop.eval_every=0", "logging.sinks=[]"]


def random_fields(folder: Path, tokens: int, engine: str, prompt_tokens: int = 0) -> list[str]:
    """What makes a recipe one of random weights, and of completions with up to so many tokens."""
    module, reward = ENGINES[engine]
    room = tokens + prompt_tokens + 256
    lengths = [f"rollout.max_turn_tokens={tokens}", f"rollout.max_episode_tokens={room}"]
    lengths += [f"generator.max_model_len={room}"]
    paid = f"rewards={{'{module}:{reward}': 1.0}}"
    return [*PLAIN, paid, *lengths, model_field(folder), f"generator.engine.name={module}:{engine}"]


def write_questions(file: Path, policy: Path, tokens: int) -> int:
    """Rows of `math` whose prompts have so many tokens in the mean, which is returned; no two questions are alike."""
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer
    tokenizer, numbers = load.from_pretrained(policy), random.Random(0)

    def count(question: str) -> int:
        messages = [{"role": "user", "content": question + INSTRUCTION}]
        return len(
            tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        )

    def question(digits: int) -> str:
        return " ".join(str(numbers.randrange(10)) for _ in range(digits))

    of_digit = (count(question(256)) - count("")) / 256
    questions = [question(max(16, round((tokens - count("")) / of_digit))) for _ in range(QUESTIONS)]
    file.write_text("".join(json.dumps({"question": text, "answer": "#### 1"}) + "\n" for text in questions))
    return round(statistics.fmean(map(count, questions[:64])))


def fields_of(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """The recipe's fields. folder: for what they name."""
    fields = list(QUIET)
    if arguments.random:
        fields += random_fields(arguments.random, arguments.tokens, arguments.engine, arguments.prompt_tokens)
    if arguments.prompt_tokens:
        questions = folder / "questions.jsonl"
        write_questions(questions, arguments.random, arguments.prompt_tokens)
        fields += [f"env={{name: math, options: {{source: jsonl, path: '{questions}'}}}}"]
    return [*fields, *arguments.set]


def planned_s(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step by the plan, for each staleness. --rates is measured where it is no file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fields = fields_of(arguments, folder)
        if not arguments.rates.is_file():
            words = [*arguments.recipes, *(word for field in fields for word in ("--set", field))]
            command = [sys.executable, "-m", "agentgym.cli.main", "plan", "--measure", "--save-rates"]
            run_or_fail([*command, str(arguments.rates), *words], folder / "plan.txt")
        rates = read_rates(str(arguments.rates))
        if arguments.prompt_tokens:  # the file may be of other lengths
            prompt = write_questions(folder / "again.jsonl", arguments.random, arguments.prompt_tokens)
            rates = replace(rates, turns=tuple(((prompt, tokens),) for tokens in lengths_of(arguments)), signal=1.0)
        mapping, where = read_recipe_files([*map(Path, arguments.recipes)]) if arguments.recipes else ({}, "")
        recipe = finish_recipe(apply_overrides(mapping, fields), where=where)[0]
        wanted = wanted_of(recipe, read_architecture(resolve_model(recipe.model.path, folder)))
        layout = layout_of(wanted, place(wanted, this_machine()))
    loops = [replace(recipe.loop, max_staleness=bound) for bound in (0, *arguments.staleness)]
    return {f"staleness {loop.max_staleness}": simulate(rates, loop, layout, steps=24).step_s for loop in loops}


def lengths_of(arguments: argparse.Namespace) -> list[int]:
    """Of completions, as the engine makes them."""
    asked = GenerateRequest(prompt_ids=(), sampling=SamplingParams(max_tokens=arguments.tokens))
    requests = [replace(asked, sampling=replace(asked.sampling, seed=seed)) for seed in range(2048)]
    tailed = arguments.engine.startswith("Tailed")
    return [shortened(one).sampling.max_tokens for one in requests] if tailed else [arguments.tokens]


def run_words(arguments: argparse.Namespace, folder: Path, fields: list[str]) -> list[str]:
    words = [*arguments.recipes, "--name", "run", "--runs-dir", str(folder)]
    return words + [word for field in fields for word in ("--set", field)]


def whole_run(arguments: argparse.Namespace, staleness: int) -> Figures:
    """One run from the start to its end, which is measured on held-out tasks, and its figures."""
    more = [f"loop.steps={arguments.steps}", f"loop.max_staleness={staleness}", "eval.at_end=true"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = run_words(arguments, folder, [*fields_of(arguments, folder), *more])
        with sampled() as sampler:
            command = [sys.executable, "-m", "agentgym.cli.main", "train", "--plain", *words]
            run_or_fail(command, folder / "log.txt")
        return figures_of(folder / "run", slice(arguments.skip, arguments.steps), sampler)


def phases_of(arguments: argparse.Namespace) -> dict[str, tuple[str, slice]]:
    """As loop_phases.py takes them, and the steps that count."""
    measured, begin = arguments.steps - arguments.skip, 0
    found: dict[str, tuple[str, slice]] = {}
    words = {f"staleness {bound}": str(bound) for bound in (0, *sorted(arguments.staleness))}
    for name, word in {**words, **({} if arguments.no_limit else {IN_FLIGHT: IDLE})}.items():
        left_out = arguments.settle if begin else arguments.skip
        found[name] = f"{word}:{left_out + measured}", slice(begin + left_out, begin + left_out + measured)
        begin += left_out + measured
    return found


def run_in_phases(arguments: argparse.Namespace, arms: FinishedArms) -> None:
    """What ended before the run failed or was stopped counts."""
    phases = phases_of(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder, sampler = Path(name), None
        try:
            if not all(map(arms.is_kept, phases)):
                words = run_words(arguments, folder, fields_of(arguments, folder))
                program = [str(HERE / "loop_phases.py"), *words, "--phases", *(word for word, _ in phases.values())]
                with sampled() as sampler:
                    run_or_fail([sys.executable, *program], folder / "log.txt")
        finally:
            for phase, (_, steps) in phases.items():
                with arms.arm(phase) as figures:
                    if not figures:
                        figures |= figures_of(folder / "run", steps, sampler)


@contextmanager
def sampled() -> Iterator[GpuSampler | None]:
    """None without GPUs, or where nvidia-smi does not answer for them."""
    gpus = range(len(gpus_of_machine()))
    sampler = None
    if gpus and has_nvidia_smi():
        try:
            sampler = GpuSampler(gpus)
        except UnreadGpus as error:
            print(f"GPUs busy is not measured: {error}", file=sys.stderr)
    try:
        yield sampler
    finally:
        if sampler is not None:
            sampler.close()


def figures_of(run: Path, steps: slice, sampler: GpuSampler | None = None) -> Figures:
    """Of a run's folder: medians of these steps, and the times of all. Raises ArmFailed where it does not have them."""
    every = seconds_of(run / "metrics.jsonl") if (run / "metrics.jsonl").is_file() else []
    if len(every) < steps.stop:
        raise ArmFailed(f"{len(every)} steps ended, and {steps.stop} are needed")
    rows, before = every[steps], every[steps.start - 1]
    config = read_yaml(run / "config.yaml")
    passed = sum(row["time/step_s"] for row in rows)
    clock = rows[-1]["time"] - before["time"]
    generated = rows[-1]["generator/tokens_total"] - before["generator/tokens_total"]
    busy = rows[-1]["generator/busy_s"] - before["generator/busy_s"]
    paused = rows[-1].get("generator/paused_s", 0.0) - before.get("generator/paused_s", 0.0)
    found: Figures = {
        "paused_s": paused / len(rows),
        "steps_s": [row["time/step_s"] for row in every[: steps.stop]],
        "trains_s": [row["time/train_s"] for row in every[: steps.stop]],
        "mean_s": passed / len(rows),
        "tokens": generated / len(rows),
        "tokens_per_s": generated / clock,
        "generators_busy": busy / passed / int(config["generator"]["replicas"]),  # type: ignore[index,call-overload]
        "trainer_busy": sum(row["time/train_s"] for row in rows) / passed,
    }
    for name in MEDIANS:
        found[name] = statistics.median(row.get(name, 0.0) for row in rows)
    for name in (MISMATCH, PEAK):
        if there := [row[name] for row in rows if name in row]:
            found[name] = max(there)
    if sampler is not None:
        found["gpus_busy"] = sampler.load(before["time"], rows[-1]["time"])
    compared = run / "comparison.json"
    if compared.is_file():
        found["final"] = json.loads(compared.read_text())["last"]
    return found


def summary(found: dict[str, Figures]) -> Figures:
    """Seconds of a step, and the limits, as far as they were measured."""
    runs = {name.removeprefix("staleness "): figures for name, figures in found.items() if name != IN_FLIGHT}
    said: Figures = {"alone_s": {}, "in_flight_s": None}
    if SYNCHRONOUS in found:
        alone = found[SYNCHRONOUS]
        said["alone_s"] = {part: alone[f"time/{part}_s"] for part in ("generate", "train")}
        if IN_FLIGHT in found:
            said["in_flight_s"] = alone["tokens"] / found[IN_FLIGHT]["tokens_per_s"]
    names = {"step_s": "time/step_s", "success": "rollout/success_mean", "staleness": "loop/staleness_mean"}
    return said | {key: {name: figures[metric] for name, figures in runs.items()} for key, metric in names.items()}


def table(found: dict[str, Figures], planned: dict[str, float]) -> None:
    said = summary(found)
    print(json.dumps(said))
    alone, in_flight = said["alone_s"], said["in_flight_s"]
    limit = max(alone.values(), default=None)
    harder = None if in_flight is None else max(in_flight, alone["train"])
    if alone:
        print(f"generation alone {alone['generate']:.2f} s a step, training alone {alone['train']:.2f} s")
    if in_flight is not None:
        print(f"generation with requests always in flight {in_flight:.2f} s for the same tokens")
    heads = [
        "staleness at most",
        "a step, s",
        "mean, s",
        "planned, s",
        "off",
        "by the slower alone",
        "by it, always in flight",
    ]
    heads += [
        "synchronous by it",
        "generators busy",
        "trainer busy",
        "GPUs busy",
        "success",
        "mean staleness",
        "sampler to trainer, mean KL",
        "held out",
    ]
    print(f"\n| {' | '.join(heads)} |\n|{'--:|' * len(heads)}")
    for name, step in said["step_s"].items():
        one = found[f"staleness {name}"]
        ratios = [step / limit if limit else None, step / harder if harder else None]
        ratios += [said["step_s"]["0"] / step if "0" in said["step_s"] else None]
        gpus = ", ".join(f"{share:.0%}" for share in one.get("gpus_busy") or [])
        final = one.get("final")
        plan_s = planned.get(f"staleness {name}")
        cells = [name, f"{step:.2f}", f"{one['mean_s']:.2f}"]
        cells += [f"{plan_s:.2f}", f"{plan_s / one['mean_s'] - 1:+.0%}"] if plan_s else ["-", "-"]
        cells += [*("-" if x is None else f"{x:.2f}" for x in ratios)]
        cells += [f"{one['generators_busy']:.0%}", f"{one['trainer_busy']:.0%}", gpus or "-"]
        cells += [f"{one['rollout/success_mean']:.3f}", f"{one['loop/staleness_mean']:.2f}"]
        cells += [f"{one[MISMATCH]:.5f}" if MISMATCH in one else "-"]
        cells += [f"{final['success']:.3f} [{final['low']:.3f}, {final['high']:.3f}]" if final else "-"]
        print(f"| {' | '.join(cells)} |")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="as of `agentgym train`; the embedded defaults otherwise")
    parser.add_argument("--steps", type=int, default=20, help="of the first phase; others have as many that count")
    parser.add_argument("--skip", type=int, default=6, help="first steps, which are left out; at least 1")
    parser.add_argument("--settle", type=int, default=3, help="first steps of each later phase, which are left out")
    parser.add_argument("--random", type=Path, metavar="FOLDER", help="random weights, lengths by --engine")
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest completion, with --random")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="of each prompt, with --random; 0: short sums")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 3], help="of the asynchronous phases, at most")
    parser.add_argument("--engine", choices=ENGINES, default="TailedVllm", help="with --random")
    parser.add_argument("--eval", action="store_true", help="runs of their own, measured at their begin and end")
    parser.add_argument("--no-limit", action="store_true", help="leave out the phase in which nothing is trained")
    parser.add_argument("--rates", type=Path, metavar="FILE", help="plan each phase by these; no file: measured first")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines: runs that it has are not repeated")
    arguments = parser.parse_args()
    if not 1 <= arguments.skip < arguments.steps:
        parser.error(f"--steps {arguments.steps}: the first {arguments.skip} are left out, give more")
    if arguments.eval and arguments.random:
        parser.error("--eval measures what was learned, and random weights learn no task: leave out one of them")
    if arguments.prompt_tokens and not arguments.random:
        parser.error("--prompt-tokens is for random weights: give --random")
    if min(arguments.staleness) < 1:
        parser.error(
            f"--staleness {min(arguments.staleness)}: the synchronous steps are measured anyway; give 1 or more"
        )
    return arguments


def main() -> int:
    arguments = parsed()
    same = (
        "recipes",
        "steps",
        "skip",
        "settle",
        "staleness",
        "random",
        "tokens",
        "prompt_tokens",
        "engine",
        "eval",
        "set",
    )
    arms = FinishedArms(arguments.out, {name: getattr(arguments, name) for name in same})
    planned: dict[str, float] = {}
    with stoppable():
        try:
            if arguments.rates:
                planned = planned_s(arguments)
            if not arguments.eval:
                run_in_phases(arguments, arms)
            for bound in (0, *arguments.staleness) if arguments.eval else ():
                with arms.arm(f"staleness {bound}") as figures:
                    if not figures:
                        figures |= whole_run(arguments, bound)
        finally:
            table(arms.found, planned)
    return int(bool(arms.failed))


if __name__ == "__main__":
    sys.exit(main())
