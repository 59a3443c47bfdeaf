"""What goes over what in a recipe, and where each value comes from."""

from __future__ import annotations

import pytest

from agentgym.jobs.layers import layered
from agentgym.recipe import build_recipe


def test_the_command_line_goes_over_the_file_and_both_over_what_fits_the_model() -> None:
    base = {"optimizer": {"lr": 1e-3, "eps": 1e-6}, "loop": {"steps": 5}, "trainer": None}
    given = {"optimizer": {"lr": 2e-3, "eps": 1e-6}, "loop": {"steps": 5, "seed": 1}, "trainer": None}
    mapping, sources = layered(given, base=base, where="r.yaml")
    recipe = build_recipe(mapping)
    assert (recipe.optimizer.lr, recipe.optimizer.eps, recipe.loop.seed) == (2e-3, 1e-6, 1)
    assert recipe.trainer.seq_len == 512, "the tiny policy's own"
    assert sources["optimizer.lr"] == sources["loop.seed"] == "command line"
    assert sources["optimizer.eps"] == sources["loop.steps"] == "r.yaml"
    assert sources["trainer.seq_len"] == "recipe of builtin:tiny"
    assert "loop.group_size" not in sources, "a default"
    assert base["optimizer"] == {"lr": 1e-3, "eps": 1e-6}, "what is given is left as it was"


@pytest.mark.parametrize("wrong", [{"trainer": 5}, {"model": []}, {"model": {"path": 5}}])
def test_a_wrong_section_is_left_for_the_builder_to_explain(wrong: dict[str, object]) -> None:
    mapping, _ = layered(wrong, base=wrong, where="r.yaml")
    assert mapping.items() >= wrong.items()
