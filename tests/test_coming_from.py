"""What the pages for those who come from elsewhere name as ours is ours: every field exists, every setting builds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgym.config import apply_overrides, describe
from agentgym.recipe import Recipe, describe_recipe
from agentgym.run.layers import finish_recipe
from agentgym.run.torchforge import SETTINGS as OF_TORCHFORGE

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["from_trl", "from_verl", "from_torchforge"]
FIELDS = {info.key for info in describe_recipe("train")}
SECTIONS = {key.partition(".")[0] for key in FIELDS}
SETTING = re.compile(r"([a-z_]+)(?:\.[a-z_]+)*(?:: .*)?")


def settings(page: str) -> list[str]:
    """What stands between backticks in the right column and begins with a section of a recipe."""
    rows = re.findall(r"^\|(.*)\|(.*)\|$", (DOCS / f"{page}.md").read_text(), re.M)
    named = [text for _, right in rows for text in re.findall(r"`([^`]+)`", right)]
    return [text for text in named if (match := SETTING.fullmatch(text)) and match[1] in SECTIONS]


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_of_ours_builds(page: str) -> None:
    found = settings(page)
    assert len(found) > 12
    for text in found:
        key, colon, value = text.partition(": ")
        if colon:
            finish_recipe(apply_overrides({}, [f"{key}={value}"]))
        else:
            known = key in FIELDS or any(field.startswith(f"{key}.") for field in FIELDS)
            assert known, f"{page}: a recipe has no field {key!r}"


def test_recipes_of_torchforge_are_answered_with_fields_that_exist() -> None:
    known = {info.key for info in describe(Recipe)}
    aliases = {"generator.vllm", "env"}
    assert set(OF_TORCHFORGE.values()) - known == aliases
