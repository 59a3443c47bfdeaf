"""Statuses of tests in a log, and whether a row's tests are resolved: the rules of swebench 5.0.2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from agentgym.errors import UserError

Status = Literal["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"]
PARSERS: Final = ("pytest", "unittest")
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
_NAMES: Final = {"django": "unittest", "seaborn": "pytest", "matplotlib": "pytest"}  # parsers of swebench, by a word
_ORDER: Final = ("SKIPPED", "XFAIL", "PASSED", "ERROR", "FAILED")  # of two statuses of one test the later one counts
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY: Final = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL) (\S.*)")
_VERBOSE: Final = re.compile(r"(\S+\.py::\S.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)(?: \(.*\))?(?: +\[ *\d+%\])?")
_UNITTEST: Final = re.compile(r"(\S.*?) \.\.\. ?(.*)")
_HEADING: Final = re.compile(r"(FAIL|ERROR): (\S.*)")
_RAN: Final = re.compile(r"=+ .*\d+ (?:passed|failed|errors?|skipped|xfailed|deselected).*|Ran \d+ tests? in .*")
_WORDS: Final[Mapping[str, Status]] = {
    "ok": "PASSED",
    "fail": "FAILED",
    "error": "ERROR",
    "expected failure": "XFAIL",
    "unexpected success": "FAILED",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """resolved: all of both lists. broken: no test was seen to run. passed, stayed: shares of the two lists, 0 to 1.

    why: the first thing that was not as it has to be.
    """

    resolved: bool
    broken: bool = False
    passed: float = 0.0
    stayed: float = 0.0
    why: str = ""


def parser_of(name: str) -> str:
    """Of a parser's name in a row, as `parse_log_pytest_v2`. Raises UserError for one that is not supported."""
    words = name.lower()
    for word, parser in {**{one: one for one in PARSERS}, **_NAMES}.items():
        if word in words:
            return parser
    raise UserError(f"log_parser {name!r} is not supported, only those of {' and '.join(PARSERS)} are")


def statuses(log: str, parser: str) -> dict[str, Status]:
    """By a test's id. Of a test with several statuses the worst counts."""
    found: dict[str, Status] = {}
    lines = _COLOURS.sub("", log).splitlines()
    for test, status in _pytest(lines) if parser == "pytest" else _unittest(lines):
        if test not in found or _ORDER.index(status) > _ORDER.index(found[test]):
            found[test] = status
    return found


def section(log: str) -> str:
    """What the tests printed: all between the marks, where a script sets them."""
    first, last = log.find(START), log.rfind(END)
    return log[first:last] if 0 <= first < last else log


def graded(
    log: str, parser: str, *, must_pass: Iterable[str], must_stay: Iterable[str], exit_code: int | None
) -> Graded:
    """log: the tests' section. must_pass, must_stay: FAIL_TO_PASS and PASS_TO_PASS. exit_code: of their command."""
    found = statuses(log, parser)
    if not found and not any(_RAN.fullmatch(line.strip()) for line in _COLOURS.sub("", log).splitlines()):
        return Graded(resolved=False, broken=True, why="no test was seen to run")
    by_list = [
        [(test, _status(test, found, parser), accepted) for test in tests]
        for tests, accepted in ((must_pass, ("PASSED", "XFAIL")), (must_stay, ("PASSED", "XFAIL", "SKIPPED")))
    ]
    wrong = [f"{test}: {status or 'not in the log'}" for one in by_list for test, status, ok in one if status not in ok]
    shares = [sum(status in ok for _, status, ok in one) / len(one) if one else 1.0 for one in by_list]
    if not wrong and exit_code != 0 and not {"FAILED", "ERROR"} & {*found.values()}:
        wrong.append(f"exit code {exit_code}, though no test failed")
    why = f"{wrong[0]}{f', and {len(wrong) - 1} more' if wrong[1:] else ''}" if wrong else ""
    return Graded(resolved=not wrong, passed=shares[0], stayed=shares[1], why=why)


def _status(test: str, found: Mapping[str, Status], parser: str) -> Status | None:
    """An id that was cut inside its parameters stands for all that begin with it, if they agree."""
    if test in found:
        return found[test]
    if parser != "pytest":
        return None
    if test.count("[") > test.count("]"):
        agreed = {status for one, status in found.items() if one.startswith(test)}
        return agreed.pop() if len(agreed) == 1 else None
    return {_short(one): status for one, status in found.items()}.get(test) if "[" in test else None


def _short(test: str) -> str:
    """As rows of some repositories have it: of a path among the parameters the last name, and buttons as numbers."""
    head, bracket, options = test.partition("[")
    options = options.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
    if options.startswith("/") and not options.startswith("//") and "*" not in options:
        options = f"/{options.rsplit('/', 1)[-1]}"
    return head + bracket + options


def _pytest(lines: Iterable[str]) -> Iterable[tuple[str, Status]]:
    """Lines of the summary (`-rA`), and those of `--verbose`."""
    for line in lines:
        if match := _SUMMARY.fullmatch(line.rstrip()):
            status, rest = match.groups()
            yield rest.partition(" - ")[0] if status != "PASSED" else rest, status  # type: ignore[misc]
        elif match := _VERBOSE.fullmatch(line.rstrip()):
            yield match.groups()  # type: ignore[misc]


def _unittest(lines: Iterable[str]) -> Iterable[tuple[str, Status]]:
    """Lines of `--verbosity 2`, of which the status may come after what the test printed; and headings of failures."""
    waiting = ""
    for line in map(str.rstrip, lines):
        if match := _HEADING.fullmatch(line):
            yield match[2], "FAILED" if match[1] == "FAIL" else "ERROR"
        elif (match := _UNITTEST.fullmatch(line)) and (status := _word(match[2])):
            waiting = ""
            yield match[1], status
        elif match:
            waiting = match[1]
        elif waiting and (status := _word(line)):
            yield waiting, status
            waiting = ""


def _word(said: str) -> Status | None:
    words = said.strip().lower()
    return "SKIPPED" if words.startswith("skipped") else _WORDS.get(words)
