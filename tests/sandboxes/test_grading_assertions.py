"""Hidden tests meet what a solution made as if they were at home with it, and no object talks them round.

Backends that run all of Python pass everything here; another one may say that it can't run the code.
"""

from __future__ import annotations

import pytest
from verdicts import errors, judged

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import SandboxBackend

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_tests_see_what_a_solution_changed_in_their_own_objects(backend: SandboxBackend) -> None:
    code = "def f(a, b=None):\n    a[0].append(9)\n    if b is not None:\n        b['k'] = {1}\n    return a\n"
    verdict = await judged(
        backend,
        code,
        "grid = [[1], [2]]\nrow = grid[0]\ncandidate(grid)\nassert row == [1, 9] and grid == [[1, 9], [2]]",
        "row = [0]\ngrid = [row, row]\ncandidate(grid)\nassert grid == [[0, 9], [0, 9]] and grid[1] is row",
        "d = {}\ncandidate([[1]], d)\nassert d == {'k': {1}}",
        "grid = [[1]]\nassert candidate(grid) is grid",
        "grid = [[1]]\ngrid.append(grid)\ncandidate(grid)\nassert grid[1] is grid and grid[0] == [1, 9]",
        "grid = [[1]]\ncandidate(grid)\nassert grid == [[1]]",
    )
    assert [not error for error in errors(verdict)] == [True, True, True, True, True, False]


async def test_every_mutable_type_is_changed_in_place(backend: SandboxBackend) -> None:
    code = (
        "def f(x):\n"
        "    kind = type(x).__name__\n"
        "    if kind == 'set': x.add(2)\n"
        "    elif kind == 'bytearray': x[0] = 65\n"
        "    elif kind == 'deque': x.rotate(1)\n"
        "    elif kind == 'list': x[0] = True\n"
        "    else: x['n'] = -0.0\n"
    )
    verdict = await judged(
        backend,
        code,
        "s = {1}\ncandidate(s)\nassert s == {1, 2}",
        "b = bytearray(b'xy')\ncandidate(b)\nassert b == b'Ay'",
        "from collections import deque\nq = deque([1, 2, 3], 3)\ncandidate(q)\nassert list(q) == [3, 1, 2]",
        "x = [1]\ncandidate(x)\nassert x[0] is True",
        "x = {'n': 0.0}\ncandidate(x)\nassert str(x['n']) == '-0.0'",
        "from collections import Counter\nc = Counter('ab')\ncandidate(c)\nassert c == {'a': 1, 'b': 1, 'n': 0}",
    )
    assert errors(verdict) == [""] * 6


async def test_what_was_changed_before_an_exception_is_seen(backend: SandboxBackend) -> None:
    code = "def f(xs):\n    xs.append(1)\n    raise KeyError('k')\n"
    caught = "try:\n    f(xs)\nexcept KeyError as e:\n    assert e.args == ('k',)\n"
    test = f"xs = []\n{caught}assert xs == [1]"
    assert errors(await judged(backend, code, test)) == [""]


STACK = """
class Empty(IndexError):
    pass
class Node:
    def __init__(self, value): self.value = value
class Stack:
    limit = 9
    def __init__(self, *items): self.items = list(items)
    def push(self, x): self.items.append(x)
    def pop(self):
        if not self.items: raise Empty("nothing left")
        return self.items.pop()
    def node(self): return Node(self.items[-1])
    def each(self, fn): return [fn(x) for x in self.items]
    @property
    def top(self): return self.items[-1]
    @staticmethod
    def title(): return "stack"
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, i): return self.items[i]
    def __contains__(self, x): return x in self.items
    def __eq__(self, other): return isinstance(other, Stack) and other.items == self.items
    def __hash__(self): return hash(tuple(self.items))
    def __lt__(self, other): return self.items < other.items
    def __add__(self, other): return Stack(*self.items, *(other if isinstance(other, Stack) else [other]))
    def __radd__(self, other): return Stack(other, *self.items)
    def __iadd__(self, other):
        self.items.append(other)
        return self
    def __enter__(self): return self
    def __exit__(self, kind, error, trace):
        self.closed = True
        return kind is KeyError
    def __repr__(self): return f"Stack({self.items})"
"""


