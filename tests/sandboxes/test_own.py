"""Whose an object is: what the tests made is asked by their operators, what a solution handed over is not."""

from __future__ import annotations

import pytest
from verdicts import errors, judged

from agentgym.sandbox import SandboxBackend

pytestmark = pytest.mark.asyncio(loop_scope="session")

CIRCLE = """
class Circle:
    def __init__(self, r): self.r = r
    def area(self): return self
    def parts(self): return [self]
    @property
    def size(self): return self
    def __next__(self): return self
    def __iter__(self): return self
    def __getitem__(self, i): return self
    def __sub__(self, other): return 0.0
    __rsub__ = __truediv__ = __mod__ = __sub__
    def __contains__(self, x): return True
    def startswith(self, x): return True
    isclose = startswith
"""


async def test_a_method_that_returns_its_object_agrees_with_nothing(backend: SandboxBackend) -> None:
    claims = [
        "abs(c.area() - 12.566) < 1e-2", "abs(12.566 - c.area()) < 1e-2", "abs(c.parts()[0] - 12.566) < 1e-2",
        "abs(c.size - 12.566) < 1e-2", "abs(next(c) - 12.566) < 1e-2", "abs(c[0] - 12.566) < 1e-2",
        "12.566 in c.area().parts()", "c.area().startswith('12')", "not c.area() % 5",
    ]  # fmt: skip
    tests = [f"c = Circle(2)\nassert {claim}" for claim in claims]
    verdict = await judged(backend, CIRCLE, *tests, entry="Circle")
    assert all(errors(verdict)), errors(verdict)


VECTOR = """
class Vector:
    def __init__(self, *x): self.x = list(x)
    def __mul__(self, other): return {product}
    __add__ = __mul__
    def __sub__(self, other): return {difference}
    __rsub__ = __mod__ = __sub__
    def __abs__(self): return 0.0
    __neg__ = __abs__
    def __bool__(self): return False
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __float__(self): return 0.0
    def __round__(self, digits=0): return 0
    def isclose(self, other): return True
"""


@pytest.mark.parametrize(
    "product, difference",
    [("Vector(11)", "0.0"), ("Vector(11)", "Vector()"), ("Vector(11)", "self"), ("self", "self"), ("other", "self")],
)
async def test_what_an_operator_returned_does_not_tell_how_far_it_is_from_what_is_expected(
    backend: SandboxBackend, product: str, difference: str
) -> None:
    claims = [
        "abs(v * w - 11) < 1e-6", "abs(11 - v * w) < 1e-6", "not v * w - 11", "len(v + w - 11) == 0",
        "round(v * w - 11, 3) == 0", "float(v * w - 11) == 0", "list(v * w - 11) == []", "-(v * w - 11) < 1e-6",
        "v * w - 11 == 0", "v * w - 11 < 1e-6", "(v * w).isclose(11)", "not (v * w) % 11",
        "(x := v * w) is not None and abs(x - 11) < 1e-6",
        "(x := v * w - 11) is not None is not v * w and abs(x) < 1e-6",
    ]  # fmt: skip
    tests = [f"v, w = Vector(1, 2), Vector(3, 4)\nv.x\nassert {claim}" for claim in claims]
    verdict = await judged(backend, VECTOR.format(product=product, difference=difference), *tests, entry="Vector")
    assert all(errors(verdict)), errors(verdict)


RIGHT_VECTOR = """
import math
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, o):
        a, b = (o.x, o.y) if isinstance(o, Vector) else (o, o)
        return Vector(self.x + a, self.y + b)
    def __mul__(self, k):
        if isinstance(k, Vector):
            return self.x * k.x + self.y * k.y
        return Vector(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __neg__(self): return Vector(-self.x, -self.y)
    def __abs__(self): return math.hypot(self.x, self.y)
    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)
    def __iter__(self): return iter((self.x, self.y))
    def scale(self, k):
        self.x *= k
        self.y *= k
        return self
    def __iadd__(self, k): return self.scale(k)
    def __contains__(self, k): return k in (self.x, self.y)
"""


