"""A function as an agent, in kept processes: its context, what it does wrong, and what is left of it."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from agentgym.agents import AgentFailed
from agentgym.errors import InfraError, UserError
from agentgym_plugins.agents.function import Function
from agentgym_plugins.agents.smol import Smolagents

PROGRAMS = str(Path(__file__).with_name("programs.py"))


@pytest.fixture
async def agent():
    made = []

    def make(name, **settings):
        made.append(Function(function=f"{PROGRAMS}:{name}", **settings))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def test_a_plain_function_has_a_context_that_blocks_and_its_process_is_kept(agent, context, is_gone):
    plays, one, two = agent("plain", options={"word": "no"}), context(replies=("why?",)), context()
    await plays.check()
    await plays.play(one)
    assert one.answers == ["no", "why?, so no; 3"] and one.calls == [("add", {"by": 2})]
    assert one.notes["output"] == "thinking\n"
    await plays.play(two)
    assert two.notes["pid"] == one.notes["pid"] and two.notes["output"] == "thinking\n"
    await plays.close()
    assert is_gone(one.notes["pid"])


async def test_an_async_function_may_call_several_tools_at_once(agent, context):
    one = context()
    await agent("asynchronous").play(one)
    assert one.answers == ["add {'by': 1} and add {'by': 2}"]


async def test_a_function_works_in_the_episodes_session(agent, context, session):
    one = context(session=session)
    await agent("in_session").play(one)
    assert (one.answers, session.ran) == (["LOUD ok there is no file 'gone.txt'"], ["tr a-z A-Z"])


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("raise", "KeyError"),
        ("own", "gave_up: it was too hard"),
        ("exit", "SystemExit"),
        ("die", "exit: its process exited with 5"),
        ("odd note", "RuntimeError"),
        ("no text", "answer: its first argument is a text, not NoneType"),
    ],
)
async def test_what_a_function_does_wrong_is_its_own_and_the_next_episode_is_played(agent, context, how, kind):
    failing, one = agent("fails", options={"how": how}), context()
    with pytest.raises(AgentFailed, match=kind):
        await failing.play(one)
    assert one.notes["output"] == "last words\n"
    with pytest.raises(AgentFailed, match=kind):
        await failing.play(context())


async def test_too_much_output_ends_a_function(agent, context):
    with pytest.raises(AgentFailed, match="output_limit"):
        await agent("fails", options={"how": "shout"}, output_mib=1).play(context())


async def test_a_function_that_is_cancelled_is_killed_with_what_it_started(agent, context, is_gone):
    one = context(replies=("go on",))
    playing = asyncio.create_task(agent("fails", options={"how": "hang"}).play(one))
    await one.answered.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert is_gone(one.notes["pid"]) and is_gone(one.notes["child"]) and one.notes["output"] == "last words\n"


async def test_what_a_function_leaves_running_ends_with_its_episode(agent, context, is_gone):
    one = context()
    await agent("fails", options={"how": "leave"}).play(one)
    assert is_gone(one.notes["child"])


async def test_mistakes_of_the_user_are_found_before_a_run(agent):
    with pytest.raises(UserError, match=r"does not exist.*Did you mean 'plain'"):
        await agent("plane").check()
    if importlib.util.find_spec("smolagents") is None:
        with pytest.raises(UserError, match=r"No module named 'smolagents'.*pip install 'smolagents"):
            await Smolagents().check()
    with pytest.raises(UserError, match="no interpreter '/no/python'"):
        await agent("plain", python="/no/python").check()
    with pytest.raises(UserError, match=r"give package\.module:name"):
        Function(function="plain")


async def test_a_process_that_does_not_start_is_not_the_functions_fault(agent):
    with pytest.raises(InfraError, match="did not start"):
        await agent("plain", python="/bin/false").check()
