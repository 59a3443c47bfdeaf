"""Tools over a session: what the agent reads of commands and files, and what is refused."""

from __future__ import annotations

import pytest

from agentgym import Toolbox, ToolCall
from agentgym.sandbox import RunResult, RunStatus
from agentgym.session_tools import SessionTools
from agentgym.testing.fakes import FakeSession
from agentgym.tools import ToolResult


async def call(session: FakeSession, name: str, **arguments: str | int) -> ToolResult:
    return await Toolbox.of(SessionTools).bind(SessionTools(session)).call(ToolCall(name, arguments))


async def test_only_the_asked_lines_are_read_and_the_rest_is_counted() -> None:
    session = FakeSession(contents={"f": b"".join(b"%d\n" % line for line in range(1, 1003)), "empty": b""})
    assert (await call(session, "read", path="f", first_line=2, last_line=3)).text == "2\n3"
    whole = (await call(session, "read", path="f")).text.split("\n")
    assert whole[-2:] == ["500", "[502 more lines; continue with first_line=501]"]
    assert (await call(session, "read", path="f", first_line=1001)).text == "1001\n1002"
    assert (await call(session, "read", path="empty")).text == ""
    beyond = await call(session, "read", path="f", first_line=1003)
    assert beyond.error == "tool" and "has 1002 lines" in beyond.text


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("b", "c", "does not occur"),
        ("aa", "c", "more than once"),  # "aaa" has it twice, overlapping
        ("", "c", "is empty"),
        ("aaa", "aaa", "the same text"),
    ],
)
async def test_an_edit_that_is_not_of_one_place_changes_nothing(old: str, new: str, fault: str) -> None:
    session = FakeSession(contents={"f": b"aaa\r\n"})
    refused = await call(session, "edit", path="f", old=old, new=new)
    assert refused.error == "tool" and fault in refused.text
    assert session.contents == {"f": b"aaa\r\n"}


async def test_an_edit_keeps_all_other_bytes() -> None:
    session = FakeSession(contents={"f": "é\r\nx = 1\r\n\x0c".encode()})
    assert (await call(session, "edit", path="f", old="x = 1", new="x = \\1")).error == ""
    assert session.contents["f"] == "é\r\nx = \\1\r\n\x0c".encode()


async def test_files_that_are_refused_are_the_agents_mistake() -> None:
    session = FakeSession(contents={"binary": b"\xff", "large": b"a" * ((1 << 20) + 1)})
    for path in ("none", "binary", "large"):
        assert (await call(session, "read", path=path)).error == "tool", path
    assert (await call(session, "write", path="binary/below", text="")).error == "tool"
    assert (await call(session, "write", path="new", text="a" * ((1 << 20) + 1))).error == "tool"
    assert set(session.contents) == {"binary", "large"}


@pytest.mark.parametrize(
    ("status", "exit_code", "truncated", "end"),
    [
        (RunStatus.OK, 0, False, []),
        (RunStatus.OK, 0, True, ["[the output was cut]"]),
        (RunStatus.ERROR, 3, False, ["[exit code 3]"]),
        (RunStatus.TIMEOUT, None, False, ["[ended after 30 s]"]),
        (RunStatus.OOM, None, False, ["[ended: oom]"]),
    ],
)
async def test_a_command_says_how_it_ended(
    status: RunStatus, exit_code: int | None, truncated: bool, end: list[str]
) -> None:
    ran = RunResult(status=status, stdout="out\n", stderr="err\n", exit_code=exit_code, truncated=truncated)
    told = await call(FakeSession(answer=lambda _program, _stdin: ran), "bash", command="x")
    assert told.text.split("\n") == ["out", "err", *end]
