"""What vLLM says about its cache of keys and values after each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

Report = Callable[[float, int], None]
"""Gets the share of the cache in use, and how many sequences lost theirs."""


def wants_steps(vllm_config: VllmConfig, engine_index: int = 0) -> StatLoggerBase:
    """For `AsyncLLM`'s stat_loggers: with one of them, vLLM's process says how each step went."""
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
    llm.output_processor._update_stats_from_output = _count_preempted
    llm.output_processor._update_stats_from_finished = _nothing
    llm._logger_ref[0] = _StepReporter(report)


class _StepReporter:
    """In the place of vLLM's manager of loggers."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def record(
        self, *, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, **others: Any
    ) -> None:
        if scheduler_stats is not None:
            preempted = iteration_stats.num_preempted_reqs if iteration_stats is not None else 0
            self._report(scheduler_stats.kv_cache_usage, preempted)


def _count_preempted(
    state: object, output: EngineCoreOutput, timestamp_s: float | None, stats: IterationStats | None
) -> None:
    if output.events and stats is not None:
        stats.num_preempted_reqs += sum(event.type.name == "PREEMPTED" for event in output.events)


def _nothing(*args: object) -> None:
    pass