@pytest.mark.parametrize(
    "test",
    [
        "s = candidate()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and s.pop() == 1",
        "s = Stack(1, 2)\nassert len(s) == 2 and list(s) == [1, 2] and s[0] == 1 and 2 in s and 5 not in s and s",
        "assert not Stack() and bool(Stack(1)) is True",
        "assert Stack(1) == Stack(1) and Stack(1) != Stack(2) and Stack(1) < Stack(2)",
        "assert sorted([Stack(2), Stack(1)]) == [Stack(1), Stack(2)] and len({Stack(1), Stack(1)}) == 1",
        "assert Stack(1) + Stack(2) == Stack(1) + 2 == 1 + Stack(2)\nassert Stack(1).top == 1",
        "s = t = Stack()\ns += 1\nassert t is s and t.items == [1]",
        "with Stack(1) as s:\n    assert s.top == 1\nassert s.closed",
        "with Stack() as s:\n    raise KeyError('k')\nassert s.closed",
        "try:\n    with Stack():\n        raise ValueError('v')\nexcept ValueError:\n    pass\nelse:\n    assert 0",
        "try:\n    Stack().pop()\nexcept IndexError as e:\n    assert repr(e) == \"Empty('nothing left')\""
        "\nelse:\n    assert 0",
        "try:\n    Stack().pop()\nexcept Empty:\n    pass\nelse:\n    assert 0",
        "n = Stack(3).node()\nassert n.value == 3 and isinstance(n, Node) and not isinstance(n, Stack)",
        "n = Stack(3).node()\nn.value = 4\nassert n.value == 4 and hasattr(n, 'value') and not hasattr(n, 'other')",
        "assert Stack(1, 2).each(lambda x: x * 2) == [2, 4] and Stack(1).each(str) == ['1']",
        "assert Stack.title() == 'stack' and Stack.limit == 9 and Stack(7).top == 7",
        "assert repr(Stack(1)) == str(Stack(1)) == f'{Stack(1)}' == 'Stack([1])'",
        "import copy\ns = Stack(1)\nt = copy.deepcopy(s)\nt.push(2)\nassert len(s) == 1 and len(t) == 2",
    ],
)
async def test_a_class_is_tested_through_its_instances(backend: SandboxBackend, test: str) -> None:
    assert errors(await judged(backend, STACK, test, entry="Stack")) == [""]


async def test_an_exception_of_the_solutions_own_keeps_its_name(backend: SandboxBackend) -> None:
    verdict = await judged(backend, STACK, "Stack().pop()", "assert Stack(1).pop() == 2", entry="Stack")
    assert errors(verdict) == ["raised Empty: nothing left", "assertion failed: assert Stack(1).pop() == 2"]


LIAR = """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __contains__ = __lt__
    def __hash__(self): return hash(5)
    def __sub__(self, other): return 0.0
    __rsub__ = __mod__ = __sub__
    def __abs__(self): return 0.0
    def __bool__(self): return True
    def __iter__(self): return iter([self])
    def __instancecheck__(self, other): return True
    __class__ = int
def f(): return Liar()
"""


async def test_an_object_that_claims_to_equal_everything_equals_nothing(backend: SandboxBackend) -> None:
    claims = [
        "x == 5", "5 == x", "not x != 5", "x < 6", "6 > x", "x <= 5", "abs(x - 5) < 1e-6", "abs(5 - x) < 1e-6",
        "x in [5]", "5 in x", "x in {5}", "x in {5: 1}", "{x} == {5}", "[x] == [5]", "(1, x) == (1, 5)",
        "{'k': x} == {'k': 5}", "any(x == y for y in range(9))", "type(x) is int", "isinstance(x, int)",
        "x % 5 == 0", "max(x, 5) == 5", "x.__eq__(5)", "x == 'five'", "x == [5]", "[5].index(x) == 0",
        "[5].count(x) == 1", "list(x) == [5]", "x is True", "__import__('operator').eq(x, 5)",
    ]  # fmt: skip
    verdict = await judged(backend, LIAR, *(f"x = candidate()\nassert {claim}" for claim in claims))
    assert [claim for claim, result in zip(claims, verdict.results, strict=True) if result.passed] == []


async def test_what_a_test_expects_never_reaches_the_solution(backend: SandboxBackend) -> None:
    code = (
        "seen = []\n"
        "class Spy:\n"
        "    def __getattribute__(self, name):\n        seen.append(name)\n"
        "        return object.__getattribute__(self, name)\n"
        + "".join(
            f"    def __{name}__(self, *args):\n        seen.append(args)\n        return NotImplemented\n"
            for name in ("eq", "ne", "lt", "gt", "le", "ge", "sub", "rsub", "contains", "instancecheck")
        )
        + "    def __hash__(self): return 1\n"
        "def f(what):\n    return Spy() if what == 'spy' else repr(seen)\n"
    )
    compared = "".join(
        f"try:\n    {claim}\nexcept TypeError:\n    pass\n"
        for claim in ("x == 77", "77 == x", "x < 77", "x - 77", "77 - x", "77 in x", "x in [77]", "x in {77}")
    )
    verdict = await judged(backend, code, f"x = candidate('spy')\n{compared}assert '77' not in str(candidate('seen'))")
    assert errors(verdict) == [""]


