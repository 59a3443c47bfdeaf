"""In which order a step asks the trainer, and generators on its GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentgym.rollout.activity import Activity
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.learner import TitanLearner


@dataclass
class Both:
    """A trainer and the generators beside it, which write down what they are asked."""

    asked: list[str] = field(default_factory=list)

    async def sleep(self) -> None:
        self.asked.append("sleep")

    async def train_step(self, samples: list[Any]) -> dict[str, float]:
        self.asked.append("step")
        return {}

    async def push_weights(self, version: int) -> None:
        self.asked.append(f"push {version}")

    async def call_all(self, method: Any) -> None:
        self.asked.append("release" if method is TitanTrainer.release_memory else "something else")


async def test_generators_sleep_while_the_trainer_steps_and_get_its_memory_back() -> None:
    for sleeps, asked in ((True, ["sleep", "step", "push 1", "release"]), (False, ["step", "push 1"])):
        both = Both()
        learner = TitanLearner(trainer=both, reference=None, activity=Activity(), sleeper=both if sleeps else None)  # type: ignore[arg-type]
        await learner.step([])
        await learner.publish(1)
        assert both.asked == asked
