"""What a container that is no longer ours answers about files: a lost sandbox, and no path leads elsewhere."""

from __future__ import annotations

from typing import cast

import pytest
from pool_fakes import FakeSession

from agentgym.sandbox import FileInfo, FileRefused, SandboxLost
from agentgym_sandboxes.agent.frames import Frame, Header
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.sessions import MAX_BYTES, DockerSession
from agentgym_sandboxes.host.running import result_of


class Liar(FakeSession):
    """A container that gives one answer to everything."""

    def __init__(self, answer: bytes, refused: str | None = None) -> None:
        super().__init__("liar", lambda: None, 1)
        self._frame = Frame({"id": 1, "reason": None, "refused": refused}, [answer])

    async def ask(self, *asked: object, **named: object) -> Frame:
        return self._frame


def session(answer: bytes) -> DockerSession:
    return DockerSession(cast(Container, Liar(answer)), 64)


async def test_a_list_of_files_is_what_a_session_may_hold() -> None:
    listed = await session(b'[["a",0,true],["a/..b",5,false],["a/\\u00fc\\n",0,false]]').files()
    assert listed == (
        FileInfo(path="a", size=0, is_folder=True),
        FileInfo(path="a/..b", size=5),
        FileInfo(path="a/ü\n", size=0),
    )


@pytest.mark.parametrize(
    "answer",
    [
        b'[["../../home/me/.bashrc",5,false]]', b'[["a/../../b",5,false]]', b'[["/etc/passwd",5,false]]',
        b'[["a//b",5,false]]', b'[["",5,false]]', b'[[".",5,true]]', b'[["a\\u0000",5,false]]',
        b'[["\\ud800",5,false]]', b"[[5,5,false]]", b'[["a",-1,false]]', b'[["a",true,false]]',
        b'[["a",1.5,false]]', b'[["a",NaN,false]]', b'[["a",5,"no"]]', b'[["a",5]]', b'{"abc":5}',
        b'["abc"]', b"5", b"\xff", b"[" * 100_000,
    ],
    ids=lambda answer: repr(answer[:30]),
)  # fmt: skip
async def test_a_list_of_files_that_is_none_leads_nowhere(answer: bytes) -> None:
    with pytest.raises(SandboxLost):
        await session(answer).files()


async def test_no_more_bytes_are_handed_out_than_were_asked_for() -> None:
    assert await session(b"12345").read("f", max_bytes=5) == b"12345"
    with pytest.raises(SandboxLost):
        await session(b"123456").read("f", max_bytes=5)
    with pytest.raises(SandboxLost):
        await session(bytes(MAX_BYTES + 1)).snapshot()


async def test_a_refusal_is_one() -> None:
    liar = Liar(b"", "no")
    with pytest.raises(FileRefused, match="no"):
        await DockerSession(cast(Container, liar), 64).read("f")


@pytest.mark.parametrize("number", [10**400, -(10**400), float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["wall_s", "cpu_s", "memory_mib", "used"])
def test_numbers_that_are_none_are_a_lost_sandbox(name: str, number: float) -> None:
    header: Header = {
        "reason": None, "exits": {"program": 0}, "truncated": False, "cpu_s": 0.0, "memory_mib": 0.0, "wall_s": 0.0,
        "names": [], "limit": "cpu_s", "used": 1, "allowed": 1, name: number,
    }  # fmt: skip
    with pytest.raises(SandboxLost):
        result_of(Frame(header, []))
