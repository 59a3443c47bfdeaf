"""Whether the entry is a class is read in the tests; builtins that give away the tests' process aren't lent."""

from __future__ import annotations

import builtins

import pytest

from agentgym_sandboxes.agent.operations import lendable
from agentgym_sandboxes.agent.usage import makes_objects, parsed

NAMES = {"Stack", "candidate"}


@pytest.mark.parametrize(
    "source",
    [
        "s = Stack()\ns.push(1)",
        "assert Stack(3).size == 3",
        "def check(candidate):\n    s, t = candidate(), candidate()\n    t.push(1)",
        "if (s := Stack()):\n    s.pop()",
        "s: object = Stack()\nassert s.x == 1",
        "class Stack:\n    '''A stack.'''\n",
        "assert Stack(1) + 2 == Stack(3)",
        "s, t = Stack(1), Stack(2)\nassert 2 * s == t",
    ],
)
def test_a_call_whose_result_is_used_as_an_object_makes_one(source: str) -> None:
    assert makes_objects(parsed(["", source, "not python ("]), NAMES)


def test_what_one_source_makes_another_may_use() -> None:
    assert makes_objects(parsed(["s = Stack()", "assert s.size == 0"]), NAMES)
    assert not makes_objects(parsed(["s = Queue()", "assert s.size == 0"]), NAMES)


@pytest.mark.parametrize(
    "source",
    [
        "assert Stack(2) == 5",
        "assert Stack(2) == 5 == 2 + 3",
        "import math\nassert math.isclose(Stack(2), 5)",
        "x = Stack(2)\nassert abs(x - 5) < 1e-6 and ' '.join(str(x)).strip()",
        "other = Queue()\nother.push(Stack(1))",
        "not python (",
    ],
)
def test_a_call_whose_result_is_compared_does_not(source: str) -> None:
    assert not makes_objects(parsed([source]), NAMES)


def test_a_function_makes_objects_only_where_no_plain_value_has_what_is_used() -> None:
    assert makes_objects(parsed(["q = make()\nq.push(1)"]), {"make"}, is_class=False)
    for source in ("q = make()\nq.append(1)", "assert make().startswith('a')", "assert make() == make()"):
        assert not makes_objects(parsed([source]), {"make"}, is_class=False)


def test_what_tests_pass_on_gives_no_way_into_their_process() -> None:
    for name in ("eval", "exec", "getattr", "setattr", "globals", "vars", "open", "__import__"):
        assert lendable(getattr(builtins, name)) is None, name
    assert lendable(len) is not None and lendable(lambda: 1) is not None
