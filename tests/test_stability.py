"""Old names warn until the version in which they go; a plugin learns what has changed since the version it names."""

from __future__ import annotations

from typing import Any

import pytest

import agentgym
from agentgym.errors import UserError
from agentgym.stability import API, AgentgymDeprecationWarning, built_for, renamed, warn_renamed


def test_the_version_of_the_api_is_that_of_the_package() -> None:
    assert agentgym.__version__.split(".")[:2] == API.split(".")


def test_an_old_name_warns_where_it_is_used_until_its_version_has_come() -> None:
    library: dict[str, Any] = {"warn_renamed": warn_renamed}
    source = "def old_name():\n    warn_renamed('agentgym.Old', 'agentgym.New', goes='99.0')\n"
    exec(compile(source, "library.py", "exec"), library)
    with pytest.warns(AgentgymDeprecationWarning) as caught:
        library["old_name"]()
    assert str(caught[0].message) == "agentgym.Old is now agentgym.New; the old name goes in agentgym 99.0"
    assert caught[0].filename == __file__
    with pytest.raises(UserError, match=r"^a is now b$"):
        renamed("a", "b", goes=API, error=UserError)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [(None, ""), (API, ""), (f"{API}.7", ""), ("0.0", f"built for agentgym 0.0, this is {API}; in {API} c")],
)
def test_a_plugin_learns_what_has_changed_since_the_version_that_it_names(stated: str | None, expected: str) -> None:
    breaks = {"0.0": "a", API: "c", "9.0": "d"}
    assert built_for(stated, "kite", breaks=breaks) == expected


@pytest.mark.parametrize("stated", ["", "1", "9" * 5000 + ".0", "0.1b", "٣.١", 0.1, True, ("0", "1")])
def test_what_is_not_a_version_is_refused(stated: object) -> None:
    with pytest.raises(UserError, match=f'agentgym_api = "{API}"'):
        built_for(stated, "kite")
