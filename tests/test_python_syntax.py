"""Source is parsed while other threads parse, too; mistakes in it are still said as Python says them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from agentgym.python_syntax import ATTEMPTS, parse_expression, parse_module

ROOT = Path(__file__).parents[1]
MISMATCH = SystemError("AST constructor recursion depth mismatch (before=42, after=38)")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[SystemError]:
    """What the next calls of `ast.parse` raise, each once; then it works."""
    errors: list[SystemError] = []
    parse = ast.parse

    def parse_or_fail(*given: Any, **more: Any) -> Any:
        if errors:
            raise errors.pop()
        return parse(*given, **more)

    monkeypatch.setattr(ast, "parse", parse_or_fail)
    return errors


def test_what_another_thread_disturbed_is_parsed_again(failing: list[SystemError]) -> None:
    failing += [MISMATCH] * 2
    assert ast.unparse(parse_module("x  = 1")) == "x = 1" and failing == []
    failing += [MISMATCH]
    assert ast.literal_eval(parse_expression("(1,  'a')")) == (1, "a") and failing == []


def test_an_error_that_stays_is_raised(failing: list[SystemError]) -> None:
    failing += [MISMATCH] * ATTEMPTS
    with pytest.raises(SystemError, match="recursion depth mismatch"):
        parse_module("x = 1")


@pytest.mark.parametrize(
    ("code", "error"), [("x =", SyntaxError), ("\0", (ValueError, SyntaxError)), ("x = 1", SyntaxError)]
)
def test_mistakes_are_pythons(code: str, error: Any) -> None:
    with pytest.raises(error):
        parse_expression(code)


def test_nothing_that_runs_beside_other_threads_parses_by_itself() -> None:
    """The command line parses before a run begins, and what runs inside a sandbox has one thread."""
    sources = [file for room in ("agentgym", "envs", "plugins", "sandboxes") for file in (ROOT / room).rglob("*.py")]
    alone = ("agentgym/cli/", "sandboxes/agentgym_sandboxes/agent/", "sandboxes/agentgym_sandboxes/audit/")
    names = {str(file.relative_to(ROOT)) for file in sources if "ast.parse(" in file.read_text()}
    assert {name for name in names if not name.startswith(alone)} == {"agentgym/python_syntax.py"}
