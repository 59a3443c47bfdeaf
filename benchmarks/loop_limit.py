"""How near an asynchronous loop comes to its limit: the slower of generation alone and training alone.

    python benchmarks/loop_limit.py --steps 20                                    the shipped policy in code_exec
    python benchmarks/loop_limit.py apps/grpo/qwen3_1.7b.yaml apps/presets/gpus/two.yaml --random FOLDER --tokens 1024
    python benchmarks/loop_limit.py apps/grpo/qwen3_1.7b.yaml --random FOLDER --engine FullVllm --out loop.jsonl
    python benchmarks/loop_limit.py apps/grpo/smollm2_135m.yaml apps/presets/gpus/two.yaml --eval --set loop.seed=1

A synchronous run measures both alone, since nothing else runs beside either: `time/generate_s` and `time/train_s` of
its steps. It drains its longest completions with few requests in flight, so a second limit is harder: the tokens of a
step over the rate at which requests that are always in flight are sampled while nothing is trained (untrained.py).
Asynchronous runs of the same recipe have at most one, then three versions of staleness. The first --skip steps are left
out: they compile, and wait for the first groups; figures are medians of the others, beside them the mean of a step.

--random: a model folder as benchmarks/qwen3_folder.py writes it (with --weights they are drawn once, not by every run).
Lengths have a heavy tail and being short is paid for (tailed_engine.py); with an engine `Full...` each completion has
--tokens, and a hash of it is paid. --eval: the held-out success of each run's end too, of a model that can learn.
generators busy: time with a request in flight; trainer busy: time/train_s; GPUs busy: nvidia-smi, of each, where it is.

Prints a line of JSON when a run ends and keeps it in --out, whose runs are not repeated; then a summary in JSON and a
Markdown table, of the runs that ended where it was stopped or one failed. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from finished_arms import Figures, FinishedArms, run_or_fail, seconds_of, stoppable
from gpu_sampler import GpuSampler, UnreadGpus, has_nvidia_smi
from qwen3_folder import model_field

from agentgym.actors.gpus import gpus_of_machine
from agentgym.yaml import read_yaml

HERE = Path(__file__).parent
SYNCHRONOUS, IN_FLIGHT = "staleness 0", "always in flight"
PLAIN = ["env={name: math}", "rollout.cut_turns=score", "rollout.max_turns=1"]
TAILED, FULL = ("tailed_engine", "short"), ("trl_rate", "hashed")  # module of the engine, its reward
ENGINES = {"TailedVllm": TAILED, "TailedNative": TAILED, "FullVllm": FULL, "FullNative": FULL}
QUIET = ["loop.checkpoint_every=0", "loop.check_sync_every=0", "loop.eval_every=0", "logging.sinks=[]"]


def random_fields(folder: Path, tokens: int, engine: str) -> list[str]:
    """What makes a recipe one of random weights, and of completions with up to so many tokens."""
    module, reward = ENGINES[engine]
    lengths = [f"rollout.max_turn_tokens={tokens}", f"rollout.max_episode_tokens={tokens + 256}"]
    paid = f"rewards={{'{module}:{reward}': 1.0}}"
    return [*PLAIN, paid, *lengths, model_field(folder), f"generator.engine.name={module}:{engine}"]


def train(arguments: argparse.Namespace, staleness: int, *, untrained: bool = False) -> Figures:
    """One run, and its figures."""
    fields = [f"loop.steps={arguments.steps}", f"loop.max_staleness={staleness}"]
    fields += [f"eval.at_end={str(arguments.eval and not untrained).lower()}"]
    if arguments.random:
        fields += random_fields(arguments.random, arguments.tokens, arguments.engine)
    fields += [*arguments.set, *QUIET, *(["logging.save_episodes=false"] if untrained else [])]
    with tempfile.TemporaryDirectory() as folder:
        program = [str(HERE / "untrained.py")] if untrained else ["-m", "agentgym.cli.main", "train", "--plain"]
        words = [*arguments.recipes, "--name", "run", "--runs-dir", folder]
        words += [word for field in fields for word in ("--set", field)]
        with sampled() as sampler:
            run_or_fail([sys.executable, *program, *words], Path(folder) / "log.txt")
        return figures_of(Path(folder) / "run", arguments.skip, sampler)


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


def figures_of(run: Path, skip: int, sampler: GpuSampler | None = None) -> Figures:
    """Of a run's folder: medians of the steps after the first ones, and the times of all."""
    every = seconds_of(run / "metrics.jsonl")
    rows, before = every[skip:], every[skip - 1]
    config = read_yaml(run / "config.yaml")
    passed = sum(row["time/step_s"] for row in rows)
    clock = rows[-1]["time"] - before["time"]
    generated = rows[-1]["generator/tokens_total"] - before["generator/tokens_total"]
    busy = rows[-1]["generator/busy_s"] - before["generator/busy_s"]
    found: Figures = {
        "steps_s": [row["time/step_s"] for row in every],
        "trains_s": [row["time/train_s"] for row in every],
        "mean_s": passed / len(rows),
        "tokens": generated / len(rows),
        "tokens_per_s": generated / clock,
        "generators_busy": busy / passed / int(config["generator"]["replicas"]),  # type: ignore[index,call-overload]
        "trainer_busy": sum(row["time/train_s"] for row in rows) / passed,
    }
    for name in ("time/step_s", "time/generate_s", "time/train_s", "rollout/success_mean", "loop/staleness_mean"):
        found[name] = statistics.median(row[name] for row in rows)
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


