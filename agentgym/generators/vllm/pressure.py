"""What vLLM says about its cache of keys and values after each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


def step_reporter(report: Callable[[float, int], None]) -> Callable[[VllmConfig, int], StatLoggerBase]:
    """For `AsyncLLM`'s stat_loggers. report: gets the share of the cache in use, and how many sequences lost theirs."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StepReporter(StatLoggerBase):  # type: ignore[misc]  # vllm has no types here
        def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
            pass

        def record(
            self,
            scheduler_stats: SchedulerStats | None,
            iteration_stats: IterationStats | None,
            *args: Any,
            **options: Any,
        ) -> None:
            if scheduler_stats is not None:
                preempted = iteration_stats.num_preempted_reqs if iteration_stats is not None else 0
                report(scheduler_stats.kv_cache_usage, preempted)

        def log_engine_initialized(self) -> None:
            pass

    return StepReporter