CHANGING = """
class Changing:
    def __init__(self, xs): self.xs, self.looks = xs, 0
    def __iter__(self):
        self.looks += 1
        return iter([0] * len(self.xs) if self.looks == 1 else self.xs)
    def __len__(self): return 9
    def __bool__(self): return False
    def __getitem__(self, index): return 7
    def __next__(self): return 7
    def count(self, x): return 1
    def __str__(self): self.looks += 1; return str(self.looks)
class List(Changing, list):
    def __init__(self, xs): list.__init__(self, [0] * len(xs)); Changing.__init__(self, xs)
class Once(Changing):
    def __iter__(self): return self
    def __next__(self):
        self.looks += 1
        if self.looks % 2: raise StopIteration
        return 7
def f(xs): return List(xs)
def g(xs): return Changing(xs)
def h(xs): return Once(xs)
"""


async def test_a_value_that_was_returned_is_the_same_at_every_look(backend: SandboxBackend) -> None:
    reads = (
        "assert list(x) == list(x) == [0, 0, 0] and sorted(x) == [0, 0, 0] and len(x) == 3 and x and 3 not in x",
        "assert [x[0], x[-1], *x[1:]] == [0, 0, 0, 0] and list(reversed(x)) == [0, 0, 0] == [*x]",
        "assert str(x) == str(x)",
    )
    for entry in "fg":
        verdict = await judged(backend, CHANGING, *(f"x = candidate([3, 1, 2])\n{read}" for read in reads), entry=entry)
        assert errors(verdict) == ["", "", ""], (entry, verdict)
    verdict = await judged(backend, CHANGING, "x = h(1)\nassert list(x) == list(x) == [] == next(x, [])", entry="h")
    assert errors(verdict) == [""]
    verdict = await judged(backend, CHANGING, "assert g([1]).count(5) == 1", "assert abs(g(1)) > -1", entry="g")
    assert all(errors(verdict))


async def test_a_value_has_no_methods_of_the_solutions_even_of_builtin_types(backend: SandboxBackend) -> None:
    code = (
        "from collections import namedtuple\nclass Typed:\n    index, count = int, bool\n"
        "Named = namedtuple('Named', 'index count x')\n"
        "def f(x): return Typed() if x is None else Named(x, 7, 4)\n"
    )
    tests = ("f(None).index(3) == 3", "f(None).count(3) == 1", "f(int).index(3) == 3", "f(bool).index(3)")
    verdict = await judged(backend, code, *(f"assert {test}" for test in tests), "assert f(1).count == 7")
    assert [result.passed for result in verdict.results] == [False] * 4 + [True]


async def test_how_builtins_are_used_says_nothing_about_what_is_returned(backend: SandboxBackend) -> None:
    test = "x = g([3, 1, 2])\nassert type(x).__name__\nassert list(x) == list(x) == [0, 0, 0]"
    assert errors(await judged(backend, CHANGING, test, entry="g")) == [""]


async def test_a_test_double_keeps_what_its_class_defines(backend: SandboxBackend) -> None:
    double = (
        "class Spy:\n    __slots__ = ('left',)\n    limit = 3\n    def ok(self): return False\n"
        "class Node:\n    next = None\n    def __init__(self): self.value, self.hook = 1, lambda: 0\n"
    )
    code = "def f(it, name, value=None):\n    setattr(it, name, value) if value is not None else delattr(it, name)\n"
    refused = (("Spy", "'ok', len"), ("Spy", "'ok', 1"), ("Spy", "'limit', 4"), ("Spy", "'ok'"), ("Node", "'hook', 1"))
    allowed = (("Spy", "left"), ("Node", "value"), ("Node", "new"))
    verdict = await judged(
        backend,
        code,
        *(f"it = {kind}()\ntry:\n    candidate(it, {what})\nexcept AttributeError:\n    pass\nelse:\n    assert 0\n"
          "assert not hasattr(it, 'ok') or it.ok() is False" for kind, what in refused),
        *(f"it = {kind}()\ncandidate(it, {name!r}, 4)\nassert it.{name} == 4" for kind, name in allowed),
        prelude=double,
    )  # fmt: skip
    assert errors(verdict) == [""] * (len(refused) + len(allowed))


async def test_what_a_function_makes_is_live_where_tests_use_it_as_an_object(backend: SandboxBackend) -> None:
    code = (
        "class Queue:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def __len__(self): return len(self.items)\n    def __iter__(self): return iter(self.items)\n"
        "def f(): return Queue()\n"
    )
    test = "q = candidate()\nfor n in (1, 2):\n    q.push(n)\n    assert len(q) == n and list(q)[-1] == n and n in q"
    assert errors(await judged(backend, code, test)) == [""]


