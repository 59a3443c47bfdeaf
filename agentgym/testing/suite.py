"""What the suites share: each test holds one promise of a docstring, and a failure quotes it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import operator
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar
from unittest import SkipTest

S = TypeVar("S", bound="Suite")
T = TypeVar("T")
PROMISE = "__agentgym_promise__"


class Suite:
    """Inherited by the suites, whose subclasses pytest collects: their names begin with `Test`, and `make` is theirs.

    The tests of a class share one event loop, and are plain functions: no plugin of pytest is needed.
    """

    _runner: ClassVar[asyncio.Runner | None] = None
    _shared: ClassVar[dict[str, Any]]
    _exits: ClassVar[AsyncExitStack]

    @classmethod
    def setup_class(cls) -> None:
        cls._runner, cls._shared, cls._exits = asyncio.Runner(), {}, AsyncExitStack()

    @classmethod
    def teardown_class(cls) -> None:
        assert cls._runner is not None
        with cls._runner as runner:
            runner.run(cls._exits.aclose())
        cls._runner = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end in the event loop of this class."""
        assert self._runner is not None, "the suite runs under pytest, which calls setup_class"
        return self._runner.run(work)


def promise(where: str, text: str) -> Callable[[Callable[[S], Any]], Callable[[S], None]]:
    """Marks a test, also an `async def`, as that of a promise: a sentence of the docstring at an import path."""

    def mark(test: Callable[[S], Any]) -> Callable[[S], None]:
        @functools.wraps(test)
        def run(self: S) -> None:
            try:
                done = test(self)
                if inspect.iscoroutine(done):
                    self.run(done)
            except (SkipTest, NotImplementedError):  # what is not offered; a subclass that defines too little
                raise
            except Exception as error:
                failed = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                raise AssertionError(f"{failed}\nbroken promise of {where.replace(':', '.')}: {text!r}") from error

        setattr(run, PROMISE, (where, text))
        return run

    return mark


def promises(suite: type[Suite]) -> dict[str, tuple[str, str]]:
    """Of each test of a suite: the import path of a docstring, and what it says there."""
    tests = {name: getattr(suite, name) for name in dir(suite) if name.startswith("test_")}
    return {name: getattr(test, PROMISE) for name, test in tests.items()}


def docstring(path: str) -> str:
    """The docstring at an import path, `package.module:Class.method`, on one line."""
    module, _, name = path.partition(":")
    found = operator.attrgetter(name)(importlib.import_module(module))
    return " ".join((inspect.getdoc(found) or "").split())


def skip(why: str) -> NoReturn:
    """The component does not offer this; pytest reports the test as skipped."""
    raise SkipTest(why)


def expect(what: str, found: object, expected: object) -> None:
    """Raises AssertionError with both unless they are equal."""
    assert found == expected, f"{what}: {found!r:.500}, not {expected!r:.500}"


def children() -> set[str]:
    """The numbers of this process's children; of none where there is no /proc."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
