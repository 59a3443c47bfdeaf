"""`record_metric`: values of several processes and threads become one number a step."""

from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym.actors.replies import Answer
from agentgym.errors import UserError
from agentgym.observed import OBSERVED, Observed, Reduce, State, record_metric


def test_values_are_reduced_over_processes_and_none_counts_twice() -> None:
    OBSERVED.take()
    for value in (1.0, 2.0, 6.0):
        for reduction in Reduce:
            record_metric(f"own/{reduction}", value, reduction)
    sent = pickle.loads(pickle.dumps(Answer(number=0, body=b"")))
    assert not OBSERVED.take(), "the answer took them along"
    here = Observed()
    here.add(State("own/mean", "mean", 1, 3.0, 0.0, 3.0, 3.0))
    here.add(State("own/sum", "max", 1, 3.0, 0.0, 3.0, 3.0))
    here.absorb(sent.observed)
    found = here.values()
    assert found.pop("own/std") == pytest.approx(math.sqrt(14 / 3))
    assert found == {"own/mean": 3.0, "own/sum": 3.0, "own/max": 6.0, "own/min": 1.0}
    assert not here.values()
    with ThreadPoolExecutor(8) as threads:
        [*threads.map(lambda _: [record_metric("own/count", 1, "sum") for _ in range(500)], range(8))]
    assert OBSERVED.values() == {"own/count": 4000.0}
    for value in (1e9, 1e9 + 1.0):
        record_metric("own/a", value, "std")
    assert OBSERVED.values()["own/a"] == 0.5
    record_metric("own/a", math.nan, "std")
    assert math.isnan(OBSERVED.values()["own/a"]), "not zero"


def test_mistakes_are_said_where_they_are_made() -> None:
    with pytest.raises(UserError, match=r"no reduction 'avg'\. .*Available: max, mean, min, std, sum"):
        record_metric("own/a", 1.0, "avg")
    record_metric("own/a", 1.0)
    with pytest.raises(UserError, match="'own/a' is recorded as mean and as sum"):
        record_metric("own/a", 1.0, Reduce.SUM)
    OBSERVED.take()
