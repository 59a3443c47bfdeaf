"""vLLM as the generator: its asynchronous engine behind our protocol."""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from agentgym.errors import InfraError, UserError
from agentgym.families.registry import expert_layers
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import NotLoaded, check_request
from agentgym.generators.slots import AdaptiveSlots
from agentgym.generators.vllm.causes import last_error, with_holders
from agentgym.generators.vllm.join_cost import JoinCost
from agentgym.generators.vllm.routed import routes_of
from agentgym.generators.vllm.settings import (
    engine_arguments,
    model_size,
    not_loaded,
    sampling_params,
    set_environment,
    wants_gpu,
)
from agentgym.generators.vllm.steps import EngineStep, report_steps, wants_steps
from agentgym.models.safetensors import WeightFile, write_tensors
from agentgym.types import Completion, FinishReason, GenerateRequest, VersionSpan
from agentgym.weights.adapters import checked
from agentgym.weights.store import OtherBase, StoredWeights

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")
_OWN_OUTPUT = Path("/proc/self/fd/2")  # the log of this process and of vLLM's
_POLL_S = 0.02
_SHUTDOWN_S = 10.0  # for vLLM's process to end by itself; then it is killed


class VllmEngine:
    """A model in a local Hugging Face folder; implements `GeneratorEngine`.

    vLLM computes in a process of its own, which ends with this one.
    """

    merges_adapters = True

    def __init__(self, config: GeneratorConfig, model_path: str, *, join_together: bool = True, **options: Any) -> None:
        """join_together: requests wait for each other, as `AdaptiveSlots` says. options: settings of
        `AsyncEngineArgs`, by name.
        """
        self._config = config
        self._options = options
        self._folder = Path(model_path)
        self._vocab_size, self._shapes = model_size(self._folder)
        self._expert_layers = expert_layers(self._folder) if config.routes else ()
        set_environment(config)
        self._gpu = wants_gpu(config)
        self._version = 0
        self._failure = "it is not started"
        self._request_ids = itertools.count()
        self._running: set[asyncio.Future[Completion]] = set()
        self._slots = AdaptiveSlots(config.max_batch)  # what has none waits here, so that vLLM's cache holds what runs
        self._join_together = join_together
        self._join_cost = JoinCost()
        self._updating = asyncio.Lock()
        self._asleep = False
        self._num_wakes = 0
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._num_updates = 0
        self._num_preempted = 0
        self._paused_s = 0.0
        self._busy_s = 0.0
        self._busy_since = 0.0
        self._llm: AsyncLLM

    @property
    def version(self) -> int:
        return self._version

    @property
    def vllm_config(self) -> VllmConfig:
        """vLLM's own finished settings, once it has started."""
        return self._llm.vllm_config

    @property
    def failure(self) -> str:
        """See `KnowsItsEnd.failure`. vLLM's engine can end while nobody asks it anything."""
        if not self._failure and self._llm.errored:
            self._failure = f"vLLM's engine failed: {_cause(self._llm.dead_error)}"
        return self._failure

    async def start(self) -> None:
        """Start vLLM's process; takes seconds on a CPU and up to minutes on a GPU, when it compiles."""
        try:
            from vllm.v1.engine.async_llm import AsyncLLM
        except (ImportError, OSError) as error:
            raise not_loaded(error) from error
        # in this thread: the engine's sockets belong to the running event loop
        arguments = engine_arguments(self._config, self._folder, gpu=self._gpu, **self._options)
        try:
            self._llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[wants_steps])
            report_steps(self._llm, self._saw)
        except ValueError as error:
            raise UserError(f"vLLM refuses its settings, {self._options} among them: {error}") from error
        except RuntimeError as error:  # of another process, whose own words are in the log
            cause = await asyncio.to_thread(_cause, error)
            raise InfraError(f"vLLM did not start: {cause}") from error
        await self._llm.update_weight_version(str(self._version))
        self._failure = ""

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `GeneratorEngine.generate`. Raises InfraError once the engine has failed or is closed."""
        check_request(request, vocab_size=self._vocab_size, max_model_len=self._config.max_model_len)
        self._refuse_after_failure()
        request_id = f"agentgym-{next(self._request_ids)}"
        task = asyncio.ensure_future(self._complete(request, request_id))
        with self._counted(task):
            try:
                completion = await task
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if caller is None or not caller.cancelling():  # it was `_fail`
                    self._refuse_after_failure()
                raise
        self._num_tokens += len(completion.completion_ids)
        self._num_prompt_tokens += len(request.prompt_ids)
        return completion

    async def update_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See `GeneratorEngine.update_weights`. vLLM's process maps the store's file, or one that is written here."""
        async with self._updating:
            self._refuse_after_failure()
            try:
                try:
                    file = await asyncio.to_thread(self._file, weights)  # generation goes on meanwhile
                except (InfraError, OSError) as error:
                    raise NotLoaded(f"the weights of version {version} can't be read: {error}") from error
                await self._swap(version, str(file.path))
            except NotLoaded:
                raise
            except BaseException as error:  # a cancelled update leaves the engine between two versions, too
                await self._fail(f"the update to version {version} failed: {error!r}")
                raise
            self._num_updates += 1

    async def read_base(self, weights: StoredWeights) -> None:
        """See `ReadsBase.read_base`. The worker reads beside its steps; what fails there is said by an update."""
        await self._llm.collective_rpc("agentgym_read_base", args=(str(weights.path),))

    async def sleep(self) -> None:
        """See `Sleeps.sleep`. vLLM keeps its process, its graphs and the model's buffers."""
        async with self._updating:
            self._refuse_after_failure()
            try:
                async with asyncio.timeout(self._config.update_timeout_s):
                    await self._llm.sleep(level=2, mode="keep")
            except BaseException as error:
                await self._fail(f"it could not give its memory away: {error!r}")
                raise
            self._asleep = True

    def metrics(self) -> dict[str, float]:
        """See `GeneratorEngine.metrics`."""
        since = time.perf_counter() - self._busy_since if self._running else 0.0
        running = self._slots.taken_now
        return {
            "generator/tokens_total": self._num_tokens,
            "generator/prompt_tokens_total": self._num_prompt_tokens,
            "generator/busy_s": self._busy_s + since,
            "generator/updates_total": self._num_updates,
            "generator/paused_s": self._paused_s,
            "generator/running": running,
            "generator/waiting": len(self._running) - running,
            "generator/slots": self._slots.limit,
            "generator/kv_share": self._slots.kv_share,
            "generator/preempted_total": self._num_preempted,
            "generator/cuts_total": self._slots.num_cuts,
            "generator/join_s_mean": self._slots.join_s,
        }

    async def close(self) -> None:
        """End vLLM's process; requests that still run get an InfraError."""
        if not hasattr(self, "_llm"):
            return
        await self._fail(self._failure or "it is closed")
        if self._llm.output_handler is not None:  # it would log the end of vLLM's process as a failure
            self._llm.output_handler.cancel()
        await asyncio.to_thread(self._llm.shutdown, _SHUTDOWN_S)
        del self._llm  # its destructor must not run while the interpreter ends

    def _saw(self, step: EngineStep) -> None:
        self._num_preempted += step.num_preempted
        self._slots.saw(kv_share=step.kv_share, num_preempted=step.num_preempted)
        if self._join_together and self._join_cost.saw(step):
            self._slots.join_s = self._join_cost.seconds

    async def _complete(self, request: GenerateRequest, request_id: str) -> Completion:
        submitted_s = time.monotonic()
        async with self._slots.held(continues=request.continues):
            return await self._run(request, request_id, queued_s=time.monotonic() - submitted_s)

    async def _run(self, request: GenerateRequest, request_id: str, *, queued_s: float) -> Completion:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        prompt = {
            "prompt_token_ids": list(request.prompt_ids),
            "cache_salt": str(self._num_wakes),  # an update empties the cache; a prefix from before a sleep is lost
        }
        final: CompletionOutput | None = None
        timer = asyncio.ensure_future(self._end_in_time(request_id, request.time_s))
        try:
            params = sampling_params(request.sampling, routes_from=request.routes_from)
            async for result in self._llm.generate(prompt, params, request_id):
                final = result.outputs[0]
        except (EngineDeadError, EngineGenerateError) as error:
            self._failure = self._failure or f"vLLM's engine failed: {_cause(error)}"
            raise InfraError(f"the engine does not generate: {self._failure}") from error
        finally:
            timer.cancel()
        if final is not None and final.finish_reason == "abort" and timer.done() and final.token_ids:
            return self._completed(request, final, FinishReason.TIME, queued_s)
        if final is None or final.finish_reason not in ("stop", "length"):
            reason = final.finish_reason if final else "nothing"
            raise InfraError(
                f"the engine does not generate: {self._failure or f'vLLM ended a request with {reason!r}'}"
            )
        return self._completed(request, final, FinishReason(final.finish_reason), queued_s)

    def _completed(
        self, request: GenerateRequest, output: CompletionOutput, reason: FinishReason, queued_s: float
    ) -> Completion:
        completion = _completion(output, reason, queued_s)
        if not self._config.routes:
            return completion
        place = {"start": request.routes_from, "prompt_len": len(request.prompt_ids)}
        routes = routes_of(output.routed_experts, versions=completion.versions, layers=self._expert_layers, **place)
        return replace(completion, routes=routes)

    async def _end_in_time(self, request_id: str, time_s: float) -> None:
        """Abort a request time_s from now; vLLM then gives what it has."""
        await asyncio.sleep(min(time_s, threading.TIMEOUT_MAX))
        await self._llm.abort(request_id)

    def _file(self, weights: Iterable[tuple[str, Tensor]]) -> StoredWeights:
        """Checked, and in memory that vLLM's process can map."""
        if isinstance(weights, StoredWeights):
            checked(self._shapes, weights.entries())
            return weights
        found = checked(self._shapes, weights)
        place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="agentgym-update-", dir=place) as folder:
            path = Path(folder) / "weights"
            with path.open("w+b") as file:
                write_tensors(file, found.items())
            return WeightFile(path)

    async def _swap(self, version: int, path: str) -> None:
        """Load the weights while no step runs; running requests then continue, their context computed again."""
        timeout_s = self._config.update_timeout_s
        async with asyncio.timeout(timeout_s):
            if self._asleep:
                await self._wake(version, path)
                return
            await self._prepare(path)
            begin_s = time.perf_counter()
            # not `pause_generation`, which sleeps for 20 ms after this
            await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
            await self._llm.collective_rpc("agentgym_load_weights", timeout=timeout_s, args=(path,))
            dropped, _ = await asyncio.gather(
                self._llm.reset_prefix_cache(reset_running_requests=True), self._llm.update_weight_version(str(version))
            )
            if not dropped:
                raise InfraError("vLLM did not drop the keys and values of the old weights")
            self._version = version
            await self._llm.resume_generation()
        self._paused_s += time.perf_counter() - begin_s

    async def _prepare(self, path: str) -> None:
        """What of an update need not wait for a pause. Raises NotLoaded where the weights can't be read."""
        await self._llm.collective_rpc("agentgym_prepare", args=(path,))
        states: list[str | None] = [None]
        while None in states:
            await asyncio.sleep(_POLL_S)
            states = await self._llm.collective_rpc("agentgym_prepared")
        if why := next(filter(None, states), ""):
            kind, _, sentence = why.partition(": ")
            raise OtherBase(sentence) if kind == OtherBase.__name__ else NotLoaded(f"the weights can't be read: {why}")

    async def _wake(self, version: int, path: str) -> None:
        """Load the weights into memory of their own; with that of keys and values, which comes last, vLLM goes on."""
        await self._llm.wake_up(["weights"])
        timeout_s = self._config.update_timeout_s
        await self._llm.collective_rpc("agentgym_load_weights", timeout=timeout_s, args=(path,), kwargs={"lost": True})
        await self._llm.update_weight_version(str(version))
        self._version = version
        if not await self._llm.wake_up(["kv_cache"]):
            raise InfraError("vLLM did not wake up: its GPU's memory is taken by others")
        self._asleep = False
        self._num_wakes += 1

    def _refuse_after_failure(self) -> None:
        if self._failure:
            raise InfraError(f"the engine does not generate: {self._failure}")

    async def _fail(self, why: str) -> None:
        """Refuses all requests from now on; running ones end with an InfraError. The engine stays paused."""
        self._failure = why
        # not vLLM's abort, which misses a request that vLLM has not accepted yet; a cancelled one aborts itself
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    @contextmanager
    def _counted(self, task: asyncio.Future[Completion]) -> Iterator[None]:
        if not self._running:
            self._busy_since = time.perf_counter()
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)
            if not self._running:
                self._busy_s += time.perf_counter() - self._busy_since


def _cause(error: BaseException) -> str:
    return with_holders(last_error(_OWN_OUTPUT) or str(error))


def _completion(output: CompletionOutput, reason: FinishReason, queued_s: float) -> Completion:
    if list(output.logprobs.token_ids) != list(output.token_ids):
        raise InfraError("vLLM gave log-probabilities of other tokens than it sampled")
    return Completion(
        completion_ids=tuple(output.token_ids),
        logprobs=tuple(output.logprobs.logprobs),
        versions=tuple(
            VersionSpan(version=int(span.version), start=span.start, end=span.end) for span in output.weight_versions
        ),
        finish_reason=reason,
        queued_s=queued_s,
    )
