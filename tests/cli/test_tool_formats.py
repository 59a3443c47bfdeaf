"""`agentgym tools prove` shows the proof that a run makes, and a plugin's format is proved as ours are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentgym import ToolCall, hookimpl
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.recipe import ModelConfig
from agentgym.run.gym import open_renderer
from agentgym.text.tool_formats.base import Parsed, ToolFormat

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '\n' }}CALL {{ call.function.name }} {{ call.function.arguments | tojson }}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = re.compile(r"^CALL (\S+) (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Loud(ToolFormat):
    def parse(self, text: str) -> Parsed:
        calls = tuple(ToolCall(name, json.loads(arguments)) for name, arguments in CALL.findall(text))
        return Parsed(text.partition("CALL")[0].rstrip(), calls)

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return content + "".join(f"\nCALL {c.name} {json.dumps(dict(c.arguments), ensure_ascii=False)}" for c in calls)


@dataclass(frozen=True)
class Breaking(Loud):
    def parse(self, text: str) -> Parsed:
        raise LookupError("no such text")


class Formats:
    @hookimpl
    def tool_formats(self):
        here = "tests.cli.test_tool_formats"
        return {"breaking": f"{here}:Breaking", "gone": f"{here}:Gone", "loud": f"{here}:Loud"}


@pytest.fixture
def registry() -> PluginRegistry:
    registry = PluginRegistry([])
    registry.register(Formats(), "formats")
    return registry


@pytest.fixture
def template(tmp_path: Path) -> str:
    (tmp_path / "loud.jinja").write_text(TEMPLATE)
    return f"{tmp_path}/loud.jinja"


def test_auto_takes_the_plugins_format_that_the_template_writes(registry, template: str, caplog) -> None:
    renderer = open_renderer(ModelConfig(chat_template=template), policy_path(), registry)
    assert renderer.tool_use.format.inner == Loud() and renderer.tool_use.native
    assert "Gone" in caplog.text
    with pytest.raises(UserError, match="no known format reads back"):
        open_renderer(ModelConfig(chat_template=template), policy_path(), PluginRegistry([])).tool_use  # noqa: B018


def test_a_proof_is_shown_with_what_each_format_read(cli, registry, template: str) -> None:
    cli.plugins = lambda disabled=(): registry
    end = cli("tools", "prove", "builtin:tiny", "--chat-template", template)
    assert end.code == 0 and end.out.endswith("proved: loud\n")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in end.out.splitlines() if line and line[0] != " "}
    assert rows["loud"] == "yes yes the same calls" and rows["hermes"] == "no no no call"
    assert rows["breaking"].startswith("no no PluginError: the tool format") and "no such text" in rows["breaking"]


def test_a_format_that_is_not_proved_ends_with_1_and_a_misspelt_one_with_2(cli) -> None:
    end = cli("tools", "prove", "builtin:tiny", "--format", "mistral", "--json")
    assert end.code == 1 and json.loads(end.out)["formats"][0]["read"] == ["no call"]
    end = cli("tools", "prove", "builtin:tiny", "--format", "hermse")
    assert end.code == 2 and "Did you mean 'hermes'?" in end.err


def test_a_dry_run_checks_the_formats_name_also_where_no_tool_is_called(cli) -> None:
    end = cli.train("--dry-run", "--model.tool_format", "hermse")
    assert end.code == 2 and "no tool format 'hermse'. Did you mean 'hermes'?" in end.err
