"""The native engine: an asyncio front, and one thread that computes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from agentgym.errors import InfraError, UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import check_request
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.model import Qwen3Model
from agentgym.generators.native.scheduler import Scheduler
from agentgym.generators.native.weights import Qwen3Weights, fuse
from agentgym.models.architecture import read_architecture
from agentgym.models.device import pick_device
from agentgym.models.safetensors import read_folder
from agentgym.types import Completion, GenerateRequest
from agentgym.weights.reading import check_kept
from agentgym.weights.store import StoredWeights

log = logging.getLogger(__name__)

Argument = TypeVar("Argument")


class NativeEngine:
    """Dense Qwen3 from a local Hugging Face folder; implements `GeneratorEngine`."""

    def __init__(self, config: GeneratorConfig, model_path: str) -> None:
        self._config = config
        self._folder = Path(model_path)
        self._architecture = read_architecture(self._folder)
        if config.max_model_len > self._architecture.max_positions:
            raise UserError(
                f"generator.max_model_len is {config.max_model_len}; the model in {model_path} has "
                f"only {self._architecture.max_positions} positions"
            )
        self._device = torch.device(pick_device(config.device, "generator"))
        self._dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None: end
        self._futures: dict[int, asyncio.Future[Completion]] = {}
        self._tickets = itertools.count()
        self._updating = asyncio.Lock()
        self._swapping: asyncio.Future[None] | None = None
        self._failure = "it is not started"
        self._busy_s = 0.0
        self._num_updates = 0
        self._scheduler: Scheduler
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> int:
        return self._scheduler.version if self._thread else 0

    async def start(self) -> None:
        """Read the weights; they are version 0 until the first update."""
        self._loop = asyncio.get_running_loop()
        self._scheduler = await asyncio.to_thread(self._load)
        self._failure = ""
        self._thread = threading.Thread(target=self._work, name="native-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `GeneratorEngine.generate`. Raises InfraError once the engine has failed or is closed."""
        check_request(request, vocab_size=self._architecture.vocab_size, max_model_len=self._config.max_model_len)
        self._refuse_after_failure()
        ticket = next(self._tickets)
        future: asyncio.Future[Completion] = self._loop.create_future()
        self._futures[ticket] = future
        self._commands.put(partial(self._scheduler.submit, ticket, request))
        try:
            return await future
        finally:
            del self._futures[ticket]
            if future.cancelled():
                self._commands.put(partial(self._scheduler.cancel, ticket))

    async def update_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See `GeneratorEngine.update_weights`. Copies while generation continues; swaps between two steps."""
        async with self._updating:
            self._refuse_after_failure()
            try:
                fused = await asyncio.to_thread(self._copied, weights)
            except Exception as error:
                self._fail(f"the update to version {version} failed: {error}")
                raise
            self._refuse_after_failure()
            done = self._swapping = self._loop.create_future()
            self._commands.put(partial(self._swap, version, fused, done))
            await done
            self._num_updates += 1

    def metrics(self) -> dict[str, float]:
        """See `GeneratorEngine.metrics`."""
        if self._thread is None:
            return {}
        scheduler, totals = self._scheduler, self._scheduler.totals
        return {
            "generator/tokens_total": totals.tokens,
            "generator/prompt_tokens_total": totals.prompt_tokens,
            "generator/computed_tokens_total": totals.computed_tokens,
            "generator/busy_s": self._busy_s,
            "generator/prefill_s": totals.prefill_s,
            "generator/decode_s": totals.decode_s,
            "generator/updates_total": self._num_updates,
            "generator/running": scheduler.num_running,
            "generator/waiting": scheduler.num_waiting,
        }

    async def close(self) -> None:
        """Stop the thread; requests still running get an InfraError."""
        if self._thread is None:
            return
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        self._fail(self._failure or "it is closed")

    def _refuse_after_failure(self) -> None:
        if self._failure:
            raise InfraError(f"the engine does not generate: {self._failure}")

    def _fail(self, why: str) -> None:
        """Refuse from now on, also the calls that are still waiting for an answer. Runs on the event loop."""
        self._failure = why
        for future in (*self._futures.values(), self._swapping):
            if future is not None and not future.done():
                future.set_exception(InfraError(f"the engine does not generate: {why}"))

    def _load(self) -> Scheduler:
        weights = self._copied(read_folder(self._folder))
        model = Qwen3Model(self._architecture, weights, max_len=self._config.max_model_len)
        cache = KVCache(
            self._architecture,
            rows=2 * self._config.max_batch,  # the second half keeps the contexts that next turns continue
            max_len=self._config.max_model_len,
            device=self._device,
            dtype=self._dtype,
        )
        # a CPU is fastest when one pass fits its caches, a GPU when it is filled
        max_padded_tokens = 1024 if self._device.type == "cpu" else 16_384
        return Scheduler(model, cache, max_batch=self._config.max_batch, max_padded_tokens=max_padded_tokens)

    def _copied(self, weights: Iterable[tuple[str, Tensor]]) -> Qwen3Weights:
        fused = fuse(self._architecture, weights, device=self._device, dtype=self._dtype)
        if isinstance(weights, StoredWeights):
            check_kept(weights.path, self._device)
        return fused

    def _work(self) -> None:
        """The thread: commands between steps, answers passed to the event loop once per step."""
        if self._device.type == "cpu":
            torch.set_num_threads(self._config.threads)
        try:
            with torch.inference_mode():
                while self._handle_commands():
                    started = time.perf_counter()
                    ended = self._scheduler.step()
                    self._busy_s += time.perf_counter() - started
                    if ended:
                        self._on_loop(self._answer, ended)
        except Exception as error:
            log.exception("the native engine's thread ended")
            self._on_loop(self._fail, f"{type(error).__name__}: {error}")

    def _handle_commands(self) -> bool:
        """Run what is queued; wait for a command when there is no work. False: end the thread."""
        while self._scheduler.idle or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _swap(self, version: int, weights: Qwen3Weights, done: asyncio.Future[None]) -> None:
        self._scheduler.set_weights(version, weights)
        self._on_loop(_settle, done)

    def _answer(self, ended: list[tuple[int, Completion]]) -> None:
        for ticket, completion in ended:
            future = self._futures.get(ticket)
            if future is not None and not future.done():
                future.set_result(completion)

    def _on_loop(self, callback: Callable[[Argument], None], argument: Argument) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            log.debug("the event loop is closed; no call waits for this answer")


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
