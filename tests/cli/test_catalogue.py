"""`agentgym envs` and `agentgym plugins`."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.testing.agents import SayWords


def test_envs_are_listed_and_shown(cli) -> None:
    end = cli("envs")
    assert end.code == 0 and "counting" in end.out and "Counts up." in end.out
    assert end.out.endswith("fetched first:\n  counting  a counter\n")
    [row] = json.loads(cli("envs", "--json").out)
    assert row["requirements"] == "a counter" and row["max_turns"] == 3 and row["options"][0]["key"] == "start"
    end = cli("envs", "show", "counting", "--tasks", "2", "--env.options.start", "5")
    assert end.code == 0 and "what follows 6?" in end.out and "exact x 1" in end.out
    assert "  start: int (default 0)\n      the first number" in end.out and "needs: a counter" in end.out
    assert "[answer]" not in end.out and "[answer]\n6" in cli("envs", "show", "counting", "--answers",
                                                              "--env.options.start=5").out  # fmt: skip


def test_an_environment_of_two_plugins_is_marked_and_the_others_are_listed(cli) -> None:
    registry = cli.plugins()
    for name in ("one", "two"):
        registry.register(Doubled(), name)
    cli.plugins = lambda: registry
    end = cli("envs")
    assert end.code == 0 and "Counts up." in end.out and "several plugins" in end.out
    assert "'doubled' is provided by 'one' of this process - and by 'two' of this process -" in end.out
    counting, doubled = json.loads(cli("envs", "--json").out)
    assert counting["error"] == "" and "plugins.disabled" in doubled["error"]


class Doubled:
    @hookimpl
    def environments(self) -> dict[str, type]:
        return {"doubled": SayWords}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["show", "countng"], "Did you mean 'counting'?"),
        (["show"], "needs a name: counting"),
        (["show", "counting", "--env.options.stat", "5"], "no option 'stat'. Did you mean 'start'"),
        (["show", "counting", "--loop.steps", "5"], "only --env.options"),
        (["counting"], "invalid choice"),
    ],
)
def test_wrong_questions_about_envs_are_refused(cli, words, expected) -> None:
    end = cli("envs", *words)
    assert end.code == 2 and expected in end.err


def broken_plugins(disabled=()) -> PluginRegistry:
    point = importlib.metadata.EntryPoint(name="broken", value="agentgym_no_such_module", group="agentgym")
    return PluginRegistry([point], disabled)


def test_plugins_are_listed_without_importing_them(cli) -> None:
    cli.plugins = broken_plugins
    end = cli("plugins")
    assert end.code == 0 and "broken  found" in end.out and "No plugin was imported" in end.out


def test_checking_plugins_shows_what_fails_and_where(cli) -> None:
    cli.plugins = broken_plugins
    end = cli("plugins", "--check")
    assert end.code == 1 and "broken  failed" in end.out and "No module named" in end.out
    assert "Traceback" in cli("plugins", "--trace", "broken").out
    assert "Did you mean 'broken'?" in cli("plugins", "--trace", "brokn").err
    found = json.loads(cli("plugins", "--check", "--json").out)
    assert found[0]["status"] == "failed"


@pytest.mark.parametrize("kind", ["sandboxes", "sinks"])
def test_checking_makes_sandboxes_and_sinks_and_names_what_is_incomplete(cli, kind: str) -> None:
    class Nothing:
        @hookimpl
        def sandboxes(self) -> dict[str, object]:
            return {"hollow": lambda options: object()} if kind == "sandboxes" else {}

        @hookimpl
        def sinks(self) -> dict[str, object]:
            return {"hollow": lambda: None} if kind == "sinks" else {}

    def plugins(disabled=()) -> PluginRegistry:
        registry = PluginRegistry([], disabled)
        registry.register(Nothing(), "nothing")
        return registry

    cli.plugins = plugins
    end = cli("plugins", "--check")
    assert end.code == 1 and "nothing  failed" in end.out and "'hollow' of the plugin" in end.out


def test_checking_shows_what_plugins_provide(cli) -> None:
    end = cli("plugins", "--check")
    assert end.code == 0 and "environments:counting" in end.out and "sandboxes:echo" in end.out
