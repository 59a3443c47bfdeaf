"""What the engines share that compute in this process: an asyncio front, and one thread that computes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from agentgym.errors import InfraError, UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import NotLoaded, check_request
from agentgym.models.device import pick_device
from agentgym.models.out_of_memory import out_of_memory
from agentgym.types import Completion, GenerateRequest
from agentgym.weights.adapters import Base
from agentgym.weights.reading import check_kept
from agentgym.weights.store import StoredWeights

log = logging.getLogger(__name__)

Argument = TypeVar("Argument")
Weights = TypeVar("Weights")
Settled = TypeVar("Settled", contravariant=True)


class StepScheduler(Protocol[Settled]):
    """Samples tokens step by step. Not thread-safe: one thread calls it, and everything may change between steps."""

    @property
    def version(self) -> int: ...

    @property
    def idle(self) -> bool: ...

    def submit(self, ticket: int, request: GenerateRequest) -> None:
        """The request must have passed `check_request`."""

    def cancel(self, ticket: int) -> None:
        """Forget a request; does nothing for one that has ended."""

    def set_weights(self, version: int, weights: Settled) -> None:
        """The next token comes from these weights, after a context computed by them."""

    def step(self) -> list[tuple[int, Completion]]:
        """One token for every running sequence. Returns what ended, by ticket."""

    def metrics(self) -> dict[str, float]:
        """Sums since the start, and generator/running and generator/waiting."""


class ThreadedEngine(ABC, Generic[Weights]):
    """Implements `GeneratorEngine` for a local Hugging Face folder; a subclass says how to load and what computes."""

    merges_adapters = True

    def __init__(self, config: GeneratorConfig, model_path: str, *, vocab_size: int, max_positions: int | None) -> None:
        if max_positions is not None and config.max_model_len > max_positions:
            raise UserError(
                f"generator.max_model_len is {config.max_model_len}; the model in {model_path} has "
                f"only {max_positions} positions"
            )
        self._config = config
        self._folder = Path(model_path)
        self._base = Base(self._folder)
        self._vocab_size = vocab_size
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
        self._scheduler: StepScheduler[Weights]
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _load(self) -> StepScheduler[Weights]:
        """Read the folder's weights. Called once, in a thread of its own."""

    @abstractmethod
    def _copied(self, weights: Iterable[tuple[str, Tensor]]) -> Weights:
        """New weights in the form that the scheduler takes, in memory of their own.

        Called in a thread of its own, while sequences run. Raises ValueError as `collect` does.
        """

    @property
    def version(self) -> int:
        return self._scheduler.version if self._thread else 0

    @property
    def failure(self) -> str:
        """See `KnowsItsEnd.failure`."""
        return self._failure

    async def start(self) -> None:
        """Read the weights; they are version 0 until the first update."""
        self._loop = asyncio.get_running_loop()
        self._scheduler = await asyncio.to_thread(self._load)
        self._failure = ""
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        self._thread.start()

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `GeneratorEngine.generate`. Raises InfraError once the engine has failed or is closed."""
        check_request(request, vocab_size=self._vocab_size, max_model_len=self._config.max_model_len)
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
                copied = await asyncio.to_thread(self._taken, weights)
            except (InfraError, OSError) as error:
                raise NotLoaded(f"the weights of version {version} can't be read: {error}") from error
            except Exception as error:
                self._fail(f"the update to version {version} failed: {error}")
                raise
            self._refuse_after_failure()
            done = self._swapping = self._loop.create_future()
            self._commands.put(partial(self._swap, version, copied, done))
            await done
            self._num_updates += 1

    def metrics(self) -> dict[str, float]:
        """See `GeneratorEngine.metrics`."""
        if self._thread is None:
            return {}
        own = {"generator/busy_s": self._busy_s, "generator/updates_total": float(self._num_updates)}
        return self._scheduler.metrics() | own

    async def close(self) -> None:
        """Stop the thread; requests still running get an InfraError."""
        if self._thread is None:
            return
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        self._fail(self._failure or "it is closed")

    def _taken(self, weights: Iterable[tuple[str, Tensor]]) -> Weights:
        copied = self._copied(self._base.whole(weights, self._device))
        if isinstance(weights, StoredWeights):
            check_kept(weights.path, self._device)
        return copied

    def _refuse_after_failure(self) -> None:
        if self._failure:
            raise InfraError(f"the engine does not generate: {self._failure}")

    def _fail(self, why: str) -> None:
        """Refuse from now on, also the calls that are still waiting for an answer. Runs on the event loop."""
        self._failure = why
        for future in (*self._futures.values(), self._swapping):
            if future is not None and not future.done():
                future.set_exception(InfraError(f"the engine does not generate: {why}"))

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
            log.exception("the thread of %s ended", type(self).__name__)
            lower = f"Lower generator.max_batch ({self._config.max_batch})"
            self._on_loop(self._fail, str(out_of_memory(error, lower) or f"{type(error).__name__}: {error}"))

    def _handle_commands(self) -> bool:
        """Run what is queued; wait for a command when there is no work. False: end the thread."""
        while self._scheduler.idle or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _swap(self, version: int, weights: Weights, done: asyncio.Future[None]) -> None:
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