async def test_a_solution_gets_nothing_but_calls_and_items_from_what_it_is_lent(backend: SandboxBackend) -> None:
    looks = [
        "g.gi_frame", "g.__globals__", "g.__code__", "g.__class__.mro", "g.__self__",
        "g.__init__.__globals__",
    ]  # fmt: skip
    code = "def f(g, how):\n    return [" + ", ".join(f"lambda g: {look}" for look in looks) + "][how](g)\n"
    tests = []
    for index in range(len(looks)):
        for lent in ("(i for i in [secret])", "lambda: secret", "Own()"):
            tests.append(
                "secret = 'k77'\nclass Own:\n    def __init__(self): self.open = 1\n"
                f"found = candidate({lent}, {index})\nassert secret in str(found)"
            )
    verdict = await judged(backend, code, *tests)
    assert not any(result.passed for result in verdict.results)


async def test_tests_lend_functions_iterators_and_objects_of_their_own(backend: SandboxBackend) -> None:
    verdict = await judged(
        backend,
        "def f(g, xs): return [g(x) for x in xs]\n",
        "assert candidate(lambda x: x + 1, [1, 2]) == [2, 3]",
        "seen = []\ncandidate(seen.append, (i for i in [1, 2]))\nassert seen == [1, 2]",
        "assert candidate(str, iter([1])) == ['1'] and candidate(abs, {-1: 2}.keys()) == [1]",
        "class P:\n    def __init__(self): self.v = 3\n    def twice(self): return 2 * self.v\n"
        "p = P()\nassert candidate(lambda x: x, [p])[0] is p",
        "def refuse(x):\n    raise LookupError('mine')\n"
        "try:\n    candidate(refuse, [1])\nexcept LookupError as e:\n    assert str(e) == 'mine'\nelse:\n    assert 0",
        "assert candidate(lambda x: candidate(lambda y: y * x, [10]), [1, 2]) == [[10], [20]]",
    )
    assert errors(verdict) == [""] * 6
    linked = "def f(head):\n    head.next.value += 1\n    head.next = None\n    return head\n"
    test = (
        "class Node:\n    def __init__(self, value, next=None):\n        self.value, self.next = value, next\n"
        "tail = Node(2)\nhead = Node(1, tail)\nassert candidate(head) is head and head.next is None and tail.value == 3"
    )
    assert errors(await judged(backend, linked, test)) == [""]


async def test_a_test_that_passes_what_cannot_cross_is_its_authors_mistake(backend: SandboxBackend) -> None:
    with pytest.raises(UserError, match="a test passes a module to the solution"):
        await judged(backend, "def f(x): return 1\n", "import re\nassert candidate(re) == 1")


async def test_a_coroutine_is_awaited_by_the_test(backend: SandboxBackend) -> None:
    code = "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1\n"
    assert (await judged(backend, code, "import asyncio\nassert asyncio.run(candidate(1)) == 2")).passed


async def test_helper_functions_of_a_prompt_are_there_for_the_tests(backend: SandboxBackend) -> None:
    prompt = 'def encode(s):\n    return s[::-1]\n\ndef f(s):\n    """Decode what was encoded with encode."""\n'
    verdict = await judged(
        backend,
        "def f(s):\n    return s[::-1]\n",
        "assert candidate(encode('abc')) == 'abc' and f(encode('x')) == 'x'",
        "assert candidate('abc') is None",
        prelude=prompt,
    )
    assert [result.passed for result in verdict.results] == [True, False]


async def test_a_prelude_may_use_other_names_of_the_solution(backend: SandboxBackend) -> None:
    code = "class Node:\n    def __init__(self, v): self.v = v\ndef isclose(a, b): return True\ndef f(n): return n.v\n"
    verdict = await judged(
        backend, code, "assert candidate(root) == 4", "assert math.isclose(1, 2)", prelude="root = Node(4)"
    )
    assert errors(verdict) == ["", "raised NameError: name 'math' is not defined"]
    broken = code.replace("self.v = v", "raise OSError('no node')")
    verdict = await judged(backend, broken, "assert candidate(root) == 4", prelude="root = Node(4)")
    assert errors(verdict) == ["raised OSError: no node"]
    with pytest.raises(InfraError, match="prelude failed: NameError"):
        await judged(backend, "def f(n): return 4\n", "assert candidate(root) == 4", prelude="root = Node(4)")


async def test_a_test_that_is_no_python_is_not_the_solutions_failure(backend: SandboxBackend) -> None:
    good = "def f(x):\n    return x\n"
    with pytest.raises(InfraError, match="a test can't be compiled: SyntaxError"):
        await judged(backend, good, "assert f(1) == 1", "assert f([")
    verdict = await judged(backend, "def f(x):\n    raise SyntaxError('mine')\n", "assert f(1) == 1")
    assert errors(verdict) == ["raised SyntaxError: mine (line 1)"]
