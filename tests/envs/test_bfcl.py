"""BFCL's scripted users, its worlds and its check, on a small package in its layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_packages import FILES_CLASS, user, write_bfcl

from agentgym.env import EpisodeContext
from agentgym.errors import UserError
from agentgym.evals.play import summarize
from agentgym.testing import play
from agentgym_envs.benchmarks.functions import call_message
from agentgym_envs.bfcl.environment import BfclEnvironment

pytestmark = pytest.mark.usefixtures("fresh_packages")

TWO_TURNS = (
    {
        "question": [user("Make a."), user("Which files are there?")],
        "initial_config": {FILES_CLASS: {"files": {"b": 1}}},
    },
    [["touch('a')"], ["ls()"]],
)
LATER = ({"question": [user("Look."), [], user("Thanks.")], "missed_function": {"1": ["ls"]}}, [[], ["ls()"], []])
SHELVED = ({"question": [user("Find it.")], "missed_function": {"7": ["hidden"]}}, [["hidden()"]])
TOUCH_A, LS = call_message(("touch", {"name": "a"})), call_message(("ls", {}))


def made(folder: Path, *entries, category: str = "base") -> tuple[BfclEnvironment, list]:
    environment = BfclEnvironment(categories=[category], path=str(write_bfcl(folder, category, *entries)))
    return environment, sorted(environment.tasks("test"), key=lambda task: task.task_id)


async def test_gold_succeeds_and_nothing_fails(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path, TWO_TURNS, LATER, SHELVED)
    for task in tasks:
        gold = await play(environment, task, environment.solve(task))
        nothing = await play(environment, task, [""] * 5)
        assert (gold.success, gold.reward) == (True, 1.0) and (nothing.success, nothing.reward) == (False, 0.0)


async def test_the_user_goes_on_when_a_turn_has_no_calls(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, TWO_TURNS)
    episode = await play(environment, task, [TOUCH_A, "Made.", LS, "a and b"])
    assert episode.success and episode.info["turns_right"] == 2 and episode.info["gold_changes"] is True
    said = [(message["role"], message["content"]) for message in episode.messages if message["role"] != "assistant"]
    assert said == [
        ("user", "Make a."),
        ("tool", '{"made": "a"}'),
        ("user", "Which files are there?"),
        ("tool", '{"files": ["a", "b"]}'),
    ]


@pytest.mark.parametrize(
    ("says", "turns_right"),
    [
        ([call_message(("touch", {"name": "c"})), "Made."], 0),  # another state
        ([TOUCH_A, call_message(("touch", {"name": "c"})), "Made."], 0),  # more than was asked for
        ([TOUCH_A, "Made.", "a and b"], 1),  # the state is right, but nobody looked
        ([TOUCH_A, "Made.", call_message(("ls", {"long": True})), "a and b"], 1),  # a call that fails
        ([call_message(("touch", {"name": "a", "size": "0"})), "Made."], 0),  # a text is no number, as in the package
    ],
)
async def test_what_gold_does_not_do_ends_without_success(tmp_path: Path, says, turns_right: int) -> None:
    environment, [task] = made(tmp_path, TWO_TURNS)
    episode = await play(environment, task, says)
    assert episode.stop == "done" and not episode.success and episode.info["turns_right"] == turns_right


async def test_a_reply_seen_in_an_earlier_turn_counts(tmp_path: Path) -> None:
    looks = ({"question": [user("Look."), user("Again.")]}, [["ls()"], ["ls()"]])
    environment, [task] = made(tmp_path, looks)
    once = await play(environment, task, [LS, "So.", LS, "So."])
    assert once.success and once.info["gold_changes"] is False
    assert not (await play(environment, task, [LS, "So.", "As before."])).success  # a turn that asks for calls has some


async def test_a_reply_that_is_asked_for_twice_must_be_seen_twice(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, ({"question": [user("Look twice.")]}, [["ls()", "ls()"]]))
    assert (await play(environment, task, [LS, LS, "So."])).success
    assert not (await play(environment, task, [LS, "So."])).success


async def test_a_function_comes_with_its_turn(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, LATER, category="miss_func")
    context = EpisodeContext(task=task, messages=list(task.prompt))
    context.state = await environment.start(context)

    async def offered() -> list[str]:
        tools = await environment.toolbox(context)
        return [schema["function"]["name"] for schema in tools.schemas()]

    assert await offered() == ["touch", "hidden"]
    same = (await environment.toolbox(context)).schemas()
    assert (await environment.toolbox(context)).schemas() is same
    context.messages.append({"role": "assistant", "content": "I cannot."})
    reply = await environment.reply(context)
    assert reply.messages == ({"role": "user", "content": "Now?"},) and await offered() == ["touch", "ls", "hidden"]


async def test_a_function_that_is_not_offered_yet_is_carried_out_as_the_package_does(tmp_path: Path) -> None:
    early = ({"question": [user("a?"), user("b?")], "missed_function": {"1": ["touch"]}}, [["ls()"], ["touch('a')"]])
    environment, [task] = made(tmp_path, early, category="miss_func")
    assert (await play(environment, task, [LS, "None.", TOUCH_A, "Made."])).success
    assert not (await play(environment, task, [LS, TOUCH_A, "None.", TOUCH_A, "Made."])).success


async def test_the_total_weights_categories_alike_whatever_their_sizes(tmp_path: Path) -> None:
    for category, count in (("base", 2), ("miss_func", 1), ("miss_param", 1), ("long_context", 1)):
        write_bfcl(tmp_path, category, *[TWO_TURNS] * count)
    environment = BfclEnvironment(path=str(tmp_path))
    rows = []
    for task in environment.tasks("test"):
        says = environment.solve(task) if task.category == "base" else [""]
        rows.append([await play(environment, task, says)])
    result = summarize(rows, "policy")
    assert [(one.name, one.value) for one in result.by_category] == [
        ("base", 1.0), ("long_context", 0.0), ("miss_func", 0.0), ("miss_param", 0.0)
    ]  # fmt: skip
    assert [(one.name, one.value) for one in result.measures] == [("multi_turn", 0.25)]
    part = BfclEnvironment(categories=["base"], path=str(tmp_path))
    assert "measures" not in (await play(part, next(part.tasks("test")), [""])).info  # no total of a part


async def test_what_a_function_raises_is_its_reply(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, TWO_TURNS)
    episode = await play(environment, task, [TOUCH_A, TOUCH_A, "Made."])
    assert [(trace.result, trace.error) for trace in episode.tool_calls] == [
        ('{"made": "a"}', ""),
        ("Error during execution: a is there", "tool"),
    ]
    assert episode.info["turns_right"] == 1


async def test_episodes_share_no_world(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, TWO_TURNS)
    for _ in range(2):
        assert (await play(environment, task, environment.solve(task))).success


async def test_a_calculation_that_nothing_could_stop_is_refused(tmp_path: Path) -> None:
    sums = ({"question": [user("2 ** 10?")], "involved_classes": ["MathAPI"]}, [["power(base=2, exponent=10)"]])
    environment, [task] = made(tmp_path, sums)
    tower = call_message(("power", {"base": 10**39, "exponent": 10**9}), ("power", {"base": "1e999", "exponent": 2}))
    episode = await play(environment, task, [tower, call_message(("power", {"base": 2, "exponent": 10})), "1024"])
    assert [trace.error for trace in episode.tool_calls] == ["tool", "tool", ""] and episode.success


async def test_long_context_loads_the_large_world(tmp_path: Path) -> None:
    environment, [task] = made(tmp_path, TWO_TURNS, category="long_context")
    episode = await play(environment, task, environment.solve(task))
    assert episode.success and episode.tool_calls[1].result == '{"files": ["a", "b", "long"]}'


@pytest.mark.parametrize(
    ("right", "fault"),
    [
        ("__import__('os').system('touch /tmp/owned')", "it is not a call of a function by its name"),
        ("touch(name=open('/etc/passwd'))", "malformed node"),
        ("touch('a'", "was never closed"),
    ],
)
def test_right_calls_are_parsed_and_never_evaluated(tmp_path: Path, right: str, fault: str) -> None:
    with pytest.raises(UserError, match=r"cannot be read") as error:
        made(tmp_path, ({"question": [user("Go.")]}, [[right]]))
    assert fault in str(error.value)


def test_what_is_missing_is_named_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no folder 'bfcl_eval'.*pip install --no-deps bfcl-eval"):
        BfclEnvironment(path=str(tmp_path))
    package = write_bfcl(tmp_path, "base", TWO_TURNS)
    with pytest.raises(UserError, match=r"BFCL_v4_multi_turn_miss_param.json is missing"):
        BfclEnvironment(path=str(package))
    with pytest.raises(UserError, match=r"no category 'bass'. Did you mean 'base'"):
        BfclEnvironment(categories=["bass"], path=str(package))
    (package / "data/BFCL_v4_multi_turn_base.json").write_text('{"id": "x"}\n')
    with pytest.raises(UserError, match=r"line 1 of .*base.json has no question, initial_config"):
        next(BfclEnvironment(categories=["base"], path=str(tmp_path)).tasks("test"))


def test_it_is_an_evaluation_set_in_an_order_of_the_seed(tmp_path: Path) -> None:
    environment, _ = made(tmp_path, *[TWO_TURNS] * 20)
    with pytest.raises(UserError, match=r"train on `tool_use`"):
        next(environment.tasks("train"))
    orders = [[task.task_id for task in environment.tasks("test", seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])


def test_a_tasks_answer_has_the_hash_of_its_data(tmp_path: Path) -> None:
    hashes = []
    for entries in ([TWO_TURNS], [TWO_TURNS, LATER]):
        _, [task, *_] = made(tmp_path, *entries)
        hashes.append(task.answer["data"])
    assert hashes[0] != hashes[1] and len(hashes[0]) == 64
