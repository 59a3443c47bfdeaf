"""Every shipped recipe fits on the machines that its header names, by the planner, and on nothing smaller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentgym.families.architecture import Architecture
from agentgym.families.registry import architecture_of
from agentgym.models.released import RELEASED
from agentgym.models.resolve import TINY, model_architecture
from agentgym.planning.machine import Gpu, Machine
from agentgym.planning.placement import Placement, assign
from agentgym.run.layers import finish_recipe
from agentgym.run.placement import wanted_of
from agentgym.run.recipe_files import read_recipe_files

APPS = Path(__file__).parents[2] / "apps"
PRESETS = APPS / "presets"
TASKS = sorted((PRESETS / "tasks").glob("*.yaml"))
RECIPES = sorted(
    path for path in APPS.glob("*/*.yaml") if path.name != "gpu.yaml"
)  # that one is of `python -m apps.sft`
KINDS = [23, 39, 79, 139]  # GiB, as torch has them: of 24 GB, an A100 of 40, an H100 of 80, an H200 of 141
WORDS = {"one": 1, "two": 2, "four": 4}
CLAIM = re.compile(r"(?:(\d+) x|a CPU with) (\d+) GiB(?: with (.+))?")


class Claim(NamedTuple):
    """gpus: 0 is a CPU, and gib then its host's. presets: files that are laid over the recipe."""

    gpus: int
    gib: int
    presets: list[Path]

    def machine(self, gib: float) -> Machine:
        return Machine(gpus=(Gpu(name="some", memory_gib=gib),) * self.gpus, cores=2, memory_gib=gib)


def claims_of(recipe: Path) -> list[Claim]:
    lines = [line for line in recipe.read_text().splitlines() if line.startswith("# fits: ")]
    assert len(lines) == 1, f"{recipe} has {len(lines)} lines `# fits: `"
    claims = []
    for text in lines[0].removeprefix("# fits: ").split("; "):
        match = CLAIM.fullmatch(text)
        assert match, f"{recipe}: {text!r} is not a claim"
        presets = [PRESETS / name for name in (match[3] or "").split(", ") if name]
        claims.append(Claim(int(match[1] or 0), int(match[2]), presets))
    return claims


def finished(recipe: Path, claim: Claim, *tasks: Path) -> Any:
    mapping, where = read_recipe_files([recipe, *tasks, *claim.presets])
    if not claim.gpus:
        for section in ("trainer", "generator"):
            mapping[section] = {**mapping.get(section, {}), "device": "cpu"}
    return finish_recipe(mapping, where=where)[0]


def placed(recipe: Path, claim: Claim, gib: float, *tasks: Path) -> Placement:
    made = finished(recipe, claim, *tasks)
    return assign(wanted_of(made, model_of(made.model.path)), claim.machine(gib))


def model_of(path: str) -> Architecture:
    model = model_architecture(TINY) if path == TINY else architecture_of(RELEASED[path], path)
    assert model is not None
    return model


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recipe_fits_on_the_machines_that_its_header_names_and_on_no_smaller_kind(recipe: Path) -> None:
    for claim in claims_of(recipe):
        placement = placed(recipe, claim, claim.gib)
        assert placement.fits, (claim, placement.problems)
        if not claim.gpus:
            assert not placed(recipe, claim, claim.gib / 4).fits
            continue
        assert {proc.gpu for proc in placement.procs} == {*range(claim.gpus)}, "each of the GPUs is used"
        for smaller in KINDS[: KINDS.index(claim.gib)]:
            assert not placed(recipe, claim, smaller).fits, f"{smaller} GiB would do as well"
        if claim.presets:
            assert not placed(recipe, claim._replace(presets=[]), claim.gib).fits, "the presets are not needed"


@pytest.mark.parametrize("recipe", [path for path in RECIPES if path.stem.endswith("b")], ids=lambda path: path.stem)
def test_a_models_recipe_fits_there_with_every_task_and_says_as_many_gpus_as_its_header(recipe: Path) -> None:
    claims = claims_of(recipe)
    for claim in claims:
        for task in TASKS:
            placement = placed(recipe, claim, claim.gib, task)
            assert placement.fits, (claim, task.stem, placement.problems)
    [count] = re.findall(r"on (one|two|four) GPUs?\b", recipe.read_text().split("\n", 1)[0])
    assert claims[0].gpus == WORDS[count] and not claims[0].presets


@pytest.mark.parametrize("recipe", sorted((APPS / "grpo").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_run_on_gpus_ends_where_generators_sample_another_model(recipe: Path) -> None:
    for claim in claims_of(recipe):
        assert not claim.gpus or finished(recipe, claim).trainer.mismatch.engine.stop == 1.0, claim
