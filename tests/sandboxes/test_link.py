"""The conversation between tests and a solution, with a solution that writes whatever it likes into it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from agentgym_sandboxes.agent import serve
from agentgym_sandboxes.agent.channel import Channel, TooMuch
from agentgym_sandboxes.agent.link import ENTRY, Gone, Lend, Link, lend_all
from agentgym_sandboxes.agent.operations import lendable
from agentgym_sandboxes.agent.remote import Proxy

MIB = 1 << 20
Sockets = tuple[socket.socket, socket.socket]


class Peer:
    """The other end, as bytes."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def hear(self) -> list[object]:
        line = b""
        while not line.endswith(b"\n"):  # it says nothing more before it was answered
            line += self.end.recv(MIB)
        return list(json.loads(line))

    def say(self, message: object) -> None:
        self.end.sendall(json.dumps(message).encode() + b"\n")


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def end_of_tests(ours: socket.socket, max_bytes: int = MIB, lend: Lend = lendable) -> Proxy:
    return Link(Channel(ours.fileno(), max_bytes), lend).proxy(ENTRY, "f")


def with_peer(peer: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=peer)
    thread.start()
    return thread


def test_what_is_lent_can_be_called_and_not_looked_into(sockets: Sockets) -> None:
    ours, theirs = sockets
    secret = "hidden"
    own = type("Own", (), {"__module__": "tests", "_secret": secret})()
    heard: list[list[object]] = []
    questions = [
        [0, "getattr", ["t", "__globals__"], ["t"]], [0, "getattr", ["t", "__code__"], ["t"]],
        [0, "str", ["t"], ["t"]], [0, "setattr", ["t", "name", 1], ["t"]],
        [1, "getattr", ["t", "gi_frame"], ["t"]], [1, "len", ["t"], ["t"]], [2, "call", ["t"], ["t"]],
        [2, "getattr", ["t", "__init__"], ["t"]], [2, "getattr", ["t", "_secret"], ["t"]],
        [2, "delattr", ["t", "_secret"], ["t"]], [3, "call", ["t"], ["t"]], [-1, "call", ["t", 5], ["t"]],
        [True, "no such", ["t"], ["t"]], [0, "call", ["t", ["o", 99]], ["t"]], [0, "call", ["?"], ["t"]],
        [0, "call", ["t", 4], ["t"]],
    ]  # fmt: skip

    def peer() -> None:
        solution = Peer(theirs)
        solution.hear()
        for question in questions:
            solution.say(question)
            heard.append(solution.hear())
        solution.say(["r", 7, []])

    thread = with_peer(peer)
    assert end_of_tests(ours)(lambda x: (x, secret)[0] + 1, (x for x in [secret]), own) == 7
    thread.join()
    assert [reply[0] for reply in heard] == ["x"] * 15 + ["r"]
    assert heard[-1][1] == 5
    assert secret not in json.dumps(heard)


@pytest.mark.parametrize(
    "reply",
    [
        "no json", [], ["r"], ["r", 1], ["r", ["?"], []], ["r", ["o", 5], []], ["r", ["o", -1], []],
        ["r", ["h", "0", "int"], []], ["r", ["e", 0, "not a name", ["type", "ValueError"]], []],
        ["r", ["e", 0, "Fine", ["type", "int"]], []], ["r", 1, [[0, ["t"]]]], ["r", 1, [[5, ["l"]]]],
        ["r", 1, [[-1, ["l"]]]], ["r", 1, [[0, ["d", 1]]]],
        ["x", 1, ["type", "ValueError"], ["t"], ["t"], []], ["x", "m", ["type", "int"], ["t"], ["t"], []],
        ["x", "m", ["type", "ValueError"], ["t"], 5, []], ["x", "m", ["type", "ExceptionGroup"], ["t"], ["t"], []],
        ["x", "m", ["type", "ExceptionGroup"], ["t", "m", ["t", 5]], ["t"], []], ["r", ["told", "m"], []],
        ["stop", 1, []], ["unknown", []], 5, {"a": 1},
        ["r", [[[[]]]], []], [1, 2],
    ],
    ids=repr,
)  # fmt: skip
def test_a_reply_that_is_none_ends_the_conversation_and_not_the_test_side(sockets: Sockets, reply: object) -> None:
    ours, theirs = sockets
    Peer(theirs).say(reply)
    proxy = end_of_tests(ours)
    with pytest.raises(Gone):
        proxy([1])
    with pytest.raises(Gone):
        proxy([1])


def test_answers_that_have_a_type_must_be_of_it(sockets: Sockets) -> None:
    for operation in (len, bool, str, hash, int, float):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            Peer(theirs).say(["r", ["l"], []])
            with pytest.raises(Gone):
                operation(end_of_tests(ours))  # type: ignore[operator]


def test_a_stop_iteration_never_ends_the_tests_own_iteration(sockets: Sockets) -> None:
    ours, theirs = sockets
    solution, proxy = Peer(theirs), end_of_tests(ours)
    for kind in ("StopIteration", "StopAsyncIteration"):
        solution.say(["x", "m", ["type", kind], ["t"], ["t"], []])
        with pytest.raises(RuntimeError):
            proxy()
    solution.say(["stop", 4, []])
    with pytest.raises(StopIteration):
        next(proxy)  # type: ignore[call-overload]


def test_what_is_taken_for_a_value_is_read_once_whatever_the_peer_would_answer(sockets: Sockets) -> None:
    ours, theirs = sockets
    for answer in (["r", ["h", 9, "list", "list"], []], ["r", ["h", 10, "it"], []], ["r", 1, []], ["stop", 0, []]):
        Peer(theirs).say(answer)
    theirs.shutdown(socket.SHUT_WR)  # a further question would raise Gone
    found = Link(Channel(ours.fileno(), MIB), lendable, live=False).proxy(ENTRY, "f")()
    assert [*found] == [*found] == [1] and len(found) == found[0] == 1 and found and 1 in found  # type: ignore
    assert found != [1] and not isinstance(found, list)
    for use in (abs, int, lambda value: value - 1, lambda value: value < 2):
        with pytest.raises(TypeError, match="is not asked of"):
            use(found)  # type: ignore[operator]


def test_no_more_is_heard_than_was_allowed(sockets: Sockets) -> None:
    ours, theirs = sockets

    def flood() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            theirs.sendall(b"x" * (2 * MIB) + b"\n")

    proxy = end_of_tests(ours, MIB)
    thread = with_peer(flood)
    with pytest.raises(Gone):
        proxy()
    ours.close()
    thread.join()
    with pytest.raises(TooMuch):
        a, b = socket.socketpair()
        with a, b:
            b.sendall(b"x" * 100)
            Channel(a.fileno(), 99).receive()


def test_a_solution_that_asks_while_it_is_asked_is_answered(sockets: Sockets) -> None:
    ours, theirs = sockets

    def solution() -> None:
        link = Link(Channel(theirs.fileno(), MIB), lend_all)
        entry, _ = serve.find_entry({"f": lambda g, n: n if n == 0 else 1 + g(g, n - 1)}, "f")
        link.hold(entry)
        link.answer_all()

    thread = with_peer(solution)
    candidate = end_of_tests(ours)
    assert candidate(lambda g, n: candidate(g, n), 20) == 20
    ours.shutdown(socket.SHUT_RDWR)
    thread.join()
