"""The pages name what exists, and every option of a sandbox is explained."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import agentgym
import agentgym.sandbox
from agentgym_sandboxes.bubblewrap.config import BubblewrapConfig
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.monty.config import MontyConfig
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["sandboxes.md", "writing_environments.md"])
def test_what_a_page_names_can_be_imported_from_agentgym(page: str) -> None:
    """Or the paragraph that names it says that it is in `agentgym.sandbox`: a reader has the name alone."""
    paragraphs = (DOCS / page).read_text().split("\n\n")
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", "\n\n".join(paragraphs), re.DOTALL))
    named = {name for name in re.findall(r"\b[A-Z]\w+", code) if hasattr(agentgym.sandbox, name)}
    explained = re.findall(r"\w+", " ".join(text for text in paragraphs if "agentgym.sandbox" in text))
    unexplained = {name for name in named - set(agentgym.__all__) if name not in explained}
    assert named and not unexplained


@pytest.mark.parametrize("config", [DockerConfig, BubblewrapConfig, MontyConfig, UnsafeSubprocessConfig])
def test_every_option_is_on_the_page(config: type) -> None:
    page = (DOCS / "sandboxes.md").read_text()
    assert not [field.name for field in dataclasses.fields(config) if f"`{field.name}`" not in page]
