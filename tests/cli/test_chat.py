"""An environment played by hand: by a person at a terminal, and by a script through a pipe."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentgym.cli.chatting import EnvironmentChat, PlainChat
from agentgym.cli.jobs import JobShell
from agentgym.cli.lines import LineReader
from agentgym.cli.main import main
from agentgym.env import Environment, Reply
from agentgym.hooks import PluginRegistry
from agentgym.policies.by_hand import Table
from agentgym.policies.conversation import CallAnswer, CallRefused, CallRequest
from agentgym.recipe import EnvConfig, Recipe
from agentgym.rewards import reward
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.scoring import Scorer
from agentgym.run.serving import Played
from agentgym.tools import ToolCall
from agentgym.types import Episode, Task


class Counter:
    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        """Add a number."""
        self.total += number
        return self.total


class Adding(Environment[Counter]):
    """Right is whoever says the total; three turns."""

    tools = Counter
    max_turns = 3

    def __init__(self) -> None:
        self.started = 0

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        for number in range(3):
            yield Task(task_id=f"add-{number}", prompt=({"role": "user", "content": f"begin with {number}"},))

    async def start(self, context: Any) -> Counter:
        self.started += 1
        return Counter()

    async def reply(self, context: Any) -> Reply:
        said = context.messages[-1]["content"]
        context.info["success"] = said == str(context.state.total)
        return Reply(done=said.isdigit(), messages=({"role": "user", "content": f"not {said}"},))

    @reward(inline=True)
    def right(self, episode: Episode) -> float:
        return float(episode.success)


class FakeHandler:
    """Answers in turn; a text, a call, or a refusal."""

    def __init__(self, *says: str | ToolCall | CallRefused) -> None:
        self._says, self.asked = list(says), list[CallRequest]()

    async def call(self, request: CallRequest) -> CallAnswer:
        said = self._says[len(self.asked) % len(self._says)]
        self.asked.append(request)
        if isinstance(said, CallRefused):
            raise said
        calls = (said,) if isinstance(said, ToolCall) else ()
        text = said if isinstance(said, str) else ""
        counts = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
        return CallAnswer(content=text, reasoning="hm" if calls else "", calls=calls, finish="stop", **counts)


RECIPE = Recipe(env=EnvConfig(name="adding"))


async def _play(shell: JobShell, lines: LineReader, handler: FakeHandler, plain: bool) -> Adding:
    environment = Adding()
    if plain:
        await PlainChat(shell, lines, RECIPE.rollout, handler, 0, greedy=RECIPE.eval.greedy).run()
        return environment
    async with Scorer.of(environment, PluginRegistry([])) as scorer:
        table = Table(environment=environment, scorer=scorer, config=RolloutConfig(), sandbox=None, handler=handler)
        played = Played(table=table, tasks=list(environment.tasks("test")))
        await EnvironmentChat(shell, lines, RECIPE.env.name, played, 0).run(1)
    return environment


def by_pipe(typed: str, handler: FakeHandler, *, plain: bool = False) -> tuple[str, Adding]:
    reads, writes = os.pipe()
    os.write(writes, typed.encode())
    os.close(writes)
    out = io.StringIO()
    shell = JobShell(out=out, err=out, jobs=lambda: None, plugins=lambda disabled=(): PluginRegistry([]))  # type: ignore[arg-type, return-value]
    with os.fdopen(reads) as source:
        environment = asyncio.run(_play(shell, LineReader(source), handler, plain))
    return out.getvalue(), environment


def test_the_policy_takes_turns_and_the_episode_is_scored() -> None:
    handler = FakeHandler(ToolCall("add", {"number": 4}), "4")
    out, _ = by_pipe("\n\n", handler)
    assert "task 1 of 3: add-1" in out and "begin with 1" in out and "add(number): Add a number." in out
    assert (
        'calls add {"number": 4}' in out
        and "thinks    hm" in out
        and "success" in out
        and "reward               1" in out
    )
    assert [message["role"] for message in handler.asked[1].messages] == ["user", "assistant", "tool"]
    assert handler.asked[0].tools[0]["function"]["name"] == "add"  # type: ignore[index, call-overload]
    assert "\x1b" not in out and "> " not in out.replace("-> ", "")  # nobody is there to be prompted


def test_a_person_answers_in_the_policys_place_and_calls_its_tools() -> None:
    out, _ = by_pipe('/call add {"number": 2}\n/call add {"number": 3}\n5\n', handler := FakeHandler("unused"))
    assert "is over: done, scored, success" in out and handler.asked == []
    out, _ = by_pipe("/call ad {}\n/call add [1]\n/call add {\n/frob\n/task x\n/task 9\n/back\n", FakeHandler("-"))
    for expected in (
        "Did you mean 'add'", "not a JSON object", "is not JSON", "there is no /frob", "not the number", "0 to 2",
        "no turn to take back",
    ):  # fmt: skip
        assert expected in out


def test_a_turn_that_is_taken_back_never_happened() -> None:
    """The environment is played again without it, and the policy samples with another seed."""
    handler = FakeHandler(ToolCall("add", {"number": 4}), "9", "4")
    out, environment = by_pipe("\n\n/retry\n", handler)
    assert "no success" in out and out.rstrip().splitlines()[-3].endswith("1") and environment.started == 2
    assert handler.asked[1].messages == handler.asked[2].messages
    assert handler.asked[1].sampling["seed"] != handler.asked[2].sampling["seed"]


def test_what_the_environment_said_can_be_changed_and_stays_changed() -> None:
    handler = FakeHandler("well", "so", "0")
    out, _ = by_pipe("/edit begin anew\n\n/edit go on\n\n/back\n\n", handler)
    first, second, again = ([m["content"] for m in asked.messages] for asked in handler.asked)
    assert first == ["begin anew"] and second == ["begin anew", "well", "go on"] == again
    assert "success" in out
    out, _ = by_pipe("0\n/edit too late\n/next\n/edit ok\n", FakeHandler("-"))
    assert "the last message is not the environment's" in out and "task 2 of 3" in out and "user      ok" in out


def test_what_a_policy_writes_does_nothing_to_the_terminal() -> None:
    out, _ = by_pipe("\n", FakeHandler("\x1b[2Jgone"))
    assert "\\x1b[2Jgone" in out and "\x1b" not in out


def test_a_refused_call_is_said_and_ends_nothing() -> None:
    refused = CallRefused("context_length", "the prompt has 9000 tokens")
    out, _ = by_pipe("\n\n", FakeHandler(refused, "0"))
    assert "9000 tokens" in out and "is over: done" in out


def test_a_plain_chat_retries_edits_and_begins_anew() -> None:
    handler = FakeHandler("one", "two", "three", "four")
    typed = "/system be short\nhello\\\nthere\n/retry\n/edit bye\n/new\nagain\n"
    out, _ = by_pipe(typed, handler, plain=True)
    said = [[m["content"] for m in asked.messages] for asked in handler.asked]
    assert said == [["be short", "hello\nthere"]] * 2 + [["be short", "bye"], ["be short", "again"]]
    assert "four" in out


def test_a_person_at_a_terminal_is_prompted_and_ends_with_ctrl_d() -> None:
    person, terminal = os.openpty()
    tty.setraw(terminal)  # no echo: what is read is what was written
    out = os.fdopen(os.dup(terminal), "w")
    shell = JobShell(out=out, err=out, jobs=lambda: None, plugins=lambda disabled=(): PluginRegistry([]))  # type: ignore[arg-type, return-value]

    async def main() -> str:
        read = bytearray()
        with os.fdopen(terminal) as source:
            playing = asyncio.create_task(_play(shell, LineReader(source), FakeHandler("1"), False))
            loop, prompted = asyncio.get_running_loop(), asyncio.Queue[None]()

            def more() -> None:
                read.extend(os.read(person, 65536))
                if read.endswith((b"> ", b"> \x1b[0m")):
                    prompted.put_nowait(None)

            loop.add_reader(person, more)
            await prompted.get()
            os.write(person, b"\n")  # the policy's turn
            await prompted.get()
            os.write(person, b"/quit\n")
            await playing
            loop.remove_reader(person)
        return read.decode()

    shown = asyncio.run(main())
    out.close()
    os.close(person)
    assert "begin with 1" in shown and "is over: done" in shown and shown.count("> ") >= 2


class Waiting:
    """Jobs whose engine never starts; a person presses Ctrl-C."""

    @asynccontextmanager
    async def handler(self, *given: object) -> AsyncIterator[None]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        yield


def test_a_chat_says_that_it_stops_and_names_the_signal_by_its_exit_code() -> None:
    out = io.StringIO()
    shell = JobShell(out=out, err=out, jobs=Waiting, plugins=PluginRegistry.discover)  # type: ignore[arg-type]
    assert main(["chat", "builtin:tiny"], shell) == 130
    assert "stopping (Ctrl-C)" in out.getvalue()


def test_lines_of_a_file_are_read_too(tmp_path: Path) -> None:
    file = tmp_path / "typed"
    file.write_text("a\\\nb\nc", encoding="utf-8")

    async def main() -> list[str | None]:
        with file.open() as source:
            lines = LineReader(source)
            return [await lines.line() for _ in range(3)]

    assert asyncio.run(main()) == ["a\nb", "c", None]
