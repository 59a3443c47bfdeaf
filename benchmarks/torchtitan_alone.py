"""TorchTitan's own trainer on the rows of trainer_rate.py, as its users start it; trainer_rate.py runs it as an arm.

    torchrun --standalone --nproc-per-node 1 benchmarks/torchtitan_alone.py RUN.json

RUN.json: see `trainer_arms.AloneRun`. Nothing of our trainer takes part: the `Trainer` of torchtitan.trainer builds its
Qwen3, its chunked cross-entropy, its AdamW, FSDP2, torch.compile, recomputation and CUDA graphs. Its configuration
brings in the rows (a data loader) and the times of each step (a metrics processor, called when a step's loss and
gradient norm are numbers, which is after its optimizer). What it can't do on a CPU is replaced there: attention is
torch's, causal over each row.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule
from trainer_arms import AloneRun, Batches

from agentgym.trainer import titan  # makes torchtitan importable without a GPU; with one it changes nothing

# isort: split
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX, ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.qwen3 import model_registry
from torchtitan.observability import structured_logger
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from agentgym.yaml import parse_yaml

RECOMPUTE = {"selective": SelectiveAC, "full": FullAC, "memory_budget": MemoryBudgetAC}


class Rows(BaseDataLoader):  # type: ignore[misc]  # torchtitan has no types
    """All batches, made before the first step, so that making them takes no time of one."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        batches: Batches
        steps: int

    def __init__(self, config: Config, *, dp_rank: int, **_: object) -> None:
        steps = 1 if config.batches.repeated else config.steps
        self._repeats = config.steps // steps
        self._made = [batch for step in range(steps) for batch in config.batches.microbatches(step, dp_rank)]

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for _ in range(self._repeats):
            for batch in self._made:
                labels = batch.labels.masked_fill(~batch.loss_mask, IGNORE_INDEX).contiguous()
                yield {"input": batch.token_ids.contiguous(), "positions": batch.positions.contiguous()}, labels

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class StepTimes(MetricsProcessor):  # type: ignore[misc]
    """Writes a line for each step instead of logging it.

    With CUDA graphs the peak is of all steps so far: torch does not count what a replayed graph takes.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        rows: str
        peak_of_all: bool

    def log(self, step: int, global_avg_loss: float, _: float, grad_norm: float, extra_metrics: dict[str, Any]) -> None:
        step_s = time.perf_counter() - self.time_last_log
        row = {
            "step_s": step_s,
            "compute_s": step_s - sum(self.data_loading_times),
            "peak_gib": self._peak_gib(),
            "loss": global_avg_loss,
            "grad_norm": grad_norm,
            "tokens_seen": extra_metrics["n_tokens_seen"],
        }
        if dist.get_rank() == 0:
            with Path(self.config.rows).open("a") as file:
                file.write(json.dumps(row) + "\n")
        self.data_loading_times.clear()
        if not self.config.peak_of_all:
            self.device_memory_monitor.reset_peak_stats()
        self.time_last_log = time.perf_counter()

    def _peak_gib(self) -> float:
        """Of the rank that took most."""
        if not torch.cuda.is_available() or self.device_memory_monitor.device.type != "cuda":
            return 0.0
        peak = torch.tensor(torch.cuda.max_memory_allocated() / 2**30, device="cuda")
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        return float(peak)


def config_of(run: AloneRun) -> Any:
    """As `qwen3_1_7b` and its like in torchtitan's registry, with the settings of the run."""
    spec, gpu = model_registry(run.flavor), run.device == "cuda"
    if not gpu:
        for layer in spec.model.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        spec = replace(spec, parallelize_fn=_summing(spec.parallelize_fn))
    optimizer = default_adamw(lr=run.lr)
    if not gpu:
        optimizer.implementation = "foreach"
    batches, rows = run.batches, Path(run.rows)
    config = Trainer.Config(
        model_spec=spec,
        hf_assets_path=run.model,
        dump_folder=str(rows.parent),
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))),
        metrics=StepTimes.Config(log_freq=1, rows=run.rows, peak_of_all=gpu),
        dataloader=Rows.Config(batches=batches, steps=run.steps),
        optimizer=optimizer,
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0),
        training=TrainingConfig(
            local_batch_size=batches.microbatch,
            global_batch_size=batches.rows,
            seq_len=batches.seq_len,
            steps=run.steps,
            mixed_precision_param=run.dtype,
            disable_cuda_graphs=not gpu,
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=run.tensor_parallel,
            data_parallel_shard_degree=run.data_parallel_shard,
            spmd_backend="partial_dtensor",  # its default fails with more than one process on torch 2.13
        ),
        activation_checkpoint=RECOMPUTE[run.recompute].Config() if run.recompute != "none" else None,
        compile=CompileConfig(enable=run.compile),
    )
    config.debug.enable_structured_logging = False
    config.comm.trace_buf_size = 0  # a log of collectives, which ours does not have
    for field in run.fields:
        _set(config, field)
    config.metrics.peak_of_all = not config.training.disable_cuda_graphs
    return config


def _set(config: Any, field: str) -> None:
    """Raises AttributeError for a field that the configuration does not have."""
    key, _, text = field.partition("=")
    *sections, name = key.split(".")
    for section in sections:
        config = getattr(config, section)
    getattr(config, name)
    setattr(config, name, parse_yaml(text, where=field))


def _summing(parallelize: Any) -> Any:
    """gloo can't average in a reduction."""

    def parallelized(model: Any, **options: Any) -> Any:
        model = parallelize(model, **options)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return parallelized


def use_cpu() -> None:
    """torchtitan asks its device for its name and memory; a CPU is asked for none."""
    titan.set_device("cpu")
    device = SimpleNamespace(
        set_device=torch.cpu.set_device,
        device_count=torch.cpu.device_count,
        synchronize=torch.cpu.synchronize,
        current_device=lambda: 0,
        get_device_name=lambda _: "CPU",
        get_device_properties=lambda _: SimpleNamespace(total_memory=2**30),
        memory_stats=lambda _: {},
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
    )
    for name, module in list(sys.modules.items()):
        if name.startswith("torchtitan.") and getattr(module, "device_module", None) is torch.cpu:
            module.device_module = device  # type: ignore[attr-defined]


def main() -> None:
    run = AloneRun.read(Path(sys.argv[1]))
    init_logger()
    if run.device == "cpu":
        use_cpu()
    if not run.autotune:
        titan.disable_flex_autotune()
    if not hasattr(dist, "set_timeout"):  # torch 2.13 has it under a private name
        dist.set_timeout = _set_pg_timeout  # type: ignore[attr-defined]
    config = config_of(run)
    structured_logger.init_structured_logger(source="training", output_dir=config.dump_folder, enable=False)
    trainer = config.build()
    try:
        trainer.train()
    finally:
        trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
