"""A program as an agent: what it is given, what it leaves, and that nothing of it outlives its episode."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agentgym.agents import AgentFailed
from agentgym.errors import UserError
from agentgym_plugins.agents.command import Command
from agentgym_plugins.agents.function import Function


def python(code: str, *arguments: str, **settings) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", code, *arguments), **settings)


TELLS = """
import json, os, sys
task = json.load(open(os.environ["AGENTGYM_TASK"]))
said = [message["content"] for message in task["messages"]]
names = [tool["function"]["name"] for tool in task["tools"]]
print(json.dumps([said, names, sys.argv[1:]]))
print(os.environ["OPENAI_BASE_URL"], os.environ["ANTHROPIC_BASE_URL"], os.environ["OPENAI_API_KEY"],
      os.environ["ANTHROPIC_API_KEY"], os.environ.get("SECRET_OF_OURS"), file=sys.stderr)
open("left.txt", "w").write("left behind")
"""


async def test_a_program_is_given_the_task_and_the_endpoint_and_nothing_of_ours(context, monkeypatch):
    monkeypatch.setenv("SECRET_OF_OURS", "secret")
    one = context()
    await python(TELLS, "{url} {model} {seed} {key} {other}", "{prompt}").play(one)
    assert one.answers == ['[["say {yes}"], ["add"], ["http://127.0.0.1:9 policy 5 the-key {other}", "say {yes}"]]']
    assert one.notes["errors"] == "http://127.0.0.1:9/v1 http://127.0.0.1:9 the-key the-key None\n"
    assert (one.notes["exit"], one.notes["files"]) == (0, {"left.txt": "left behind"})


async def test_where_the_environment_answers_back_it_is_started_again_with_the_conversation(context):
    one = context(replies=("no", "nor that"))
    await python(TELLS).play(one)
    assert one.answers[2].startswith('[["say {yes}", "[[') and '"no", ' in one.answers[2]


async def test_a_relative_path_of_a_program_is_one_from_here(context, tmp_path, monkeypatch):
    (tmp_path / "say.sh").write_text("#!/bin/sh\necho yes\n")
    (tmp_path / "say.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    one = context()
    await Command(argv=("./say.sh",)).play(one)
    assert one.answers == ["yes"]


async def test_its_answer_may_be_a_file(context):
    one = context()
    await python("print('words'); open('out.txt', 'w').write('  yes\\n')", answer_file="out.txt").play(one)
    assert (one.answers, one.notes["output"]) == (["yes"], "words\n")
    with pytest.raises(AgentFailed, match=r"no_answer: .*'out.txt'"):
        await python("pass", answer_file="out.txt").play(context())
    secret = "import os; os.symlink('/etc/passwd', 'out.txt')"
    with pytest.raises(AgentFailed, match="no_answer"):
        await python(secret, answer_file="out.txt").play(context())


@pytest.mark.parametrize(
    ("code", "settings", "kind"),
    [
        ("import sys; print('why', file=sys.stderr); sys.exit(3)", {}, "exit: it exited with 3; it wrote: why"),
        ("import os; os.abort()", {}, "exit: it was killed by SIGABRT"),
        ("import time; print('so far', flush=True); time.sleep(99)", {"time_s": 0.2}, "time_limit"),
        ("while True: print('x' * 9999)", {"output_mib": 1}, "output_limit"),
        pytest.param("#" + 200_000 * "x", {}, "arguments: its longest argument has 200001 bytes", id="too long"),
        ("# \0", {}, "arguments: .* null character"),
        ("x = bytearray(1 << 30)", {"memory_mib": 256}, "(?s)exit: it exited with 1; it wrote: .*MemoryError"),
    ],
)
async def test_what_a_program_does_wrong_is_its_own(context, code, settings, kind):
    one = context()
    with pytest.raises(AgentFailed, match=kind):
        await python(code, **settings).play(one)
    assert one.answers == [] and {"output", "errors", "exit"} <= set(one.notes)


LEAVES_CHILDREN = """
import os, subprocess, sys, time
code = "import os, time; os.setsid(); open('{0}', 'w').write(str(os.getpid())); time.sleep(99)"
subprocess.Popen([sys.executable, "-S", "-c", code.format(sys.argv[1])])
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""


async def test_what_a_program_started_ends_with_it_though_it_left_its_group(context, tmp_path, is_gone):
    await python(LEAVES_CHILDREN, str(tmp_path / "pid")).play(context())
    assert is_gone(int((tmp_path / "pid").read_text()))


async def test_a_program_that_is_cancelled_is_killed_with_what_it_started(context, tmp_path, is_gone):
    one, place = context(), tmp_path / "pid"
    code = f"print('so far', flush=True)\n{LEAVES_CHILDREN}\nopen(sys.argv[1] + '.ready', 'w')\ntime.sleep(99)"
    playing = asyncio.create_task(python(code, str(place)).play(one))
    while not Path(f"{place}.ready").exists():
        await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert is_gone(int(place.read_text())) and one.notes["output"] == "so far\n" and one.notes["exit"] == -9


async def test_no_more_programs_run_than_may(context):
    command = python("pass", at_once=1)
    async with command.slot():
        waiting = asyncio.create_task(command.slot().__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


@pytest.mark.parametrize("agent", [python("pass", at_once=1), Function(function="m:f", processes=1)])
def test_a_second_run_of_one_process_has_an_event_loop_of_its_own(agent):
    async def two_at_once() -> None:
        async with agent.slot():
            waiting = asyncio.create_task(agent.slot().__aenter__())
            await asyncio.sleep(0)
        await waiting
        await agent.close()

    asyncio.run(two_at_once())
    asyncio.run(two_at_once())


async def test_a_program_that_is_not_there_is_the_users_mistake():
    with pytest.raises(UserError, match="there is no program 'no-such-agent'"):
        await Command(argv=("no-such-agent",)).check()
    with pytest.raises(ValueError, match="argv is empty"):
        Command(argv=())
    assert os.environ.get("PATH")
    await Command(argv=("sh",)).check()
