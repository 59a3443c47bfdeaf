"""In which order a step asks the trainer, and generators on its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from open_runs import open_run
from view_runs import group, replace_wins

from agentgym.loops.async_rl import Position, StepRecord
from agentgym.rollout.activity import Activity
from agentgym.run.layers import finish_recipe
from agentgym.runs.folder import RunFolder
from agentgym.trainer.actor import TrainerActor
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
        self.asked.append("release" if method is TrainerActor.release_memory else "something else")


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


async def test_reference_and_teacher_hear_of_each_group_that_a_step_may_train(tmp_path: Path) -> None:
    reference, teacher = Scorer(), Scorer()
    credit = Credit(advantage=None, teacher=teacher)  # type: ignore[arg-type]
    learner = TitanLearner(trainer=None, reference=reference, credit=credit, activity=Activity())  # type: ignore[arg-type]
    ended = [group(1, size=2, wins=1), replace_wins(group(2, size=2))]

    recipe = finish_recipe({"loop": {"group_size": 2}, "logging": {"sinks": []}})[0]
    with RunFolder.create(tmp_path, "run") as folder:
        run = open_run(recipe, folder, [], learner=learner, played=ended[0])
        await run.play(ended[0].task, 1, 0)
        learner.ended(ended[1])
        names = ["g000001-e00", "g000001-e01"]
        assert reference.begun == teacher.begun == names, "the other has no signal"
        assert reference.forgotten == []
        record = StepRecord(step=1, groups=[], skipped=ended, staleness=[0], next_group=3, metrics={})
        await run.end_step(record, Position(step=1, next_group=3))
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
