"""The tests' side: runs hidden test source against a proxy of the solution, which lives in another process.

Only this process holds the verdict's descriptor. Of the solution it sees plain values and proxies.
"""

from __future__ import annotations

import builtins
import json
import symtable
import sys
from collections.abc import Iterable

from .channel import Channel
from .frames import write_line
from .link import ENTRY, NAMES, ROOT, Gone, Link
from .operations import TESTS_MODULE, lendable
from .remote import Proxy
from .source import describe
from .usage import makes_objects, parsed
from .values import MAX_DEPTH, NotPlain

FILENAME = "<test>"
PRELUDE = "<prelude>"
_TOO_DEEP = f" nested more than {MAX_DEPTH} deep"  # the solution may have returned all of it but one level
_MODULES = getattr(sys, "stdlib_module_names", frozenset(sys.builtin_module_names))


def judge(payload: bytes, verdict_fd: int, solution_fd: int) -> int:
    """Run the prelude and then every test; on verdict_fd, a line for the prelude and one a test.

    A line is ["ok"], ["pass"], ["x", ...] for what was raised, ["t", ...] for a mistake of the test's own, or
    ["over"] when the solution said too much.
    """
    request = json.loads(payload)
    channel = Channel(solution_fd, request["answer_bytes"])
    tests = _Tests(channel, request["entry"], [request["prelude"], *request["sources"]])
    link = tests.link
    try:
        tests.run(request["prelude"], PRELUDE, tests.names)
    except Gone:
        write_line(verdict_fd, ["over"] if link.gone == "too much" else ["ok"])
        return 1
    except BaseException as error:
        fault = "s" if tests.leans_on_solution_for(error) else "x"
        write_line(verdict_fd, [fault, *describe(error, PRELUDE)[1:]])
        return 1
    tests.names.update(tests.own)
    write_line(verdict_fd, ["ok"])
    for source in request["sources"]:
        try:
            tests.take_names((), tests.names)  # the solution is loaded when it is first asked
            tests.run(source, FILENAME, dict(tests.names))
        except Gone:
            pass
        except NotPlain as error:
            if error.kind.endswith(_TOO_DEEP):
                write_line(verdict_fd, describe(ValueError(error.kind), FILENAME))
            else:
                write_line(verdict_fd, ["t", error.kind])
            continue
        except BaseException as error:
            if not link.gone:
                write_line(verdict_fd, describe(error, FILENAME))
                continue
        if link.gone:
            if link.gone == "too much":
                write_line(verdict_fd, ["over"])
            break
        write_line(verdict_fd, ["pass"])
    return 0


class _Tests:
    """The names that tests see, and the solution behind them."""

    def __init__(self, channel: Channel, entry: str, sources: list[str]) -> None:
        self._channel = channel
        self._nodes = parsed(sources)
        root, dot, _ = entry.partition(".")
        is_class = not dot and self._makes(entry, "candidate")
        theirs = {root}.union(*map(_free_names, sources)) - (_names(sources[0])[1] - {root})
        self.link = link = Link(channel, lendable, live=is_class or any(map(self._makes, theirs)))
        proxy = link.proxy(ENTRY, entry, is_class=is_class and entry[:1].isupper())
        whole = link.proxy(ROOT, root, is_class=root[:1].isupper()) if dot else proxy
        self.own: dict[str, object] = {root: whole, "candidate": proxy}
        self.names: dict[str, object] = {"__name__": TESTS_MODULE, **self.own}
        self._theirs: tuple[object, ...] | None = None
        self._num_harmless = 0  # questions whose answers no test code has met

    def _makes(self, name: str, *others: str) -> bool:
        return makes_objects(self._nodes, {name, *others}, is_class=name[:1].isupper())

    def leans_on_solution_for(self, error: BaseException) -> bool:
        """Whether it may be behind a failure: it was asked for more than its names, or has run, and may hold a port or
        have left a file. Only for a name that it does not have it can do nothing."""
        num_sent = self._channel.num_sent
        return num_sent > self._num_harmless or (num_sent > 0 and not isinstance(error, NameError))

    def run(self, source: str, filename: str, names: dict[str, object]) -> None:
        code = compile(source, filename, "exec", dont_inherit=True)
        missing = [name for name in _free_names(source) if name not in names]
        if missing:
            self.take_names(missing, names)
        exec(code, names)

    def take_names(self, missing: Iterable[str], names: dict[str, object]) -> None:
        """Names that neither the tests nor Python have are the solution's, as another class that it defines.

        Never a module's: its `math.isclose` would decide about itself.
        """
        solution = self.link.proxy(NAMES, "solution")
        if self._theirs is None:
            theirs = self.link.ask(solution, "call")
            if type(theirs) is not tuple:
                raise TypeError("the solution did not tell its names")
            self._theirs = theirs
            self._num_harmless += 1
        for name in missing:
            if name in self._theirs and name not in _MODULES:
                found = names[name] = self.link.ask(solution, "getattr", name)
                if type(found) is Proxy and name[:1].isupper() and self._makes(name):
                    object.__setattr__(found, "_is_class", True)


def _free_names(source: str) -> list[str]:
    """Names that source uses, and neither it nor Python defines."""
    used, bound = _names(source)
    return sorted(name for name in used - bound if not hasattr(builtins, name))


def _names(source: str) -> tuple[set[str], set[str]]:
    """Global names that source uses, and those that it binds."""
    used: set[str] = set()
    bound: set[str] = set()
    try:
        pending = [symtable.symtable(source, "", "exec")]
    except SyntaxError:
        pending = []  # reported where it is run
    while pending:
        table = pending.pop()
        pending += table.get_children()
        for symbol in table.get_symbols():
            if table.get_type() != "module" and not symbol.is_global():
                continue
            (bound if symbol.is_assigned() or symbol.is_imported() else used).add(symbol.get_name())
    return used, bound
