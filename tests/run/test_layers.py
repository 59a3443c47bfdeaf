"""What goes over what in a recipe, and where each value comes from."""

from __future__ import annotations

import pytest

from agentgym.errors import UserError
from agentgym.recipe import build_recipe
from agentgym.run.layers import finish_recipe, layered


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


BASE = {"loop": {"steps": 5, "seed": 1}, "trainer": {"procs": 1}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loop": {"steps": "five", "seed": 1}}, r"^command line: loop\.steps is 'five'"),
        ({"loop": {"steps": 5, "seed": 1, "stepz": 5}}, r"^command line: there is no field 'loop\.stepz'"),
        ({"loop": {"steps": -5, "seed": 1}}, r"^r\.yaml, command line: loop\.steps -5"),
        ({"generator": {"engine": "nativ"}}, r"^command line: generator\.engine\.name: .*'nativ'"),
        ({"services": {"trainr": {}}}, r"^command line: there is no 'services\.trainr'"),
        ({"sft": {"data": "x"}}, r"^command line: the section 'sft' is for supervised fine-tuning: use `agentgym sft`"),
    ],
)
def test_a_mistake_on_the_command_line_is_not_blamed_on_the_file(changed: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        finish_recipe(BASE | changed, base=BASE, where="r.yaml", command="train")


def test_a_mistake_of_the_file_is_the_files_whatever_the_command_line_sets() -> None:
    base = {"loop": {"steps": "five"}, "trainer": {"procs": 1}}
    given = base | {"trainer": {"procs": 2}}
    with pytest.raises(UserError, match=r"^r\.yaml: loop\.steps is 'five'"):
        finish_recipe(given, base=base, where="r.yaml", command="train")


def test_a_mistake_of_two_fields_is_the_files_where_the_command_line_sets_neither() -> None:
    base = {"generator": {"engine": {"name": "vllm", "sleep": True}}, "loop": {"max_staleness": 1}}
    with pytest.raises(UserError, match=r"^r\.yaml: generator\.engine\.sleep takes loop\.max_staleness 0"):
        finish_recipe(base, base=base, where="r.yaml", command="train")  # though the model's defaults add sections
    changed = base | {"loop": {"max_staleness": 2}}
    with pytest.raises(UserError, match=r"^r\.yaml, command line: generator\.engine\.sleep"):
        finish_recipe(changed, base=base, where="r.yaml", command="train")


def test_what_only_reinforcement_learning_has_is_not_for_fine_tuning() -> None:
    base = {"loop": {"steps": 5}, "advantage": {"name": "rloo"}, "rollout": {"temperature": 1.0}}
    with pytest.raises(
        UserError, match=r"^r\.yaml: the sections 'loop', 'advantage' are for reinforcement learning: .*train`"
    ):
        finish_recipe(base, base=base, where="r.yaml", command="sft")
