"""A solution in an interpreter, and what it answers; what differs from Python there is refused, never guessed."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from agentgym.sandbox import AssertCase, GradeRequest, LimitHit, Limits, RunStatus
from agentgym_sandboxes.agent import values
from agentgym_sandboxes.agent.values import Tree
from agentgym_sandboxes.host import wording
from agentgym_sandboxes.host.judging import Answer, NoValue, Returned
from agentgym_sandboxes.host.trees import same
from agentgym_sandboxes.host.wording import Raised
from agentgym_sandboxes.monty.failing import Ended, Unsupported, builtin_exception, raised_of, refuse_gaps, timed_out
from agentgym_sandboxes.monty.gaps import differs
from agentgym_sandboxes.monty.inside import ARGUMENTS, CALL, call_source
from agentgym_sandboxes.monty.output import Output

if TYPE_CHECKING:
    from pydantic_monty import MontySession

_MOST_COLLISIONS = 100_000  # of the elements of all sets and dicts in an answer: they are made in this process
GARBAGE = Raised("RuntimeError", "it changed how its answers are told")
_BASIC = frozenset(("l", "t", "s", "z", "d", "i", "b", "c"))  # tags of the codec
_RANGE = re.compile(r"range\((-?\d+), (-?\d+)(?:, (-?\d+))?\)")
_TEXT_OF_OBJECT = re.compile(
    r"<.* (?:object|at 0x)|<(?:class|function|module)|range\(|slice\(|dict_(?:keys|values|items)\("
)
_CROSSES_ELSEWHERE = frozenset((
    "range", "slice", "bytearray", "Decimal", "Fraction", "datetime", "date", "time", "timedelta", "timezone",
    "Counter", "OrderedDict", "defaultdict", "deque", "type", "ellipsis",
))  # fmt: skip


class Solution:
    """A loaded solution and what is left of its time."""

    def __init__(self, session: MontySession, request: GradeRequest, deadline_s: float) -> None:
        self._session = session
        self._request = request
        self._deadline_s = deadline_s
        self.end: Ended | Unsupported | None = None

    def call(self, args: tuple[object, ...], kwargs: dict[str, object], as_list: bool = False) -> tuple[Answer, Tree]:
        """Call the entry; its answer, and the arguments after it. Raises Ended when the solution ran out of
        time or crashed, Unsupported when it returned what crosses elsewhere."""
        from pydantic_monty import MontyError

        limits = self._request.limits
        if time.monotonic() > self._deadline_s:
            raise timed_out(limits)
        inputs = {"__args": list(args), "__kwargs": kwargs, "__as_list": as_list}
        source = CALL.format(call=call_source(self._request.entry))
        try:
            found = self._session.feed_run(source, inputs=inputs, print_callback=Output(0))
        except MontyError as error:
            return raised_of(error, limits, source), None
        tree = read_answers(found, limits)
        answer = answer_of(tree) if type(tree) is list and len(tree) == 3 else None
        if answer is None:
            return GARBAGE, None
        left = answer.left.tree if isinstance(answer, Returned) and isinstance(answer.left, Returned) else None
        return answer, left

    def _arguments(self) -> Tree:
        """The arguments of the call that raised; None when they hold what crosses elsewhere."""
        from pydantic_monty import MontyError

        try:
            found = self._session.feed_run(ARGUMENTS)
        except MontyError as error:
            raised_of(error, self._request.limits, ARGUMENTS)  # it may have ended
            raise builtin_exception(GARBAGE) from None
        left = _left(read_answers(found, self._request.limits))
        if left is None:
            raise builtin_exception(GARBAGE)
        return left.tree if isinstance(left, Returned) else None

    def proxy(self, *args: object, **kwargs: object) -> object:
        """What the tests call. A solution that was ended stays ended, whatever the test catches."""
        try:
            if self.end is not None:
                raise self.end
            _refuse_texts((args, tuple(kwargs.values())))
            answer, left = self.call(args, kwargs)
            if isinstance(answer, Raised):
                refuse_gaps([answer], self._request.code)
                left = self._arguments()
            if answer is GARBAGE:
                raise builtin_exception(GARBAGE)
            if left is None or not same(left, values.encode(args)):
                raise Unsupported("it changed an argument of a test's in place")
            if isinstance(answer, NoValue):
                raise Unsupported(f"it returned <{answer.kind}>, which only full Python hands to a test")
            if isinstance(answer, Returned):
                _refuse_kinds(answer.tree, "it returns what a test has no type for")
                if _cost(answer.tree) > _MOST_COLLISIONS:
                    raise timed_out(self._request.limits)
                return _value(answer.tree)
            assert isinstance(answer, Raised)
            raised = builtin_exception(answer)
        except (Ended, Unsupported) as error:
            self.end = error.with_traceback(None)  # which would lead here, and so keep the interpreter
            raise RuntimeError(str(error)) from None
        raise raised


def read_answers(found: object, limits: Limits) -> Tree:
    """What the text that left an interpreter holds; None when it is not ours. Raises Ended for a flood."""
    if type(found) is not str:
        return None
    if len(found) > limits.answer_mib << 20:
        hit = LimitHit(resource="answer_mib", used=len(found) / (1 << 20), allowed=limits.answer_mib)
        raise Ended(RunStatus.OUTPUT_LIMIT, wording.OUTPUT_TEXT, hit)
    try:
        return cast(Tree, json.loads(found))
    except (ValueError, RecursionError):
        return None


def answer_of(tree: Tree) -> Answer | None:
    """An answer as the source inside writes it; None when it is not ours."""
    if type(tree) is not list or len(tree) not in (2, 3):
        return None
    if tree[0] == "x":
        kind, message = tree[1], tree[-1]
        return Raised(kind, message) if type(kind) is str and type(message) is str else None
    answer = _value_in(tree[:2])
    if not isinstance(answer, Returned) or len(tree) == 2:
        return answer
    left = _left(tree[2])
    return None if left is None else Returned(answer.tree, left)


def _left(tree: Tree) -> Returned | NoValue | None:
    """The arguments after a call: a list inside, a tuple here."""
    left = _value_in(tree)
    if not isinstance(left, Returned):
        return left
    return Returned(["t", *left.tree[1:]]) if type(left.tree) is list and left.tree[:1] == ["l"] else None


def _value_in(tree: Tree) -> Returned | NoValue | None:
    """Raises Unsupported for a value that crosses elsewhere."""
    if type(tree) is not list or len(tree) != 2:
        return None
    tag, content = tree
    if tag == "r":
        return Returned(content)
    if type(content) is not str:
        return None
    if tag == "range" and (numbers := _RANGE.fullmatch(content)):
        return Returned(values.encode(range(*(int(number) for number in numbers.groups() if number))))
    if content in _CROSSES_ELSEWHERE:
        raise Unsupported(f"it returned a {content}")
    return NoValue(content)


def _value(tree: Tree) -> object:
    """Raises what a test that meets garbage does."""
    try:
        return values.decode(tree)
    except ValueError:
        raise builtin_exception(GARBAGE) from None


def _cost(tree: Tree) -> int:
    """How many pairs of elements collide in its sets and dicts; it stops to count when there are too many.

    So many comparisons it takes to make them, in this process, where nothing ends them.
    """
    if not isinstance(tree, list):
        return 0
    cost = 0
    for item in tree[1:]:
        cost += _cost(item)
        if cost > _MOST_COLLISIONS:
            return cost
    if tree[0] in ("s", "z", "d"):
        keys = tree[1::2] if tree[0] == "d" else tree[1:]
        try:
            counts = Counter(hash(_value(key)) for key in keys)
        except TypeError:
            raise builtin_exception(GARBAGE) from None
        cost += sum(count * (count - 1) // 2 for count in counts.values())
    return cost


def refuse_what_differs(request: GradeRequest, questions: list[list[Tree]]) -> None:
    """Raises Unsupported for what this interpreter would do otherwise than Python, without a word."""
    if request.entry.count(".") > 1 or not all(part.isidentifier() for part in request.entry.split(".")):
        raise Unsupported(f"the entry {request.entry!r}")
    for question in questions:
        _refuse_kinds(question, "a case passes what it has no type for")
        if _holds_set(question):
            raise Unsupported("a case passes a set, whose order is another one here")
    tests = [case.source for case in request.cases if isinstance(case, AssertCase)]
    for code in (request.code, request.prelude, *tests):
        if reason := differs(code):
            raise Unsupported(reason)


def _refuse_kinds(tree: Tree, why: str) -> None:
    for kind in _kinds(tree):
        if kind not in _BASIC:
            raise Unsupported(f"{why}: {kind}")


def _kinds(tree: Tree) -> Iterator[str]:
    if isinstance(tree, list):
        if tree and isinstance(tree[0], str):
            yield tree[0]
        for item in tree[1:] if tree and isinstance(tree[0], str) else tree:
            yield from _kinds(item)


def _holds_set(tree: Tree | list[Tree]) -> bool:
    """Whether a set of several elements is in it."""
    return isinstance(tree, list) and ((tree[:1] in (["s"], ["z"]) and len(tree) > 2) or any(map(_holds_set, tree)))


def _refuse_texts(value: object) -> None:
    """Raises Unsupported for an argument out of a test that came as the text of what it was, or as no value."""
    if isinstance(value, (set, frozenset)) and len(value) > 1:
        raise Unsupported("a test passes a set, whose order is another one here")
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _refuse_texts(item)
    elif isinstance(value, dict):
        _refuse_texts(list(value.items()))
    elif isinstance(value, str):
        if _TEXT_OF_OBJECT.match(value):
            raise Unsupported(f"a test passes what does not cross here: {wording.cut(value, 40)}")
    elif type(value) not in (type(None), bool, int, float, bytes, complex):
        raise Unsupported(f"a test passes what does not cross here: {type(value).__name__}")
