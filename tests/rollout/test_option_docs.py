"""What `agentgym envs show` says of an environment's options."""

from __future__ import annotations

from typing import Literal

from agentgym import Environment
from agentgym.rollout.option_docs import option_docs


class OurStyle:
    def __init__(self, *, source: Literal["a", "b"] = "a", path: str | None = None, low: int, high: int = 3) -> None:
        """source: where rows come from. path: of the file; a later
        line belongs to it.

        low, high: the range.
        Raises UserError for a value that is not allowed: always.
        """


class GoogleStyle:
    def __init__(self, size: int = 3, name: str = "x") -> None:
        """Make one.

        Args:
            size (int): How many: at least one.
            name: What it is called.
        """


class WithoutDocs(Environment):
    def __init__(self, **extra: object) -> None: ...

    def tasks(self, split, seed=0):
        return iter(())


def built_by_a_function(level=1):
    """Clauses: level, of 1 to 5; other things."""


def test_an_option_has_its_values_default_and_own_text() -> None:
    source, path, low, high = option_docs(OurStyle)
    assert (source.values, source.default, source.text) == ("a | b", "'a'", "where rows come from.")
    assert (path.values, path.default, path.text) == (
        "str | None", "None", "of the file; a later line belongs to it.",
    )  # fmt: skip
    assert (low.values, low.default, low.text) == ("int", "", "the range.")
    assert (high.default, high.text) == ("3", "the range.")


def test_arguments_of_a_google_docstring_are_read() -> None:
    size, name = option_docs(GoogleStyle)
    assert (size.text, name.text) == ("How many: at least one.", "What it is called.")


def test_an_option_without_an_entry_has_the_clause_that_begins_with_it() -> None:
    [level] = option_docs(built_by_a_function)
    assert (level.values, level.default, level.text) == ("", "1", "of 1 to 5")


def test_an_environment_without_options_has_none() -> None:
    assert option_docs(WithoutDocs) == []
