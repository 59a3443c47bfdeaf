"""Success of the finished policy, environment by environment, on held-out tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.cli.results import interval
from agentgym.cli.script import evaluate
from agentgym.commands.text import table_lines
from agentgym.evals.play import EvalResult
from agentgym.types import Json

OBEY = f"{Path(__file__).parent / 'instructions.py'}:Obey"
HEADER = ("environment", "success", "95% interval", "by difficulty", "episodes", "broken")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """environments: options by name. replicas: of the generator, on CPU; -1 is one for each two cores."""

    environments: Mapping[str, Mapping[str, Json]] = field(
        default_factory=lambda: {"code_exec": {}, "math": {"levels": [1, 2]}, "tool_use": {"levels": [1, 2]}, OBEY: {}}
    )
    tasks: int = 256
    samples: int = 2
    sandbox: str = "monty"
    replicas: int = -1
    max_turn_tokens: int = 160


def measure(policy: Path, config: MeasureConfig, say: Callable[[str], None]) -> dict[str, EvalResult]:
    """Play them one after the other; also written to measured.json beside the policy."""
    replicas = config.replicas if config.replicas > 0 else max(1, (os.cpu_count() or 2) // 2)
    results = {}
    for name, options in config.environments.items():
        short = name.rpartition(":")[2]
        say(f"measuring {short}")
        results[short] = evaluate(
            str(policy),
            {"name": name, "options": dict(options)},
            reporter=_Quiet(),
            sandbox=config.sandbox,
            rollout={"max_turn_tokens": config.max_turn_tokens, "max_episode_tokens": 1024},
            generator={"device": "cpu", "dtype": "float32", "replicas": replicas, "max_model_len": 1024},
            trainer={"device": "cpu", "seq_len": 1024},
            eval={"tasks": config.tasks, "samples_per_task": config.samples},
            logging={"evals_dir": str(policy.parent / "evals"), "sinks": []},
        )
        say("\n".join(table_lines(HEADER, [row(short, results[short])])[2:]))
    saved = {name: result.to_mapping() for name, result in results.items()}
    (policy.parent / "measured.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    return results


def row(name: str, result: EvalResult) -> tuple[str, ...]:
    by_difficulty = [f"{one.difficulty}: {one.value:.2f}" for one in result.pass_at if one.k == 1 and one.difficulty]
    return (
        name,
        result.shown,
        interval(result),
        "  ".join(by_difficulty),
        str(result.num_episodes),
        str(result.num_infra_errors + result.num_too_long + result.num_unsupported + result.num_cut),
    )


class _Quiet:
    """Reports nothing but what is worth keeping."""

    def phase(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None: ...

    def table(self, title: str, header: object, rows: object) -> None: ...

    def close(self) -> None: ...
