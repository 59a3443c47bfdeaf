"""A generator of reasoning-gym as it is, without the guards of our adapter: what `agentgym envs check` is tried on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from agentgym import Environment, EpisodeContext, Message, Reply, Split, Task, UserError, reward

SIZE = 400
TEST_ONE_IN = 4


class Raw(Environment):
    """The whole reply goes to the generator's own scorer, in this process."""

    name = "reasoning_gym_raw"
    rewards: ClassVar[Mapping[str, float]] = {"score": 1.0}

    def __init__(self, *, dataset: str) -> None:
        """dataset: the name of a generator."""
        from reasoning_gym.factory import DATASETS

        if dataset not in DATASETS:
            raise UserError(f"no dataset {dataset!r}")
        self._name = dataset
        self._made: dict[int, Any] = {}

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        seen = set()
        for index in range(SIZE):
            entry = self._dataset(seed)[index]
            question = str(entry["question"])
            if (hashlib.sha256(question.encode()).digest()[0] % TEST_ONE_IN == 0) != (split == "test"):
                continue
            if question in seen:
                continue
            seen.add(question)
            answer = entry["answer"]
            yield Task(
                task_id=f"{self._name}/{seed}/{index}",
                prompt=({"role": "user", "content": question},),
                answer={"seed": seed, "index": index, "answer": None if answer is None else str(answer)},
                split=split,
            )

    async def start(self, context: EpisodeContext) -> dict[str, Any]:
        context.info.update(success=False, score=0.0)
        answer: Any = context.task.answer
        return dict(self._dataset(answer["seed"])[answer["index"]])

    async def reply(self, context: EpisodeContext) -> Reply:
        score = self._dataset(0).score_answer(context.messages[-1]["content"], context.state)
        context.info.update(score=float(score), success=float(score) >= 1 - 1e-9)
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message] | None:
        answer: Any = task.answer
        if answer["answer"] is None:
            return None
        return iter([Message(role="assistant", content=answer["answer"])])

    @reward(inline=True)
    def score(self, episode: Any) -> float:
        return float(episode.info["score"])

    def _dataset(self, seed: int) -> Any:
        if seed not in self._made:
            import reasoning_gym

            self._made[seed] = reasoning_gym.create_dataset(self._name, size=SIZE, seed=seed)
        return self._made[seed]
