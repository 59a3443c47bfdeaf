"""What the arms of trainer_rate.py have in common: the rows of each step, what is measured of it, the final table."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from finished_arms import ArmFailed, Figures

from agentgym.models.architecture import Architecture
from agentgym.rl.packing import TrainBatch, pack, place, row_slices
from agentgym.types import Sample

WORDS = 1000
FOLLOWERS = random.Random(0).sample(range(WORDS), WORDS)
OURS = "ours"
TORCHTITAN = {"torchtitan": "", "torchtitan-none": "none", "torchtitan-budget": "memory_budget"}
"""What each computes again in the backward pass; empty: what is nearest to the recipe's."""
NEAREST = {"none": "none", "elementwise": "selective", "selective": "selective", "full": "full"}
Row = dict[str, float]


def document(index: int, length: int) -> Sample:
    """Nine of ten tokens are the follower of the one before; all but the first are trained."""
    numbers = random.Random(index)
    tokens = [numbers.randrange(WORDS)]
    for _ in range(length - 1):
        tokens.append(FOLLOWERS[tokens[-1]] if numbers.random() < 0.9 else numbers.randrange(WORDS))
    return Sample(
        sample_id=f"document-{index}",
        token_ids=tuple(tokens),
        loss_mask=(0.0, *(1.0,) * (length - 1)),
        logprobs=(-7.0,) * length,
        advantages=(numbers.choice((-1.0, 1.0)),) * length,
        versions=(-1, *(0,) * (length - 1)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """What the steps train: `count` documents of `length` tokens each, in rows of seq_len.

    ranks: that get different rows. repeated: every step trains the same documents.
    """

    count: int
    length: int
    seq_len: int
    rows_per_microbatch: int
    ranks: int
    repeated: bool

    @property
    def tokens(self) -> int:
        """Of a step, on all ranks, without padding."""
        return self.count * self.length

    @property
    def rows(self) -> int:
        """Of a step, on all ranks."""
        rows = place([self.length] * self.count, self.seq_len)[1]
        return rows + -rows % self.ranks

    @property
    def microbatch(self) -> int:
        """Rows of one, all equal. Raises ValueError where they can't be."""
        of_rank = self.rows // self.ranks
        size = min(self.rows_per_microbatch, of_rank)
        if of_rank % size:
            raise ValueError(
                f"a step has {of_rank} rows on each rank, which are no whole number of microbatches of {size}, as "
                "TorchTitan needs; give other --tokens, or --set trainer.rows_per_microbatch"
            )
        return size

    def samples(self, step: int) -> list[Sample]:
        first = 0 if self.repeated else step * self.count
        return [document(first + index, self.length) for index in range(self.count)]

    def microbatches(self, step: int, rank: int) -> list[TrainBatch]:
        """Of one rank, in the rows that our trainer packs where it has flex attention."""
        batch = pack(self.samples(step), seq_len=self.seq_len, rows_divisible_by=self.ranks)
        return [rows_of(batch, part) for part in row_slices(batch.num_rows, self.microbatch, rank, self.ranks)]


def rows_of(batch: TrainBatch, selected: slice) -> TrainBatch:
    """Some of the rows; the counts stay those of the whole batch."""
    columns = {field.name: getattr(batch, field.name) for field in fields(batch)}
    of_rows = {n: c[selected] for n, c in columns.items() if getattr(c, "ndim", 0) == 2}
    return replace(batch, **of_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneRun:
    """What torchtitan_alone.py runs. model: a folder with a tokenizer. fields: KEY=VALUE of TorchTitan's own config.

    rows: a file of JSON lines, one for each step.
    """

    flavor: str
    model: str
    batches: Batches
    steps: int
    lr: float
    dtype: str
    compile: bool
    recompute: str
    tensor_parallel: int
    data_parallel_shard: int
    device: str
    autotune: bool
    fields: Sequence[str]
    rows: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> AloneRun:
        given = json.loads(path.read_text())
        return cls(**given | {"batches": Batches(**given["batches"])})


def flavor_of(model: Architecture) -> str:
    """TorchTitan's name of the Qwen3 of this shape. Raises ValueError where it has none."""
    from agentgym.trainer.titan import qwen3

    shape = (model.vocab_size, model.dim, model.ffn_dim, model.num_layers, model.num_heads, model.num_kv_heads)
    wanted = (*shape, model.head_dim, model.tied)
    shapes = {}
    for name, build in qwen3.qwen3_configs.items():
        config = build(attn_backend="flex")
        layer = config.layers[0]
        if layer.feed_forward is not None:
            heads = layer.attention
            of_flavor = (config.vocab_size, config.dim, layer.feed_forward.w1.out_features, len(config.layers))
            kv_heads = heads.n_kv_heads or heads.n_heads
            shapes[name] = (*of_flavor, heads.n_heads, kv_heads, heads.head_dim, config.enable_weight_tying)
    if model.model_type != "qwen3" or wanted not in shapes.values():
        raise ValueError(f"TorchTitan has no Qwen3 of the model's shape; give a folder of {', '.join(shapes)}")
    return next(name for name, of_flavor in shapes.items() if of_flavor == wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """parameters: of the model. peak: operations a second of all GPUs."""

    tokens: int
    parameters: int
    peak: float

    def row(self, *, step_s: float, compute_s: float, peak_gib: float, loss: float, grad_norm: float) -> Row:
        """step_s: all of a step. compute_s: without making the batch and bringing it to the trainer."""
        return {
            "step_s": step_s,
            "compute_s": compute_s,
            "tokens_per_s": self.tokens / compute_s,
            "mfu": 6 * self.parameters * self.tokens / compute_s / self.peak,
            "mfu_with_transport": 6 * self.parameters * self.tokens / step_s / self.peak,
            "peak_gib": peak_gib,
            "loss": loss,
            "grad_norm": grad_norm,
        }


def medians_of(rows: Sequence[Row], skip: int) -> Row:
    """Empty where no step counts."""
    counted = rows[skip:]
    return {key: statistics.median(row[key] for row in counted) for key in counted[0]} if counted else {}


def rows_alone(path: Path, run: AloneRun, rates: Rates) -> list[Row]:
    """Of what torchtitan_alone.py wrote. Raises ArmFailed unless each step trained all tokens of its rows."""
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    seen = [0, *(row.pop("tokens_seen") for row in found)]
    expected = run.batches.rows * run.batches.seq_len
    if len(found) != run.steps or any(after - before != expected for before, after in pairwise(seen)):
        raise ArmFailed(f"{len(found)} steps saw {seen[1:]} tokens in all, not {expected} in each of {run.steps}")
    return [rates.row(**row) for row in found]


def table(found: Mapping[str, Figures]) -> None:
    """Of the arms that ended; shares are by the fastest of TorchTitan."""
    alone = [figures["medians"] for name, figures in found.items() if name in TORCHTITAN]
    best = {key: max((one[key] for one in alone), default=0.0) for key in ("tokens_per_s", "mfu_with_transport")}
    print("\n| arm | loss | computed again | tokens/s | by TorchTitan | MFU by 6N | with packing and sending "
          "| by TorchTitan | GiB a GPU | loss, first and last |")  # fmt: skip
    print("|---|---|---|--:|--:|--:|--:|--:|--:|---|")
    for name, figures in found.items():
        one, steps = figures["medians"], figures["steps"]
        shares = [f"{one[key] / value:.3f}" if value else "-" for key, value in best.items()]
        cells = [name, figures["loss"], figures["recompute"], f"{one['tokens_per_s']:,.0f}", shares[0],
                 f"{one['mfu']:.1%}", f"{one['mfu_with_transport']:.1%}", shares[1], f"{one['peak_gib']:.1f}",
                 f"{steps[0]['loss']:.3f} {steps[-1]['loss']:.3f}"]  # fmt: skip
        print(f"| {' | '.join(cells)} |")
