"""How close an asynchronous loop comes to its limit: the slower of generation alone and training alone.

    python benchmarks/loop.py --steps 20                                    the shipped policy in code_exec
    python benchmarks/loop.py apps/grpo/qwen3_1.7b.yaml --random FOLDER --tokens 1024 --prompt-tokens 300
    python benchmarks/loop.py apps/grpo/qwen3_1.7b.yaml --random FOLDER --engine FullVllm --out RUNS
    python benchmarks/loop.py apps/grpo/code_exec_tiny.yaml --staleness 1 --set loop.groups_per_step=4

One run has phases, so that engines start and compile once. Synchronous steps measure generation and training alone,
since nothing else runs beside either: `time/generate_s` and `time/train_s`. They drain their longest completions with
few requests in flight, so a second limit is harder: the tokens of a step over the rate at which requests that are
always in flight are sampled while nothing is trained, which is the last phase. Between them the loop is asynchronous,
with the bounds of --staleness. The first --skip steps of the run are left out, since they compile, and the first
--settle of each later phase; figures are medians of the others.

--random: a model folder as benchmarks/random_model.py writes it, with one of its engines. --prompt-tokens: of each
question, in the mean. generators busy: the share of time with a request in flight; trainer busy: time/train_s.
Prints JSON and a Markdown table. The run's folder, with a checkpoint of its end, is kept with --out. Needs an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from agentgym.commands import run_until_stopped
from agentgym.config import apply_overrides, to_mapping
from agentgym.loops.async_rl import StepRecord, TrainingLoop
from agentgym.recipe import Recipe
from agentgym.rollout.generator import Generator
from agentgym.run.control import StepLock
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import read_recipe_files
from agentgym.run.train import train
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import PlainReporter
from agentgym.types import Completion, GenerateRequest, Group
from agentgym_envs.math.environment import INSTRUCTION

HERE = Path(__file__).parent
MEDIANS = ("time/step_s", "time/generate_s", "time/train_s", "time/publish_s", "rollout/success_mean",
           "rollout/completion_tokens_mean", "loop/staleness_mean", "mismatch/engine_kl")  # fmt: skip
IN_FLIGHT = "always in flight"
ENGINES = {"TailedVllm": "short", "TailedNative": "short", "FullVllm": "hashed", "FullNative": "hashed"}
QUIET = ["loop.checkpoint_every=0", "loop.check_sync_every=0", "loop.eval_every=0", "logging.sinks=[]",
         "eval.at_end=false", "logging.trainer_logprobs=false"]  # fmt: skip
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """max_staleness: None is the phase in which nothing is trained. skip: first steps that do not count."""

    name: str
    max_staleness: int | None
    steps: int
    skip: int


def phases_of(arguments: argparse.Namespace) -> list[Phase]:
    counted = arguments.steps - arguments.skip
    first = Phase(name="staleness 0", max_staleness=0, steps=arguments.steps, skip=arguments.skip)
    later = [(f"staleness {bound}", bound) for bound in sorted(arguments.staleness)]
    steps, skip = arguments.settle + counted, arguments.settle
    return [first, *(Phase(name=n, max_staleness=s, steps=steps, skip=skip) for n, s in [*later, (IN_FLIGHT, None)])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmoved:
    """Generators that keep their weights."""

    generator: Generator

    @property
    def version(self) -> int:
        return self.generator.version

    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.generator.generate(request)

    async def update_weights(self, version: int) -> None:
        pass


class Idle:
    """A learner that changes nothing. Implements `Learner`."""

    async def step(self, groups: list[Group]) -> dict[str, float]:
        return {}

    async def publish(self, version: int) -> None:
        pass


def in_phases(loop: TrainingLoop, phases: Sequence[Phase]) -> None:
    """Change a loop that has not run yet; it ends with the last phase."""
    ends = [*accumulate(phase.steps for phase in phases)]
    later = dict(zip(ends, phases[1:], strict=False))
    after = loop.after_step

    async def after_step(record: StepRecord) -> None:
        await after(record)
        if record.step == ends[-1]:
            loop.stopping = True
        elif (phase := later.get(record.step)) is not None:
            await _begin(loop, phase)

    loop.after_step = after_step
    loop.config = replace(loop.config, max_staleness=phases[0].max_staleness or 0)


async def _begin(loop: TrainingLoop, phase: Phase) -> None:
    """Begins a phase, between two steps: adds its slots, or stops training."""
    if phase.max_staleness is None:
        idle: Any = Idle()
        loop.learner = StepLock(idle, loop.learner.lock) if isinstance(loop.learner, StepLock) else idle
        loop.generator = Unmoved(generator=loop.generator)
        loop.staleness_bound = sys.maxsize
        return
    await loop.change(replace(loop.config, max_staleness=phase.max_staleness))


def random_fields(folder: Path, tokens: int, engine: str, prompt_tokens: int = 0) -> list[str]:
    """What makes a recipe one of random weights, and of completions with up to so many tokens."""
    room = tokens + prompt_tokens + 256
    drawn = str(not any(folder.glob("*.safetensors"))).lower()
    return [
        "env={name: math}", "rollout.cut_turns=score", "rollout.max_turns=1",
        f"rewards={{'random_model:{ENGINES[engine]}': 1.0}}", f"rollout.max_turn_tokens={tokens}",
        f"rollout.max_episode_tokens={room}", f"generator.max_model_len={room}",
        f"model={{path: '{folder}', random_weights: {drawn}}}", f"generator.engine.name=random_model:{engine}",
    ]  # fmt: skip


def write_questions(file: Path, policy: Path, tokens: int, count: int = 4096) -> None:
    """Rows of `math` whose prompts have so many tokens in the mean; no two questions are alike."""
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer
    tokenizer, numbers = load.from_pretrained(policy), random.Random(0)

    def question(digits: int) -> str:
        return " ".join(str(numbers.randrange(10)) for _ in range(digits))

    def length(text: str) -> int:
        said = [{"role": "user", "content": text + INSTRUCTION}]
        return len(tokenizer.encode(tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)))

    of_digit = (length(question(256)) - length("")) / 256
    digits = max(16, round((tokens - length("")) / of_digit))
    rows = ({"question": question(digits), "answer": "#### 1"} for _ in range(count))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_recipe(arguments: argparse.Namespace, phases: Sequence[Phase], scratch: Path) -> tuple[Recipe, dict[str, str]]:
    most = max(phase.max_staleness or 0 for phase in phases)
    fields = [*QUIET, f"loop.max_staleness={most}", f"loop.steps={sum(phase.steps for phase in phases) + 1}"]
    if arguments.random:
        fields += random_fields(arguments.random, arguments.tokens, arguments.engine, arguments.prompt_tokens)
    if arguments.prompt_tokens:
        questions = scratch / "questions.jsonl"
        write_questions(questions, arguments.random, arguments.prompt_tokens)
        fields += [f"env={{name: math, options: {{source: jsonl, path: '{questions}'}}}}"]
    mapping, where = read_recipe_files(arguments.recipes) if arguments.recipes else ({}, "")
    return finish_recipe(apply_overrides(mapping, [*fields, *arguments.set]), where=where)


def figures_of(rows: Sequence[Figures], steps: slice, replicas: int) -> dict[str, float]:
    """rows: of all steps of the run. Medians of those of a phase that count, and its rates."""
    counted, before = rows[steps], rows[steps.start - 1]
    passed = sum(row["time/step_s"] for row in counted)

    def grown(name: str) -> float:
        return counted[-1].get(name, 0.0) - before.get(name, 0.0)

    found = {name: statistics.median(row.get(name, 0.0) for row in counted) for name in MEDIANS}
    return found | {
        "mean_s": passed / len(counted),
        "tokens": grown("generator/tokens_total") / len(counted),
        "tokens_per_s": grown("generator/tokens_total") / grown("time"),
        "generators_busy": grown("generator/busy_s") / passed / replicas,
        "trainer_busy": sum(row["time/train_s"] for row in counted) / passed,
    }


def table(found: Mapping[str, Figures]) -> str:
    """The table of the phases that ended; the first is synchronous."""
    alone = found["staleness 0"]
    lines = [f"generation alone {alone['time/generate_s']:.2f} s a step, training alone {alone['time/train_s']:.2f} s"]
    limit = max(alone["time/generate_s"], alone["time/train_s"])
    harder = None
    if IN_FLIGHT in found:
        in_flight = alone["tokens"] / found[IN_FLIGHT]["tokens_per_s"]
        harder = max(in_flight, alone["time/train_s"])
        lines.append(f"generation with requests always in flight {in_flight:.2f} s for the same tokens")
    heads = ("staleness at most", "a step, s", "mean, s", "by the slower alone", "by it, always in flight",
             "synchronous by it", "generators busy", "trainer busy", "success", "staleness", "mean KL")  # fmt: skip
    lines += [f"\n| {' | '.join(heads)} |", f"|{'--:|' * len(heads)}"]
    for name, one in found.items():
        if name != IN_FLIGHT:
            step = one["time/step_s"]
            cells = [name.removeprefix("staleness "), f"{step:.2f}", f"{one['mean_s']:.2f}", f"{step / limit:.2f}",
                     f"{step / harder:.2f}" if harder else "-", f"{alone['time/step_s'] / step:.2f}",
                     f"{one['generators_busy']:.0%}", f"{one['trainer_busy']:.0%}", f"{one[MEDIANS[4]]:.3f}",
                     f"{one['loop/staleness_mean']:.2f}", f"{one['mismatch/engine_kl']:.5f}"]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, help="as of `agentgym train`; the embedded defaults otherwise")
    parser.add_argument("--steps", type=int, default=20, help="of the first phase; others have as many that count")
    parser.add_argument("--skip", type=int, default=6, help="first steps, which are left out; at least 1")
    parser.add_argument("--settle", type=int, default=3, help="first steps of each later phase, which are left out")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 3], help="of the asynchronous phases, at most")
    parser.add_argument("--random", type=Path, metavar="FOLDER", help="random weights, lengths by --engine")
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest completion, with --random")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="of each prompt, with --random; 0: short sums")
    parser.add_argument("--engine", choices=ENGINES, default="TailedVllm", help="with --random")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    parser.add_argument("--out", type=Path, metavar="RUNS", help="where the run's folder is kept")
    arguments = parser.parse_args()
    if not 1 <= arguments.skip < arguments.steps:
        parser.error(f"--steps {arguments.steps}: the first {arguments.skip} are left out, give more")
    if arguments.prompt_tokens and not arguments.random:
        parser.error("--prompt-tokens is for random weights: give --random")
    if min(arguments.staleness) < 1:
        parser.error(f"--staleness {min(arguments.staleness)}: synchronous steps are measured anyway; give 1 or more")
    return arguments


def main() -> None:
    arguments = parsed()
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]  # of random_model.py, in the run's processes
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    phases, begin = phases_of(arguments), 0
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as scratch:
        recipe, sources = read_recipe(arguments, phases, Path(scratch))
        with RunFolder.create(str(arguments.out or scratch), "loop") as folder:
            folder.save_config(to_mapping(recipe), sources)
            job = train(recipe, folder, PlainReporter(sys.stderr), change_loop=lambda loop: in_phases(loop, phases))
            try:
                run_until_stopped(job, lambda line: print(line, file=sys.stderr))
                folder.set_status(RunStatus.DONE)
            finally:  # what ended before the run failed or was stopped counts
                path = folder.path / "metrics.jsonl"
                written = map(json.loads, path.read_text().splitlines() if path.is_file() else [])
                rows = [row for row in written if "time/step_s" in row]
                for phase in phases:
                    steps = slice(begin + phase.skip, begin + phase.steps)
                    begin += phase.steps
                    if len(rows) >= steps.stop:
                        found[phase.name] = figures_of(rows, steps, recipe.generator.replicas)
                        print(json.dumps({"phase": phase.name} | found[phase.name]))
                if found:
                    print(table(found))


if __name__ == "__main__":
    main()
