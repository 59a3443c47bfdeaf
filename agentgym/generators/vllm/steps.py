"""What vLLM says about each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


@dataclass(frozen=True, slots=True)
class EngineStep:
    """ended_s: by the clock of vLLM's process. prompt_tokens: computed for requests that sampled their first token in
    it. num_running: sequences that go on. kv_share: of the cache, in use. num_preempted: sequences that lost theirs.
    """

    ended_s: float
    prompt_tokens: int
    num_running: int
    kv_share: float
    num_preempted: int


Report = Callable[[EngineStep], None]


def wants_steps(vllm_config: VllmConfig, engine_index: int = 0) -> StatLoggerBase:
    """An entry of `AsyncLLM`'s stat_loggers: with one, vLLM's process reports each step."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Silent(StatLoggerBase):  # type: ignore[misc]  # vllm has no types here
        def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
            pass

        def record(self, *args: Any, **options: Any) -> None:
            pass

        def log_engine_initialized(self) -> None:
            pass

    return Silent(vllm_config, engine_index)


def report_steps(llm: AsyncLLM, report: Report) -> None:
    """Call it before the first request, with an engine that has `wants_steps`.

    vLLM's own figures of each token, and Prometheus's, took a quarter of what a token costs in this process, and
    nothing here reads them.
    """
    llm.output_processor._update_stats_from_output = _count
    llm.output_processor._update_stats_from_finished = _nothing
    llm._logger_ref[0] = _StepReporter(report)


class _StepReporter:
    """Takes the place of vLLM's manager of loggers."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def record(
        self, *, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, **others: Any
    ) -> None:
        if scheduler_stats is None or iteration_stats is None:
            return
        self._report(
            EngineStep(
                ended_s=iteration_stats.iteration_timestamp,
                prompt_tokens=iteration_stats.prompt_token_stats.computed,
                num_running=scheduler_stats.num_running_reqs,
                kv_share=scheduler_stats.kv_cache_usage,
                num_preempted=iteration_stats.num_preempted_reqs,
            )
        )


def _count(state: object, output: EngineCoreOutput, timestamp_s: float, stats: IterationStats | None) -> None:
    """Counts one sequence in one step, in place of vLLM's own counts."""
    if stats is None:
        return
    stats.iteration_timestamp = timestamp_s  # of vLLM's process, for this one's own
    if output.prefill_stats is not None:
        stats.prompt_token_stats.computed += output.prefill_stats.num_computed_tokens
    if output.events:
        stats.num_preempted_reqs += sum(event.type.name == "PREEMPTED" for event in output.events)


def _nothing(*args: object) -> None:
    pass
