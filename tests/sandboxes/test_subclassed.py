"""Objects of subclasses of builtin types are judged as the builtin values that they are; numpy's values as data."""

from __future__ import annotations

import socket
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy
import pytest
from verdicts import errors, judged

from agentgym.sandbox import CallCase, SandboxBackend
from agentgym_sandboxes.agent import arrays, subclassed
from agentgym_sandboxes.agent.channel import Channel
from agentgym_sandboxes.agent.link import ENTRY, Lend, Link, lend_all
from agentgym_sandboxes.agent.operations import lendable
from agentgym_sandboxes.agent.values import NotPlain, Writer, encode, lower

MIB = 1 << 20
sharing = pytest.mark.asyncio(loop_scope="session")  # the loop of the sandboxes
POINTS = """
from collections import namedtuple
from enum import Enum, IntEnum
Point = namedtuple("Point", "x y")
class Color(IntEnum):
    RED = 1
class Name(str, Enum):
    A = "a"
class Half(float): pass
class Row(list):
    def first(self): return self[0]
class Table(dict):
    def __missing__(self, key): return 0
def f(kind):
    return {
        "point": Point(1, 2), "points": [Point(1, 2), Point(3, 4)], "color": Color.RED, "name": Name.A,
        "half": Half(0.5), "row": Row([1, 2]), "table": Table(a=1), "nested": {Color.RED: (Point(0, 0),)},
    }[kind]
"""


@sharing
async def test_a_call_that_returns_an_object_of_a_subclass_returns_its_value(backend: SandboxBackend) -> None:
    verdict = await judged(
        backend,
        POINTS,
        CallCase(args=("point",), expected=(1, 2)),
        CallCase(args=("points",), expected=[(1, 2), (3, 4)]),
        CallCase(args=("color",), expected=1),
        CallCase(args=("name",), expected="a"),
        CallCase(args=("half",), expected=0.5),
        CallCase(args=("row",), expected=[1, 2]),
        CallCase(args=("table",), expected={"a": 1}),
        CallCase(args=("nested",), expected={1: ((0, 0),)}),
        CallCase(args=("point",), expected=[1, 2]),
        CallCase(args=("color",), expected=True),
    )
    assert errors(verdict) == [""] * 8 + ["returned (1, 2), expected [1, 2]", "returned 1, expected True"]


@sharing
async def test_assertions_meet_the_value_and_the_object(backend: SandboxBackend) -> None:
    right = [
        "assert candidate('point') == (1, 2) and (1, 2) == candidate('point') and not candidate('point') != (1, 2)",
        "assert candidate('point').x == 1 and candidate('points')[1].y == 4 and len(candidate('point')) == 2",
        "p = candidate('point')\nassert p < (1, 3) and (0, 9) < p and p + (3,) == (1, 2, 3) and isinstance(p, tuple)",
        "assert candidate('points') == [(1, 2), (3, 4)] and candidate('point') in [(0, 0), (1, 2)]",
        "assert candidate('point') in {(1, 2): 0} and 2 in candidate('point') and 3 not in candidate('point')",
        "assert candidate('color') == 1 and candidate('color') is Color.RED and [5, 6][candidate('color')] == 6",
        "assert candidate('color') + 1 == 2 and 3 - candidate('color') == 2 and {1: 'x'}[candidate('color')] == 'x'",
        "assert candidate('name') == 'a' and candidate('name').startswith('a') and 'x' + candidate('name') == 'xa'",
        "assert abs(candidate('half') - 0.5) < 1e-9 and round(candidate('half')) == 0 and candidate('half') * 2 == 1",
        "r = candidate('row')\nassert r == [1, 2] and type(r) is list and len(r) == 2 and sorted(r) == [1, 2]",
        "r = candidate('row')\nr.append(3)\nassert r == [1, 2, 3] and candidate('row') == candidate('row')",
        "t = candidate('table')\nassert t == {'a': 1} and 'zz' not in t and dict(t.items()) == {'a': 1}",
    ]
    wrong = [
        "assert candidate('point') == (1, 3)",
        "assert candidate('point') == [1, 2]",
        "assert candidate('row') == (1, 2)",
        "assert candidate('color') != 1",
        "assert candidate('table') == {}",
        "assert candidate('point') == candidate('row')",
    ]
    found = errors(await judged(backend, POINTS, *right, *wrong))
    assert found[: len(right)] == [""] * len(right)
    assert all(found[len(right) :])


@sharing
async def test_a_class_under_test_that_extends_a_builtin_has_its_own_equality(backend: SandboxBackend) -> None:
    code = (
        "class Bag(list):\n"
        "    def __eq__(self, other): return sorted(self) == sorted(other)\n"
        "    def put(self, x): self.append(x)\n        \n"
    )
    verdict = await judged(
        backend,
        code,
        "assert Bag([1, 2]) == Bag([2, 1])",
        "b = Bag()\nb.put(1)\nassert b == [1] and len(b) == 1",
        "assert Bag([1]) == Bag([2])",
        entry="Bag",
    )
    assert [not error for error in errors(verdict)] == [True, True, False]


