"""The pages name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agentgym
import agentgym.sandbox

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["sandboxes.md", "writing_environments.md"])
def test_what_a_page_names_can_be_imported_from_agentgym(page: str) -> None:
    """Or the paragraph that names it says that it is in `agentgym.sandbox`: a reader has the name alone."""
    paragraphs = (DOCS / page).read_text().split("\n\n")
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", "\n\n".join(paragraphs), re.DOTALL))
    found = {name: getattr(agentgym.sandbox, name, None) for name in re.findall(r"\b[A-Z]\w+", code)}
    named = {name for name, one in found.items() if str(getattr(one, "__module__", "")).startswith("agentgym")}
    explained = re.findall(r"\w+", " ".join(text for text in paragraphs if "agentgym.sandbox" in text))
    unexplained = {name for name in named - set(agentgym.__all__) if name not in explained}
    assert named and not unexplained
