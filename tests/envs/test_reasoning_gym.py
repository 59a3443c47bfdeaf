"""reasoning-gym's generators as one environment: gold scores 1, nothing 0, and a scorer that fails stops nobody."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.killable import CallFailed
from agentgym.testing import play
from agentgym.types import Task
from agentgym_envs.reasoning_gym.environment import EXCLUDED, ReasoningGym, _Source
from agentgym_envs.reasoning_gym.generators import _checked

NAMES = ("chain_sum", "prime_factorization", "word_ladder", "countdown", "complex_arithmetic")


@pytest.fixture(scope="module")
def environment() -> Iterator[ReasoningGym]:
    made = ReasoningGym(datasets=NAMES, test_tasks=24, size=60)
    yield made
    made.close()


def test_the_plugin_gives_the_environment_and_says_what_it_needs() -> None:
    assert PluginRegistry.discover().environment("reasoning_gym") is ReasoningGym
    assert "pip install" in ReasoningGym.requirements


@pytest.mark.hostile
async def test_gold_scores_one_and_nothing_or_garbage_zero(environment: ReasoningGym) -> None:
    for task in environment.tasks("test"):
        gold = environment.solve(task)
        assert gold is not None
        episode = await play(environment, task, gold)
        assert episode.success and episode.info["score"] == 1.0
        for said in ("", str(task.answer), "<answer></answer>", "<answer> \n</answer>", "<answer>" + "9" * 10_000):
            silent = await play(environment, task, said)
            assert not silent.success and silent.info["score"] == 0.0
        wrong = await play(environment, task, "<answer>x</answer>")
        assert not wrong.success and wrong.info["answer"] == "x"


async def test_a_scorer_that_raises_is_recorded_and_scores_zero(environment: ReasoningGym) -> None:
    task = task_of(environment, "prime_factorization")
    episode = await play(environment, task, "<answer>x</answer>")
    assert "ValueError" in str(episode.info["scorer_error"]) and episode.info["score"] == 0.0


async def test_partial_credit_is_no_success(environment: ReasoningGym) -> None:
    task = task_of(environment, "countdown")
    episode = await play(environment, task, "<answer>0</answer>")
    assert 0 < float(str(episode.info["score"])) < 1 and not episode.success
    assert environment.score(episode) == episode.info["score"]


def task_of(environment: ReasoningGym, name: str) -> Task:
    return next(t for t in environment.tasks("test") if isinstance(t.answer, dict) and t.answer["dataset"] == name)


async def test_a_generator_that_makes_another_question_breaks_the_episode(environment: ReasoningGym) -> None:
    task = next(environment.tasks("train"))
    other = Task(task_id="x", prompt=({"role": "user", "content": "another question"},), answer=task.answer)
    with pytest.raises(AssertionError, match="another question than before"):
        await play(environment, other, "<answer>1</answer>")
    assert issubclass(InfraError, Exception)


def test_splits_are_apart_and_another_process_makes_the_same_tasks(environment: ReasoningGym) -> None:
    test = [task.prompt[0]["content"] for task in environment.tasks("test", 1)]
    train = [task.prompt[0]["content"] for task in islice(environment.tasks("train", 1), 60)]
    assert len({*test}) == len(test) == 24 and not {*test} & {*train}
    again = ReasoningGym(datasets=NAMES, size=60)
    assert [task.prompt[0]["content"] for task in islice(again.tasks("train", 1), 60)] == train
    again.close()


async def test_nan_and_infinity_are_no_answers(environment: ReasoningGym) -> None:
    task = task_of(environment, "complex_arithmetic")
    for said in ("nan", "inf", "-Infinity", "NaN+NaNj"):
        episode = await play(environment, task, f"<answer>{said}</answer>")
        assert episode.info["score"] == 0.0, said


class Faulty:
    """A data set with an entry of every kind: good, without an answer, empty, changing, and with a wrong gold."""

    def __init__(self) -> None:
        self._made = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self._made += 1
        return {"question": f"q{index}", "answer": [" 7 ", None, "", f"7{self._made}", "wrong"][index]}

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return 0.5 if answer == "wrong" else float(answer == str(entry["answer"]).strip())


def test_entries_that_cannot_be_solved_are_left_out() -> None:
    assert [_checked(Faulty(), index) for index in range(5)] == [["q0", "7"], ["q1", None], None, None, None]


class Limited:
    """Calls of which those for even entries run into a limit."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def wait(self, argument: dict[str, Any]) -> list[str]:
        if argument["index"] % 2 == 0:
            raise CallFailed(self._kind, "too much")
        return [f"question {argument['index']}", "7"]


def test_entries_that_cannot_be_made_within_the_limits_are_left_out_by_name(caplog: pytest.LogCaptureFixture) -> None:
    source = _Source(Limited("cpu_limit"), "slow", {"size": 100}, 0)  # type: ignore[arg-type]
    task = source.next("train", set())
    assert task is not None and int(task.task_id.rpartition("/")[2]) % 2 == 1
    assert "left out entry 0 of slow" in caplog.text
    with pytest.raises(UserError, match=r"'broken' with .* cannot be made: KeyError"):
        _Source(Limited("KeyError"), "broken", {"size": 100}, 0).next("train", set())  # type: ignore[arg-type]


def test_faulty_generators_are_left_out_unless_they_are_named() -> None:
    everything = ReasoningGym()
    chosen = everything._chosen()
    assert len(chosen) == 106 - len(EXCLUDED) and not set(chosen) & set(EXCLUDED) and all(EXCLUDED.values())
    everything.close()
    named = ReasoningGym(datasets=["graph_color"])
    task = next(named.tasks("train"))
    assert named.solve(task) is None
    named.close()


def test_settings_of_a_generator_are_passed_on() -> None:
    environment = ReasoningGym(datasets={"chain_sum": {"min_terms": 5, "max_terms": 5}}, size=10)
    for task in islice(environment.tasks("train"), 5):
        question = task.prompt[0]["content"].split("\n")[0]
        assert question.count("+") + question.count(" - ") == 4
    environment.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": ["chain_sums"]}, "no dataset 'chain_sums'. Did you mean 'chain_sum'"),
        ({"datasets": {"chain_sum": {"terms": 3}}}, "'chain_sum' with .* cannot be made: TypeError"),
        ({"datasets": "chain_sum"}, r"a list of names, as \[chain_sum\]"),
        ({"size": 0}, "size 0"),
    ],
)
def test_what_it_does_not_know_is_the_users_mistake(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        next(ReasoningGym(**options).tasks("train"))