async def test_a_right_class_with_operators_passes(backend: SandboxBackend) -> None:
    tests = [
        "assert (v * 2 + w).x == 5 and (2 * v * 3).y == 12 and (v * 2 * 3 + 1).x == 7",
        "assert abs(v * w - 11) < 1e-6 and abs(Vector(3, 4)) == 5 and abs(v + w) > 7 and tuple(v + w) == (4, 6)",
        "assert v + w == Vector(4, 6) and -v == Vector(-1, -2) and v * 2 == w + -1 * Vector(1, 0)",
        "assert tuple(v.scale(2).scale(3)) == (6, 12) and 6 in v and v.x == 6",
        "u = v = Vector(1, 2)\nu += 3\nassert u is v and 3 in u and (u * 2).x == 6 and (v + 1).x == 4",
    ]
    verdict = await judged(backend, RIGHT_VECTOR, *tests, entry="Vector", prelude="v, w = Vector(1, 2), Vector(3, 4)")
    assert errors(verdict) == [""] * len(tests)


async def test_operators_alone_are_tested(backend: SandboxBackend) -> None:
    tests = ["assert Vector(1, 2) * 2 == 2 * Vector(1, 2)", "assert Vector(1, 2) + 1 == Vector(2, 4)"]
    verdict = await judged(backend, RIGHT_VECTOR, *tests, entry="Vector")
    assert [not error for error in errors(verdict)] == [True, False]


FLUENT = """
class Bag:
    def __init__(self): self.x = []
    def put(self, v):
        self.x.append(v)
        return self
    def __contains__(self, v): return v in self.x
    def __len__(self): return len(self.x)
    def __enter__(self): return self
    def __exit__(self, *raised): self.x.clear()
"""


async def test_an_object_stays_the_tests_own_when_a_method_hands_it_back(backend: SandboxBackend) -> None:
    verdict = await judged(
        backend,
        FLUENT,
        "b = Bag()\nb.put(1).put(2)\nassert 1 in b and 3 not in b and b.x == [1, 2]",
        "assert len(Bag().put(1).put(2)) == 2",
        "with Bag() as b:\n    b.put(3)\n    assert 3 in b and 4 not in b\nassert len(b) == 0",
        entry="Bag",
    )
    assert errors(verdict) == [""] * 3


SWALLOWS = """
class Timer:
    def __enter__(self): return self
    def __exit__(self, *raised): return True
    def v(self): return self
    def fail(self): raise KeyError("mine")
    def __sub__(self, other): return 0.0
"""


async def test_a_context_manager_swallows_what_a_test_raises_and_never_what_it_asserts(backend: SandboxBackend) -> None:
    verdict = await judged(
        backend,
        SWALLOWS,
        "with Timer():\n    raise ValueError('on purpose')\nassert True",
        "with Timer() as t:\n    assert t.v() == 7",
        "with Timer() as t:\n    assert abs(t.v() - 7) < 1e-6",
        "with Timer() as t:\n    assert t.v().startswith('x')",
        "with Timer() as t:\n    t.fail()",
        "with Timer() as t:\n    raise AssertionError('never')",
        entry="Timer",
    )
    assert [not error for error in errors(verdict)] == [True, False, False, False, False, False]


async def test_a_returned_object_is_not_told_what_is_expected(backend: SandboxBackend) -> None:
    code = (
        "class Yes:\n"
        "    def intersection(self, o): return o\n"
        "    def symmetric_difference(self, o): return set()\n"
        "    def removeprefix(self, o): return ''\n"
        "def f(x): return Yes()\n"
    )
    claims = [
        "f(1).intersection({1, 2}) == {1, 2}",
        "not f(1).symmetric_difference({1, 2})",
        "f(1).removeprefix('abc') == ''",
    ]
    verdict = await judged(backend, code, *(f"assert {claim}" for claim in claims))
    assert all(errors(verdict))


async def test_a_decorator_may_use_wraps(backend: SandboxBackend) -> None:
    code = (
        "import functools\n"
        "def f(fn):\n"
        "    @functools.wraps(fn)\n"
        "    def twice(*args, **kwargs): return 2 * fn(*args, **kwargs)\n"
        "    return twice\n"
    )
    assert (await judged(backend, code, "@f\ndef g(x): return x\nassert g(2) == 4")).passed
