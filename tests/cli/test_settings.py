"""`agentgym settings`: what can be set, by section, component, plugin or word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym.cli.settings_page import page
from agentgym.hooks import PluginRegistry, hookimpl

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize(
    ("key", "shown", "hidden"),
    [
        ("", "rollout       Limits of one episode", "loop.steps"),
        ("rollout", "rollout.top_k: int (default 0)\n      Sample among", "loop.steps"),
        ("loop.steps", "Training steps", "loop.seed"),
        ("loss", "loss.gspo", "loss.temperature_positive"),
        ("loss.sapo", "loss.temperature_positive: float (default 1.0)", "loss.clip_low"),
        ("loss.gspo.clip_low", "(default 0.0003)", "loss.clip_high"),
        ("loss.agentgym.rl.losses.gspo:Gspo", "loss.clip_low: float (default 0.0003)", "loss.dual_clip"),
        ("generator.engine", "generator.engine.vllm", "tensor_parallel"),
        ("trainer.mismatch", "trainer.mismatch.engine.warn", "trainer.procs"),
        ("env.math", "env.options.tries: int (default 1)", "env.name"),
        ("sandbox.docker", "sandbox.options.slots: int (default 4)", "sandbox.name"),
        ("optimizer.lr", "(default from the model)", "optimizer.eps"),
        ("OVERLONG", "rollout.cut_turns", "loop.steps"),
    ],
)
def test_a_key_shows_its_settings_and_no_others(cli, key: str, shown: str, hidden: str) -> None:
    cli.plugins = PluginRegistry.discover
    end = cli("settings", key)
    assert end.code == 0 and shown in end.out and hidden not in end.out


class Broken:
    """A plugin whose agent needs what is not installed."""

    @hookimpl
    def agents(self) -> dict[str, str]:
        return {"parrot": "package_that_is_not_there.agents:Parrot"}


def test_a_broken_plugin_is_named_and_hides_no_others(cli) -> None:
    registry = PluginRegistry([])
    registry.register(Broken(), "broken")
    cli.plugins = lambda disabled=(): registry
    assert "agent.parrot  unavailable: " in cli("settings", "agent").out
    assert "rollout.max_retries" in cli("settings", "retries").out


def test_help_of_a_command_shows_a_section(cli) -> None:
    assert cli("train", "--help", "loop").out == cli("settings", "loop").out


def test_a_key_that_is_nothing_is_refused_with_the_nearest(cli) -> None:
    end = cli("settings", "loop.stepz")
    assert end.code == 2 and "'loop.steps'" in end.err


def test_json_has_all_of_a_setting(cli) -> None:
    [one] = json.loads(cli("settings", "loop.steps", "--json").out)
    assert one.keys() == {"key", "type", "default", "text"} and one["default"] == "30"


def test_the_page_is_what_the_fields_say() -> None:
    assert PAGE.read_text() == page(PluginRegistry.discover()), "run: agentgym settings --markdown > docs/settings.md"
