"""The data of a run's page: its summary, and what each of its settings is."""

from __future__ import annotations

from typing import Any

from agentgym.config import texts_of
from agentgym.recipe import Recipe
from agentgym.tables.run import Run
from agentgym.tables.summary import run_json
from agentgym.yaml import flat


def page_json(run: Run, *, can_steer: bool) -> dict[str, Any]:
    """`/api/runs/{run}`."""
    found, texts = run_json(run, can_steer=can_steer), texts_of(Recipe, flat(run.config()))
    for key, one in found["config"].items():
        one["text"] = texts.get(key, "")
    return found
