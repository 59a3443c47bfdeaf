"""HumanEval and MBPP as their authors play them; `agentgym benchmark` takes them from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym.env import Benchmark
from agentgym.types import Json

_ONCE: Final[Mapping[str, Json]] = {"rollout.cut_turns": "score"}  # an answer that was cut is graded, too


def _benchmark(tasks: int, dataset: str, subset: str, licence: str, **split: Json) -> Benchmark:
    return Benchmark(
        tasks=tasks,
        source=f"hub {dataset}",
        licence=licence,
        options={"source": "hub", "dataset": dataset, "subset": subset, "grading": "official", **split},
        local={"source": "jsonl", "grading": "official", **split},
        settings=_ONCE,
    )


_MBPP: Final = "google-research-datasets/mbpp"
_TEST_IDS: Final = (11, 510)  # of MBPP's task_id: 1 to 10 are for the prompt, those after 510 for training

BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "humaneval": _benchmark(164, "openai/openai_humaneval", "", "MIT", test_share=1),
    "mbpp": _benchmark(500, _MBPP, "full", "CC BY 4.0", test_ids=_TEST_IDS),
    "mbpp_sanitized": _benchmark(257, _MBPP, "sanitized", "CC BY 4.0", test_ids=_TEST_IDS),
}
