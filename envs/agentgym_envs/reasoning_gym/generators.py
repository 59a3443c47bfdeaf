"""What runs in the killable processes: reasoning-gym's generators and scorers, which may crash or hang."""

from __future__ import annotations

import functools
import json
import math
import random
from typing import Any, Final

from agentgym.types import Json

RIGHT: Final = 1 - 1e-9  # a score of 1
OTHER_QUESTION: Final = "the generator made another question than before"
_MAX_DATASETS: Final = 256  # kept in a process


def serve(argument: Json) -> Json:
    """Answers one of three requests.

    {"names"}: the names of all generators. {"dataset", "config", "seed", "index"}: an entry as [question,
    answer or None], or None where no agent could solve it: its answer is empty, scores less than 1, or is another one
    when the entry is made again. The same with "question" and "said": the score of an answer.
    """
    assert isinstance(argument, dict)
    if "names" in argument:
        from reasoning_gym.factory import DATASETS

        return sorted(DATASETS)
    made = _dataset(str(argument["dataset"]), json.dumps(argument["config"], sort_keys=True), _int(argument["seed"]))
    index = _int(argument["index"])
    if "said" not in argument:
        return _checked(made, index)
    entry = _entry(made, index)
    if str(entry["question"]) != argument["question"]:
        raise RuntimeError(OTHER_QUESTION)
    score = float(made.score_answer(answer=argument["said"], entry=entry))
    if not math.isfinite(score):
        raise ArithmeticError(f"the score is {score}")
    return score


@functools.lru_cache(_MAX_DATASETS)
def _dataset(name: str, config: str, seed: int) -> Any:
    import reasoning_gym

    random.seed(seed)
    return reasoning_gym.create_dataset(name, seed=seed, **json.loads(config))


def _entry(made: Any, index: int) -> Any:
    """The same whatever was made before: some generators draw from the module `random`."""
    random.seed(index)
    return made[index]


def _checked(made: Any, index: int) -> Json:
    entry, again = _entry(made, index), _entry(made, index)
    question, answer = str(entry["question"]), entry.get("answer")
    if (question, answer) != (str(again["question"]), again.get("answer")):
        return None
    if answer is None:
        return [question, None]
    gold = str(answer).strip()
    return [question, gold] if gold and float(made.score_answer(answer=gold, entry=again)) >= RIGHT else None


def _int(value: Json) -> int:
    assert isinstance(value, int)
    return value
