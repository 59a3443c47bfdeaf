"""BFCL's single-turn requests: the first message's calls, judged by the package's own checker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmark_packages import write_bfcl_single

from agentgym.env import EpisodeContext
from agentgym.errors import UserError
from agentgym.evals.play import summarize
from agentgym.testing import play
from agentgym_envs.benchmarks.functions import call_message
from agentgym_envs.bfcl.single_turn import BfclSingleTurnEnvironment

pytestmark = pytest.mark.usefixtures("fresh_packages")

PROPERTIES = {
    "place": {"type": "string", "description": "Where."},
    "days": {"type": "integer", "description": "How many.", "default": 1},
}
WEATHER = {
    "name": "weather.get",
    "description": "The weather.",
    "parameters": {"type": "dict", "properties": PROPERTIES, "required": ["place"]},
}
PARIS = {"weather.get": {"place": ["Paris", "paris"], "days": ["", 1]}}


def made(folder: Path, category: str, *right: dict) -> tuple[BfclSingleTurnEnvironment, list]:
    package = write_bfcl_single(folder, category, WEATHER, *right)
    environment = BfclSingleTurnEnvironment(categories=[category], path=str(package))
    return environment, list(environment.tasks("test"))


@pytest.mark.parametrize(
    ("says", "success"),
    [
        (call_message(("weather_get", {"place": "paris"})), True),
        (call_message(("weather_get", {"place": "paris", "days": 1})), True),
        (call_message(("weather_get", {"place": "paris", "days": "1"})), False),  # a text is no number
        (call_message(("weather_get", {"place": "Rome"})), False),
        (call_message(("weather_get", {"place": "Paris"}), ("weather_get", {"place": "Paris"})), False),
        (call_message(("wether_get", {"place": "Paris"})), False),
        ("It rains.", False),
    ],
)
async def test_the_calls_of_the_first_message_decide(tmp_path: Path, says, success: bool) -> None:
    environment, [task] = made(tmp_path, "simple_python", PARIS)
    episode = await play(environment, task, [says, call_message(("weather_get", {"place": "paris"}))])
    assert (episode.stop, episode.error, episode.success) == ("done", None, success)
    assert sum(message["role"] == "assistant" for message in episode.messages) == 1
    assert (await play(environment, task, environment.solve(task))).success
    assert "bfcl_eval.constants.model_config" not in sys.modules


@pytest.mark.parametrize(("category", "wanted"), [("irrelevance", False), ("live_relevance", True)])
async def test_relevance_asks_whether_there_is_a_call_of_any_name(tmp_path: Path, category: str, wanted: bool) -> None:
    environment, [task] = made(tmp_path, category)
    for says, is_call in (("No.", False), (call_message(("weather_get", {})), True), (call_message(("x", {})), True)):
        assert (await play(environment, task, [says])).success is (is_call is wanted)
    assert (await play(environment, task, environment.solve(task))).success


async def test_the_leaderboards_totals_are_measured_where_all_their_categories_are_played(tmp_path: Path) -> None:
    """Live requests count alike (1 of 6), the two categories without answers too; non_live is not whole here."""
    sizes = {"live_simple": 3, "live_multiple": 1, "live_parallel": 1, "live_parallel_multiple": 1, "multiple": 1}
    for category, number in sizes.items():
        write_bfcl_single(tmp_path, category, WEATHER, *[PARIS] * number)
    for category in ("irrelevance", "live_irrelevance"):
        write_bfcl_single(tmp_path, category, WEATHER)
    categories = [*sizes, "irrelevance", "live_irrelevance"]
    environment = BfclSingleTurnEnvironment(categories=categories, path=str(tmp_path))  # type: ignore[arg-type]
    calls = call_message(("weather_get", {"place": "Paris"}))
    solved = {"live_parallel": calls, "irrelevance": "No."}
    rows = [
        [await play(environment, task, [solved.get(task.category, call_message(("weather_get", {"place": "Rome"})))])]
        for task in environment.tasks("test")
    ]
    measured = {one.name: one.value for one in summarize(rows, "policy").measures}
    assert measured == {"live": pytest.approx(1 / 6), "hallucination": pytest.approx(1 / 2)}


async def test_values_of_java_are_texts_and_dots_are_not_in_names(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, "simple_java", {"weather.get": {"place": ["Paris"], "days": ["2"]}})
    context = EpisodeContext(task=task, messages=list(task.prompt))
    [schema] = (await environment.toolbox(context)).schemas()
    function = schema["function"]
    assert function["name"] == "weather_get" and function["parameters"]["type"] == "object"
    assert function["parameters"]["properties"]["days"] == {
        "type": "string",
        "description": "How many. This is Java integer type parameter in string representation.",
        "default": 1,
    }
    assert function["description"] == "The weather. Note that the provided function is in Java 8 SDK syntax."
    assert (await play(environment, task, environment.solve(task))).success


def test_an_answer_that_the_checker_refuses_is_no_oracle(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, "simple_python", {"weather.get": {"place": [["a", "b"]]}})
    assert environment.solve(task) is not None
    environment, [task] = made(tmp_path, "simple_python", {"weather.get": {"place": []}})
    assert environment.solve(task) is None
    with pytest.raises(UserError, match=r"no category 'simple'\. Did you mean"):
        BfclSingleTurnEnvironment(categories=["simple"], path=str(tmp_path))  # type: ignore[list-item]