def table(found: dict[str, Figures]) -> None:
    said = summary(found)
    print(json.dumps(said))
    alone, in_flight = said["alone_s"], said["in_flight_s"]
    limit = max(alone.values(), default=None)
    harder = None if in_flight is None else max(in_flight, alone["train"])
    if alone:
        print(f"generation alone {alone['generate']:.2f} s a step, training alone {alone['train']:.2f} s")
    if in_flight is not None:
        print(f"generation with requests always in flight {in_flight:.2f} s for the same tokens")
    heads = ["staleness at most", "a step, s", "mean, s", "by the slower alone", "by it, always in flight"]
    heads += [
        "synchronous by it",
        "generators busy",
        "trainer busy",
        "GPUs busy",
        "success",
        "mean staleness",
        "held out",
    ]
    print(f"\n| {' | '.join(heads)} |\n|{'--:|' * len(heads)}")
    for name, step in said["step_s"].items():
        one = found[f"staleness {name}"]
        ratios = [step / limit if limit else None, step / harder if harder else None]
        ratios += [said["step_s"]["0"] / step if "0" in said["step_s"] else None]
        gpus = ", ".join(f"{share:.0%}" for share in one.get("gpus_busy") or [])
        final = one.get("final")
        cells = [name, f"{step:.2f}", f"{one['mean_s']:.2f}", *("-" if x is None else f"{x:.2f}" for x in ratios)]
        cells += [f"{one['generators_busy']:.0%}", f"{one['trainer_busy']:.0%}", gpus or "-"]
        cells += [f"{one['rollout/success_mean']:.3f}", f"{one['loop/staleness_mean']:.2f}"]
        cells += [f"{final['success']:.3f} [{final['low']:.3f}, {final['high']:.3f}]" if final else "-"]
        print(f"| {' | '.join(cells)} |")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="as of `agentgym train`; the embedded defaults otherwise")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--skip", type=int, default=6, help="first steps, which are left out; at least 1")
    parser.add_argument("--random", type=Path, metavar="FOLDER", help="random weights, lengths by --engine")
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest completion, with --random")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 3], help="of the asynchronous runs, at most")
    parser.add_argument("--engine", choices=ENGINES, default="TailedVllm", help="with --random")
    parser.add_argument("--eval", action="store_true", help="measure held-out tasks at each run's begin and end")
    parser.add_argument("--no-limit", action="store_true", help="leave out the run in which nothing is trained")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines: runs that it has are not repeated")
    arguments = parser.parse_args()
    if not 1 <= arguments.skip < arguments.steps:
        parser.error(f"--steps {arguments.steps}: the first {arguments.skip} are left out, give more")
    if arguments.eval and arguments.random:
        parser.error("--eval measures what was learned, and random weights learn no task: leave out one of them")
    return arguments


def main() -> int:
    arguments = parsed()
    same = ("recipes", "steps", "skip", "random", "tokens", "engine", "eval", "set")
    arms = FinishedArms(arguments.out, {name: getattr(arguments, name) for name in same})
    runs = {f"staleness {staleness}": staleness for staleness in (0, *arguments.staleness)}
    names = [*runs, *([] if arguments.no_limit else [IN_FLIGHT])]
    with stoppable():
        try:
            for name in names:
                with arms.arm(name) as figures:
                    if not figures:
                        untrained = name == IN_FLIGHT
                        figures |= train(arguments, runs.get(name, max(arguments.staleness)), untrained=untrained)
        finally:
            table(arms.found)
    return int(bool(arms.failed))


if __name__ == "__main__":
    sys.exit(main())