def _examples() -> list[tuple[object, object]]:
    def of(kind: type, *given: object) -> object:
        return type("Sub", (kind,), {"__iter__": None, "__len__": None, "__getitem__": None})(*given)

    return [
        (of(int, 10**30), 10**30), (of(float, -0.0), -0.0), (of(complex, 1, -0.0), complex(1, -0.0)),
        (of(str, "é"), "é"), (of(bytes, b"x"), b"x"), (of(bytearray, b"x"), bytearray(b"x")),
        (of(tuple, [1]), (1,)), (of(list, [1]), [1]), (of(set, [1]), {1}), (of(frozenset, [1]), frozenset([1])),
        (of(dict, {1: 2}), {1: 2}), (of(Counter, "aa"), Counter("aa")), (of(OrderedDict, {1: 2}), OrderedDict({1: 2})),
        (of(defaultdict, int, {1: 2}), defaultdict(int, {1: 2})), (of(deque, [1], 3), deque([1], 3)),
    ]  # fmt: skip


def test_the_value_is_taken_past_the_methods_of_the_subclass_and_is_of_the_type_itself() -> None:
    for made, expected in _examples():
        base = subclassed.base_type(type(made))
        found = subclassed.base_value(made)
        assert base is type(expected) is type(found)
        assert encode(found) == encode(expected) and repr(found) == repr(expected)
    assert subclassed.base_type(int) is None and subclassed.base_type(object) is None
    assert subclassed.base_type(bool) is int  # it crosses as itself, long before
    with pytest.raises(TypeError):
        subclassed.base_value([])


def test_a_case_of_the_environment_holds_no_object_of_a_subclass() -> None:
    point = namedtuple("Point", "x")(1)
    with pytest.raises(NotPlain, match="Point"):
        encode([point])
    assert Writer(foreign=lower).tree([point]) == ["l", ["t", 1]]
    with pytest.raises(NotPlain, match="object"):
        Writer(foreign=lower).tree(namedtuple("Point", "x")(object()))


def test_scalars_of_numpy_are_returned_as_python_values() -> None:
    values = [numpy.float64(0.5), numpy.int32(3), numpy.bool_(True), numpy.str_("a"), numpy.complex64(1j)]
    assert Writer(foreign=lower).tree(values) == ["l", 0.5, 3, True, "a", ["c", 0.0, 1.0]]
    for other in (numpy.array([1]), numpy.longdouble(1), numpy.datetime64("2026-01-01")):
        with pytest.raises(NotPlain):
            Writer(foreign=lower).tree(other)


def conversation(returned: object, lend: Lend = lendable) -> object:
    """What a test gets of a solution that returns this, and the end of the link that it came over."""
    ours, theirs = socket.socketpair()
    solution = Link(Channel(theirs.fileno(), MIB), lend_all)
    solution.hold(lambda *args: returned if not args else args[0])
    thread = threading.Thread(target=solution.answer_all, daemon=True)
    thread.start()
    proxy = Link(Channel(ours.fileno(), MIB), lend).proxy(ENTRY, "f")
    try:
        found = proxy()
        sent_back = proxy(found)
        if type(found).__module__ == "numpy":
            assert type(sent_back) is type(found)
        return found
    finally:
        ours.close()
        thread.join(10)
        theirs.close()


@pytest.mark.parametrize(
    "value",
    [
        numpy.arange(6).reshape(2, 3),
        numpy.arange(6.0).reshape(2, 3).T,
        numpy.zeros((0, 3), dtype="int8"),
        numpy.array(2.5),
        numpy.array([True, False]),
        numpy.array(["a", "bc"]),
        numpy.array(["2026-01-01"], dtype="datetime64[D]"),
        numpy.float64(0.1),
        numpy.int64(3),
        numpy.bool_(True),
        numpy.str_("x"),
    ],
)
def test_arrays_and_scalars_of_numpy_cross_as_data(value: numpy.generic) -> None:
    found = conversation(value)
    assert type(found) is type(value)
    assert isinstance(found, numpy.ndarray | numpy.generic)
    assert found.dtype == value.dtype and found.shape == value.shape and numpy.array_equal(found, value)


def test_an_array_that_came_can_be_changed() -> None:
    found = conversation(numpy.zeros(2))
    assert isinstance(found, numpy.ndarray)
    found[0] = 1
    assert found.tolist() == [1, 0]


def test_arrays_of_objects_and_subclasses_do_not_cross() -> None:
    class Kind(numpy.ndarray):
        pass

    assert arrays.array_parts(numpy.array([object()])) is None
    assert arrays.array_parts(numpy.zeros(2).view(Kind)) is None
    assert arrays.array_parts([1]) is None


@pytest.mark.parametrize(
    "parts",
    [
        ("|O", [1], "AAAAAAAAAAA="), ("<f8,<f8", [1], "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("<f8", [2], "AAAAAAAAAAA="), ("<f8", [-1], "AAAAAAAAAAA="), ("<f8", [0, 1 << 62], ""),
        ("<f8", [True], "AAAAAAAAAAA="), ("<f8", "1", "AAAAAAAAAAA="), ("<f8", [1], "!"), ("<f8", [1], 5),
        ("<f7", [1], "AAAAAAAAAAA="), (5, [1], "AAAAAAAAAAA="), ("<M8[xx]", [1], "AAAAAAAAAAA="),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused(parts: tuple[object, object, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        arrays.build_array(*parts)
