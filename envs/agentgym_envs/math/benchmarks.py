"""GSM8K and MATH as their authors play them; `agentgym benchmark` takes them from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym.env import Benchmark


def _benchmark(tasks: int, path: str, subset: str, form: str) -> Benchmark:
    return Benchmark(
        tasks=tasks,
        source=f"hub {path}",
        licence="MIT",
        options={"source": "hub", "path": path, "subset": subset, "answer_format": form},
        local={"source": "jsonl", "answer_format": form, "test_share": 1},
        settings={"rollout.cut_turns": "score"},  # an answer that was cut is judged, too
    )


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "gsm8k": _benchmark(1319, "openai/gsm8k", "main", "hashes"),
    "math": _benchmark(5000, "DigitalLearningGmbH/MATH-lighteval", "", "boxed"),
    "math500": _benchmark(500, "HuggingFaceH4/MATH-500", "", "boxed"),
}
