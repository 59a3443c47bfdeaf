"""In which order a step asks the trainer, and generators on its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from agentgym.run.behind import Behind
from view_runs import group, replace_wins

from agentgym.loops.async_rl import StepRecord
from agentgym.rollout.activity import Activity
from agentgym.run.train import TrainJob
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.credit import Credit
from agentgym.trainer.learner import TitanLearner
from agentgym.trainer.reference import ReferenceModel
from agentgym.types import Sample


@dataclass
class Both:
    """A trainer and the generators beside it, which write down what they are asked."""

    asked: list[str] = field(default_factory=list)

    async def forward(self, samples: list[Any], trained_only: bool = False) -> list[tuple[float, ...]]:
        self.asked.append("reference of trained tokens" if trained_only else "reference")
        return []

    async def follow(self, version: int) -> None:
        self.asked.append(f"follow {version}")

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


class Scorer(ReferenceModel):
    """Of no process; it writes down which episodes began, and which were forgotten."""

    def __init__(self) -> None:
        self.begun = list[str]()
        self.forgotten = list[str]()

    def begin(self, samples: Any) -> None:
        self.begun += [sample.sample_id for sample in samples]

    def forget(self, samples: Any) -> None:
        self.forgotten += [sample.sample_id for sample in samples]


class Stopped(Exception):
    """All that the test asks for is done."""


async def test_reference_and_teacher_hear_of_each_group_that_a_step_may_train(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, teacher = Scorer(), Scorer()
    credit = Credit(advantage=None, teacher=teacher)  # type: ignore[arg-type]
    learner = TitanLearner(trainer=None, reference=reference, credit=credit, activity=Activity())  # type: ignore[arg-type]
    ended = [group(1, size=2, wins=1), replace_wins(group(2, size=2))]

    async def play(*_: object) -> Any:
        return ended[0]

    async def forget(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr("agentgym.run.train.assign_advantages", lambda *_: None)
    job: Any = object.__new__(TrainJob)
    job.recipe = SimpleNamespace(loop=SimpleNamespace(group_size=2, seed=0), advantage=None)
    job.loop = SimpleNamespace(began={1: 0}, position_at=lambda *_: None)
    job.in_flight, job.player, job.learner = SimpleNamespace(play=play, forget=forget), None, learner
    job.monitor, job.store, job.behind = SimpleNamespace(add=lambda _: None), None, Behind()
    await job._rollout(ended[0].task, 1)
    learner.ended(ended[1])
    names = ["g000001-e00", "g000001-e01"]
    assert reference.begun == teacher.begun == names, "the other has no signal"
    assert reference.forgotten == []
    record = StepRecord(step=1, groups=[], skipped=ended, staleness=[], next_group=3, metrics={})
    with pytest.raises(Stopped):
        await job._after_step(record)
    assert reference.forgotten == teacher.forgotten == names


async def test_the_reference_scores_trained_tokens_alone() -> None:
    both = Both()
    learner = TitanLearner(trainer=both, reference=both, activity=Activity())  # type: ignore[arg-type]
    await learner.step([])
    await learner.publish(1)
    assert both.asked == ["reference of trained tokens", "step", "push 1", "follow 1"]


class Named:
    """A reference whose scores of a sample are the ids of its tokens, and a trainer that keeps what it gets."""

    async def forward(self, samples: Sequence[Sample], trained_only: bool = False) -> list[tuple[float, ...]]:
        return [tuple(map(float, sample.token_ids)) for sample in samples]

    async def train_step(self, samples: Sequence[Sample]) -> dict[str, float]:
        self.trained = samples
        return {}


async def test_each_sample_is_trained_with_the_reference_s_scores_of_itself() -> None:
    named = Named()
    learner = TitanLearner(trainer=named, reference=named, activity=Activity())  # type: ignore[arg-type]
    await learner.step([group(1, size=3, wins=1), group(2, size=2, wins=1)])
    assert len({sample.token_ids for sample in named.trained}) > 1
    for sample in named.trained:
        assert sample.ref_logprobs == tuple(map(float, sample.token_ids))
