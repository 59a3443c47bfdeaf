"""The fakes and the scripted policy do what their docstrings say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from agentgym import Environment, EpisodeContext, FileRefused, Message, Reply, SandboxSpec, Split, Task, reward
from agentgym.sandbox import RunStatus, SandboxUnavailable
from agentgym.testing import FakeSandbox, FakeSession, ScriptedGenerator, play
from agentgym.types import Episode, GenerateRequest, SamplingParams, Stop


class Echo(Environment):
    """Repeat the word that comes; `break` breaks it."""

    max_turns = 3

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        yield Task(task_id="echo/0", prompt=({"role": "user", "content": "one"},), split=split)

    async def reply(self, context: EpisodeContext) -> Reply:
        said, asked = context.messages[-1]["content"], context.messages[-2]["content"]
        if said == "break":
            raise LookupError("no word")
        context.info["right"] = int(said == asked) + int(str(context.info.get("right", 0)))
        return Reply(messages=({"role": "user", "content": f"{asked} more"},))

    @reward(high=3.0, inline=True)
    def right(self, episode: Episode) -> float:
        return float(str(episode.info["right"]))


TASK = next(Echo().tasks("test"))


def repeated(talk: Sequence[Message]) -> str:
    return talk[-1]["content"]


def generator() -> Iterator[Message]:
    said = "one"
    while True:
        (answer,) = yield {"role": "assistant", "content": said}
        said = answer["content"]


@pytest.mark.parametrize(
    ("replies", "right", "stop"),
    [
        (repeated, 3, Stop.MAX_TURNS),
        (generator(), 3, Stop.MAX_TURNS),
        (["one", {"role": "assistant", "content": "two"}, "one more more"], 2, Stop.MAX_TURNS),
        (iter(["one", "one more"]), 2, Stop.ABANDONED),
        ("one", 1, Stop.ABANDONED),
    ],
)
async def test_replies_are_played_whatever_gives_them(replies, right: int, stop: Stop) -> None:
    episode = await play(Echo(), TASK, replies)
    assert (episode.reward, episode.stop) == (right, stop)


async def test_a_broken_episode_fails_the_test_with_its_error() -> None:
    with pytest.raises(AssertionError, match=r"task echo/0: environment:Echo\.reply: LookupError: no word"):
        await play(Echo(), TASK, "break")
    assert (await play(Echo(), TASK, "break", may_break=True)).error is not None


async def test_a_generator_answers_each_prompt_with_what_a_function_makes_of_it() -> None:
    scripted = ScriptedGenerator(lambda prompt: prompt.upper())
    ids = scripted.tokenizer.encode("what<|im_end|>")
    completion = await scripted.generate(GenerateRequest(prompt_ids=ids, sampling=SamplingParams(max_tokens=99)))
    assert scripted.tokenizer.decode(completion.completion_ids).startswith("WHAT")


async def test_a_sandbox_in_memory_answers_programs_and_keeps_files() -> None:
    async with FakeSandbox(lambda code, stdin: code + stdin, judge=False) as sandbox, sandbox.session() as session:
        assert (await sandbox.run("a", stdin="b")).stdout == "ab" and sandbox.ran == ["a"]
        await session.write("folder/a.txt", b"one")
        saved = await session.snapshot()
        await session.reset()
        assert await session.files() == ()
        await session.restore(saved)
        assert [(one.path, one.is_folder) for one in await session.files()] == [
            ("folder", True),
            ("folder/a.txt", False),
        ]
        assert await session.read("./folder/../folder/a.txt") == b"one" and sandbox.num_sessions_open == 1
    assert sandbox.num_sessions_open == 0 and not sandbox.is_open
    with pytest.raises(SandboxUnavailable, match="gone"):
        await FakeSandbox(unavailable="gone").start()
    assert not FakeSandbox(able=replace(await FakeSandbox().probe(), sessions=False)).supports(
        SandboxSpec(session=True)
    )


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "none.txt"])
async def test_a_session_in_memory_refuses_what_every_session_refuses(path: str) -> None:
    with pytest.raises(FileRefused):
        await FakeSession(contents={"a": b""}).read(path)
    assert (await FakeSession().run("code")).status is RunStatus.OK
