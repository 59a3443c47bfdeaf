"""The trainer: packs samples, accumulates gradients, steps, and hands out its weights. CPU or GPU, 1..N processes.

Axes: R rows, L tokens of a row, N trained tokens.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentgym.errors import InfraError
from agentgym.families.registry import read_architecture
from agentgym.plugin_errors import blamed
from agentgym.rl.losses import TrainedTokens
from agentgym.rl.losses.aggregation import token_weights
from agentgym.rl.packing import TrainBatch, of_trained, unpack
from agentgym.trainer import titan
from agentgym.trainer.accumulation import Accumulation
from agentgym.trainer.build import build
from agentgym.trainer.checkpoint import check_origin, write_manifest
from agentgym.trainer.choice import choose_engine
from agentgym.trainer.export import exporter, full_hf_weights, load_hf, mix_weights, name_export, write_gathered
from agentgym.trainer.faults import Faults
from agentgym.trainer.forward import Forward
from agentgym.trainer.host_memory import HostMemory
from agentgym.trainer.lora import StoredAdapters, without_adapters
from agentgym.trainer.machine import describe_machine
from agentgym.trainer.microbatches import Microbatch
from agentgym.trainer.minibatches import combined, minibatches, old_logprobs
from agentgym.trainer.mismatch import MismatchGuard
from agentgym.trainer.own_tensors import Batch, OwnLoss, add_gradient
from agentgym.trainer.parallel import join
from agentgym.trainer.parts import PutParts, own_parts, publish_parts
from agentgym.trainer.progress import Totals
from agentgym.trainer.rows import Rows
from agentgym.trainer.saving import Export, Saver
from agentgym.trainer.setup import TrainerSetup
from agentgym.trainer.state import load_checkpoint, set_rate
from agentgym.trainer.transformers.unknown_family import prove_unknown
from agentgym.types import Sample
from agentgym.weights.adapters import Base

GIVEN = ("sampler_logprobs", "ref_logprobs", "advantages", "versions", "sample_index")
"""Columns of a batch that its losses always get."""


class TrainingEngine:
    """One process's part of the trainer; every method is called on all ranks with the same arguments.

    step: optimizer steps so far. version: of the newest published weights, set by the publisher; the metric
    train/mismatch_fresh_max covers the tokens that this version sampled.
    """

    def __init__(self, setup: TrainerSetup) -> None:
        """Raises UserError for a model or a config that can't be trained."""
        torch.set_num_threads(setup.trainer.threads)
        self.step, self._version = 0, 0
        trainer, self._architecture = choose_engine(setup.trainer, Path(setup.model_path), setup.quantize)
        setup = replace(setup, trainer=trainer)
        self._setup, self._trainer, self._loss = setup, trainer, setup.loss
        self._kept: Callable[[], list[float]] = list  # what `trained_logprobs` gives
        self._base = Base(Path(setup.base_path or setup.model_path))
        self._ranks = join(setup.trainer)
        try:
            self._built = build(self._architecture, setup, self._ranks)
            self._model = self._built.model
            self._forward = Forward(self._built, self._ranks, setup.trainer.dtype)
            self._rows = Rows(self._architecture, self._trainer, self._ranks, flex=self._built.flex)
            self._accumulation = Accumulation(self._model, self._ranks, setup.trainer)
            self._adapters = StoredAdapters(self._model, self._built.adapter, setup, self._ranks.device)
            load_hf(self._model, self._built.adapter, setup.model_path, sharded=self._ranks.sharded)
        except BaseException:
            self._ranks.leave()
            raise
        self._mismatch = MismatchGuard(setup.trainer.mismatch, setup.loss, self._ranks)
        self._rows.prove(self.logprobs)
        prove_unknown(self._architecture, trainer, self._ranks, setup.model_path, self.logprobs, self.hf_weights())
        self._quantized_base = self._adapters.base_digest() if setup.quantize != "none" else ""
        describe = partial(
            write_manifest,
            architecture=read_architecture(Path(setup.model_path)),
            engine=trainer.engine,
            lora=trainer.lora,
            quantize=setup.quantize,
            base=self._quantized_base,
        )
        self.saver = Saver(self._built, self._ranks, self._mismatch.save, describe)

    @property
    def version(self) -> int:
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        """Declares that the weights are those of this version, until a step changes them."""
        self._version = version
        self._mismatch.published()

    def hold_moved(self, version: int) -> None:
        """The weights are those of this version and of steps since."""
        self._version = version
        self._mismatch.moved()

    def forward_backward(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Add the gradient of the samples' loss to the current one; no step. Returns the loss's metrics.

        Raises UserError for a loss that can't be trained on, with the weights as they are; see trainer/faults.py.
        """
        begin_s = time.perf_counter()
        batch = self._rows.pack(samples)
        if not batch.num_trained_tokens:
            raise ValueError(f"none of the {len(samples)} samples has a token to train; skip such a batch")
        if self._loss.needs_reference and not batch.has_reference:
            raise ValueError(f"{self._loss} needs ref_logprobs and the samples have none; run a reference model")
        if self._built.routers is not None and batch.routes.shape[2] != self._built.routers.width:
            raise ValueError(
                f"trainer.router_replay is rollout, and the samples have routes of width {batch.routes.shape[2]} where "
                f"the model's are {self._built.routers.width}: set generator.routes, or trainer.router_replay to off"
            )
        weights_RL = token_weights(batch, self._loss.aggregation, self._loss.horizon)
        packed_s = time.perf_counter()
        totals, faults = Totals(self._loss.metrics, self._ranks.device), Faults(self._loss)
        kept_RL = torch.zeros(batch.labels.shape, device=self._ranks.device)
        columns_RL = {"weights": weights_RL} | {name: getattr(batch, name) for name in GIVEN}
        if batch.has_old:
            columns_RL["old_logprobs"] = batch.old_logprobs
        if self._built.critic is not None and batch.has_returns:
            columns_RL["returns"] = batch.returns
        try:
            for part in self._accumulation.over(self._rows.parts(batch, batch.loss_mask, columns_RL)):
                logprobs_N = self._accumulate(part, totals, faults)
                if self._setup.keep_logprobs:
                    kept_RL.view(-1)[part.batch_entries] = logprobs_N
            if self._setup.keep_logprobs:
                self._kept = partial(of_trained, batch, self._ranks.reduce(kept_RL))
            faults.report(self._ranks, self._setup.folder, self.step + 1)
        except Exception:
            self._drop_update()
            raise
        metrics = totals.finish(self._ranks, batch.num_trained_tokens)
        end_s = time.perf_counter()
        return metrics | {
            "train/trained_tokens": float(batch.num_trained_tokens),
            "train/tokens": float(batch.num_tokens),
            "train/padding_share": 1.0 - batch.num_tokens / batch.token_ids.numel(),
            "train/time/train_pack_s": packed_s - begin_s,
            "train/time/train_compute_s": end_s - packed_s,
        }

    def train_step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One step: every rank takes its share of the rows, and of the other samples it needs the masks alone.

        It is one update, or trainer.minibatches * trainer.epochs of them, before which the old log-probabilities of all
        samples are computed if the loss reads them. The loss is normalised over the samples of an update, so
        microbatches and ranks change nothing but rounding.
        Raises ValueError for a batch without a trained token, RuntimeError when the gradient is not finite.
        """
        self._ranks.forget_peak()
        if self._trainer.updates_per_step == 1:
            return self._update(samples) | self._end_step()
        begin_s = time.perf_counter()
        if self._loss.needs_old or self._setup.keep_logprobs or self._trainer.mismatch.changes_losses:
            old = self.logprobs(samples, trained_only=True)
            samples = [replace(sample, old_logprobs=values) for sample, values in zip(samples, old, strict=True)]
        old_s = time.perf_counter() - begin_s
        parts = minibatches(samples, self._trainer, self.step)
        metrics = combined([self._update(part) for part in parts], self._loss.metrics)
        metrics["train/time/train_compute_s"] += old_s
        if self._setup.keep_logprobs:
            self._kept = partial(old_logprobs, samples)
        return metrics | self._end_step()

    def own_step(self, inputs: Batch, targets: Batch, loss: OwnLoss) -> dict[str, float]:
        """One step by tensors of the user's own, and a loss over logits; see own_tensors.py."""
        self._ranks.forget_peak()
        try:
            metrics = add_gradient(self._built, self._ranks, self._accumulation, self._trainer, inputs, targets, loss)
        except Exception:
            self._drop_update()
            raise
        return metrics | self._step_weights() | self._end_step()

    def set_rate(self, rate: float) -> None:
        """Another optimizer.lr for the next steps; the schedule stays."""
        set_rate(self._built, rate)

    def optimizer_step(self) -> dict[str, float]:
        """Clip the gradient, step, clear it. Raises RuntimeError when it is not finite, and leaves the weights."""
        return self._step_weights() | self._end_step()

    def _update(self, samples: Sequence[Sample]) -> dict[str, float]:
        metrics = self.forward_backward(samples)
        begin_s = time.perf_counter()
        metrics |= self._step_weights()
        metrics["train/time/train_compute_s"] += time.perf_counter() - begin_s
        return metrics

    def _step_weights(self) -> dict[str, float]:
        try:
            self._mismatch.judge(self.step + 1)
        except InfraError:
            self._drop_update()
            raise
        parameters, limit = list(self._model.parameters()), self._setup.optimizer.max_grad_norm
        norm = float(titan.clip_grad_norm_(parameters, limit, foreach=True, ep_enabled=self._ranks.dims.ep_enabled))
        if not math.isfinite(norm):
            self._drop_update()
            raise RuntimeError(
                f"the gradient norm of step {self.step + 1} is {norm}; the weights were left as they are. "
                "Lower optimizer.lr, or look at the rewards and log-probabilities of this batch."
            )
        self._built.optimizers.step()
        self._built.optimizers.zero_grad()
        self._mismatch.stepped()
        return {"train/grad_norm": norm}

    def _end_step(self) -> dict[str, float]:
        rate = self._built.schedule.schedulers[0].get_last_lr()[0]
        self._built.schedule.step()
        self.step += 1
        of_critic = {} if self._built.critic is None else self._built.critic.fit()
        return {"train/lr": float(rate)} | self._ranks.memory_peak() | of_critic | self._mismatch.end_step()

    def _drop_update(self) -> None:
        self.clear_gradients()
        if self._built.critic is not None:
            self._built.critic.forget()

    def clear_gradients(self) -> None:
        """Clears the gradients, as if nothing had come since the last step."""
        self._built.optimizers.zero_grad()
        self._accumulation.drop()
        self._mismatch.forget()

    def trained_logprobs(self) -> array[float]:
        """Log-probabilities of the tokens that the last step trained, in the order of its samples, before it changed
        the weights.

        Raises ValueError without `setup.keep_logprobs`.
        """
        if not self._setup.keep_logprobs:
            raise ValueError("set keep_logprobs: they were not kept")
        return array("f", self._kept())

    @torch.no_grad()
    def follow(self, weights: Iterable[tuple[str, Tensor]], share: float) -> None:
        """Move to own + share * (given - own); a share of 1.0 takes the given. Collective.

        weights: all of them, under Hugging Face names, or the adapters that a trainer published.
        """
        mix_weights(self._model, self._built.adapter, self._base.whole(weights, self._ranks.device), share)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank whose answers are read."""
        return self._ranks.rank == 0

    @torch.no_grad()
    def values(self, samples: Sequence[Sample], read: bool = True) -> list[tuple[float, ...]]:
        """What the critic expects before each trained token, [L] each; 0.0 elsewhere. Raises ValueError without one.

        read: whether this rank returns them; the others take part and return nothing.
        """
        critic = self._built.critic
        if critic is None:
            raise ValueError("this trainer has no critic; build it with TrainerSetup(critic=True)")
        batch = self._rows.pack(samples)
        return self._gathered(batch, batch.loss_mask, lambda _: critic.values(self._forward.hidden), read)

    @torch.no_grad()
    def logprobs(
        self, samples: Sequence[Sample], trained_only: bool = False, read: bool = True
    ) -> list[tuple[float, ...]]:
        """Log-probability of every token given those before it, [L] each; 0.0 at index 0, and at what is not scored.

        trained_only: no others reach the head, which is much of the work. read: as in `values`.
        """
        batch = self._rows.pack(samples)
        scored_RL = batch.loss_mask if trained_only else batch.follows()
        return self._gathered(batch, scored_RL, lambda logprobs_N: logprobs_N, read)

    def base_logprobs(
        self, samples: Sequence[Sample], trained_only: bool = False, read: bool = True
    ) -> list[tuple[float, ...]]:
        """The log-probabilities of the model without its adapters. Raises ValueError where there are none."""
        if not self._trainer.lora.rank:
            raise ValueError("trainer.lora is off: the model has no base beside what is trained")
        with without_adapters(self._model):
            return self.logprobs(samples, trained_only, read)

    def _gathered(
        self, batch: TrainBatch, wanted_RL: Tensor, of_logprobs: Callable[[Tensor], Tensor], read: bool
    ) -> list[tuple[float, ...]]:
        """What `of_logprobs` gives for the wanted entries of each part after its forward pass, by sample, [L] each."""
        values_RL = torch.zeros(wanted_RL.shape, device=self._ranks.device)
        for part in self._rows.parts(batch, wanted_RL, {}):
            logprobs_N, _ = self._forward(part)
            values_RL.view(-1)[part.batch_entries] = of_logprobs(logprobs_N)
        self._accumulation.give_up()
        values_RL = self._ranks.reduce(values_RL)
        return unpack(batch, values_RL) if read else []

    def hf_weights(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
        """Full weights under Hugging Face names, one by one; a tied lm_head is left out.

        Collective: every rank must go through all of them. Tensors may be the live weights: copy what must
        outlast the next step.
        """
        return full_hf_weights(self._model, self._built.adapter, dtype, self._trainer)

    def publish(
        self, version: int, write: Callable[[Iterator[tuple[str, Tensor]]], None], parts: PutParts | None = None
    ) -> None:
        """Pass the weights to `write` as the generators want them; from now on they are the published version.

        With LoRA they are the adapters alone: `weights/adapters.py` makes the same merged weights of them.
        parts: takes what each rank holds, in place of `write`, where ranks share the weights and none are adapters.
        """
        dtype = getattr(torch, self._setup.publish_dtype)
        if parts is not None and self._ranks.sharded and not self._trainer.lora.rank:
            publish_parts(own_parts(self._model, self._built.adapter, dtype), self._ranks, parts)
        else:
            weights = self._adapters.version() if self._trainer.lora.rank else self.hf_weights(dtype)
            write_gathered(self._ranks, write, weights)
        self.version = version

    def save(self, folder: str) -> None:
        """Write weights, optimizer, schedule, step and random state. Whole or not at all."""
        self.saver.save(folder, self.step)

    def begin_save(self, folder: str, hf_folder: str) -> None:
        """Copy what `save` and `export_hf` write to the host's memory; a thread writes it until `saver.finish`."""
        self.saver.begin(folder, self.step, partial(self._copied_export, hf_folder))

    def load(self, folder: str) -> None:
        """Continue from a checkpoint; the next steps are bitwise equal to those after it was saved.

        Raises UserError for one that can't be read, or belongs to another engine or quantized base.
        """
        check_origin(folder, self._trainer.engine, self._quantized_base)
        self.step = load_checkpoint(folder, self._built, self._ranks)
        self._mismatch.load(Path(folder))

    def export_hf(self, folder: str) -> None:
        """Write a Hugging Face folder: safetensors, config.json, tokenizer files and the run's chat template.

        With LoRA its weights are merged; the adapters alone are in its folder `adapter`, as PEFT reads them.
        """
        write_gathered(self._ranks, exporter(folder, self._model, self._built.adapter, self._setup), self.hf_weights())

    def _copied_export(self, folder: str, memory: HostMemory) -> Export:
        """The export as it is now."""
        kept: list[tuple[str, Tensor]] = []
        export = exporter(folder, self._model, self._built.adapter, self._setup, memory.copy, named=False)
        write_gathered(
            self._ranks, lambda weights: kept.extend((n, memory.copy(w)) for n, w in weights), self.hf_weights()
        )
        if self._ranks.rank:
            return Export()
        return Export(write=partial(export, iter(kept)), finish=partial(name_export, folder))

    def describe_machine(self) -> dict[str, str]:
        """What the numbers of a step depend on besides its data and settings."""
        return describe_machine(self._ranks.device, self._trainer.procs)

    def close(self) -> None:
        """Leave the process group; the engine can't be used afterwards."""
        self._ranks.leave()

    def own_samples(self, lengths: Sequence[int], *, step: bool) -> list[int]:
        """Which samples of these lengths this rank reads: in one pass over all of them, or in all passes of a step."""
        passes: list[Sequence[int]] = [range(len(lengths))]
        if step and self._trainer.updates_per_step > 1:
            passes += minibatches(passes[0], self._trainer, self.step)
        return sorted({one[i] for one in passes for i in self._rows.read_here([lengths[index] for index in one])})

    def _accumulate(self, part: Microbatch, totals: Totals, faults: Faults) -> Tensor:
        """Returns the log-probabilities of the trained tokens, [N], in row order."""
        logprobs_N, entropy_N = self._forward(part)
        given = {name: part.columns[name] for name in GIVEN}
        has_old = "old_logprobs" in part.columns
        old_N = part.columns["old_logprobs"] if has_old else logprobs_N.detach()
        tokens = TrainedTokens(logprobs=logprobs_N, entropy=entropy_N, old_logprobs=old_N, **given)
        treated = self._mismatch.treat(tokens, self.version, has_old=has_old)
        with blamed("losses", self._loss):
            result = self._loss(treated.given, self.version)
        loss = (treated.weigh(faults.checked(treated.given, result)) * part.columns["weights"]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._built.critic is not None and "returns" in part.columns:
            self._built.critic.keep(self._forward.hidden, part.columns["returns"])
        totals.add(loss.detach(), treated.true_metrics(result, self.version))
        return logprobs_N.detach()
