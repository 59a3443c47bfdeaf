"""Losses and the other components of a run: chosen by name or import path, and refused with what would fit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym import yaml
from agentgym.components import SEAMS, find, name_of
from agentgym.config import apply_overrides, to_mapping
from agentgym.errors import LISTED, UserError, nearest
from agentgym.hooks import PluginRegistry, PluginStatus, hookimpl
from agentgym.recipe import Recipe, build_recipe
from agentgym.rl.losses import Loss
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.losses.reinforce import Reinforce

THEIRS = """
from __future__ import annotations
from dataclasses import dataclass
from agentgym.rl.advantages import Advantage
from agentgym.rl.losses import Loss, TokenLoss

@dataclass(frozen=True, kw_only=True)
class Scaled(Loss):
    scale: float = 1.0

    def __post_init__(self):
        if self.scale < 0:
            raise ValueError(f"scale is {self.scale}; allowed is 0 or more")

    def __call__(self, tokens, version):
        return TokenLoss(loss=-self.scale * tokens.logprobs)

class Undecorated(Scaled): ...

@dataclass(kw_only=True)
class Thawed:
    scale: float = 1.0

@dataclass(frozen=True, kw_only=True)
class Unfinished(Loss): ...

@dataclass(frozen=True, kw_only=True)
class Named(Scaled):
    name: str = "x"

@dataclass(kw_only=True)
class Changeable(Advantage):
    def __call__(self, episodes_G):
        return []

def scaled(tokens): ...
"""


@pytest.fixture
def their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a third party with losses, good and bad."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "losses.py").write_text(THEIRS)
    (package / "broken.py").write_text("raise RuntimeError('no licence')")
    yield "their_package.losses"
    for name in [name for name in sys.modules if name.partition(".")[0] == "their_package"]:
        del sys.modules[name]


def test_a_loss_by_import_path_has_settings_of_its_own_and_survives_yaml(their_module: str) -> None:
    given = {"loss": {"name": f"{their_module}:Scaled", "scale": 3, "horizon": 9}}
    recipe = build_recipe(given)
    assert (type(recipe.loss).__name__, recipe.loss.scale, recipe.loss.horizon) == ("Scaled", 3.0, 9)  # type: ignore[attr-defined]
    text = yaml.dump_yaml(to_mapping(recipe))
    assert build_recipe(yaml.parse_yaml(text, where="here")) == recipe  # type: ignore[arg-type]


def test_a_name_alone_takes_the_defaults_and_becomes_a_section_when_a_setting_is_given() -> None:
    assert build_recipe({"loss": "reinforce"}).loss == Reinforce()
    assert build_recipe({"loss": {"clip_low": 0.1}}).loss == Grpo(clip_low=0.1)
    mapping = apply_overrides(to_mapping(Recipe()), ["loss=reinforce", "loss.kl_coef=0.5"])
    assert build_recipe(mapping).loss == Reinforce(kl_coef=0.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("grop", ["no loss 'grop'", "Did you mean 'grpo'?", "cispo, cross_entropy, dapo"]),
        ("M:Scald", ["does not exist in their_package.losses", "Did you mean 'Scaled'?"]),
        ("M:a.b", ["not an import path", "package.module:Name"]),
        ("their_package.loses:Scaled", ["no module 'their_package.loses'", "Did you mean 'losses'?"]),
        ("their_pakage.losses:Scaled", ["no module 'their_pakage'", "Did you mean 'their_package'?"]),
        ("their_package.broken:Scaled", ["importing their_package.broken failed with RuntimeError: no licence"]),
        ("M:scaled", ["is not a loss: a frozen dataclass that inherits agentgym.rl.losses.Loss", "mean 'Scaled'?"]),
        ("M:Thawed", ["is not a loss", "Scaled"]),
        ("M:Undecorated", ["has no settings", "@dataclass(frozen=True, kw_only=True)"]),
        ("agentgym.rl.losses:Loss", ["is not a loss"]),
        ("M:Unfinished", ["it does not define `__call__`"]),
        ("M:Named", ["has a field `name`"]),
        ({"name": "M:Scaled", "scal": 1}, ["no field 'loss.scal' of", "Did you mean 'loss.scale'?"]),
        ({"name": "M:Scaled", "scale": "x"}, ["loss.scale is 'x' (str); allowed is float"]),
        ({"name": "M:Scaled", "scale": -1}, ["loss: scale is -1.0"]),
        ({"name": "reinforce", "clip_low": 0.1}, ["no field 'loss.clip_low' of 'reinforce'", "kl_coef"]),
        ({"name": 3}, ["loss.name is 3 (int); allowed is str"]),
        (None, ["loss is a section with a name, or a name"]),
    ],
)
def test_what_is_no_loss_is_refused_with_what_would_fit(given: object, words: list[str], their_module: str) -> None:
    if isinstance(given, str):
        given = given.replace("M:", f"{their_module}:")
    elif isinstance(given, dict):
        given = {k: str(v).replace("M:", f"{their_module}:") if k == "name" and v != 3 else v for k, v in given.items()}
    with pytest.raises(UserError) as raised:
        build_recipe({"loss": given}, "r.yaml")
    message = str(raised.value)
    assert message.startswith("r.yaml: ") and all(word in message for word in words), message


def test_settings_that_could_be_changed_are_refused(their_module: str) -> None:
    with pytest.raises(UserError, match=r"has no settings.*frozen=True.*class Changeable"):
        find("advantages", f"{their_module}:Changeable")


def test_a_module_in_the_current_folder_says_how_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here_it_is.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"set PYTHONPATH=\."):
        find("losses", "here_it_is:Scaled")


class Plugin:
    """Offers what `losses` says."""

    def __init__(self, **losses: object) -> None:
        self._losses = losses

    @hookimpl
    def losses(self) -> dict[str, object]:
        return self._losses


def test_a_plugins_loss_is_imported_only_when_a_recipe_chooses_it(their_module: str) -> None:
    registry = PluginRegistry([])
    registry.register(Plugin(scaled=f"{their_module}:Scaled"), "theirs")
    assert registry.names("losses") == sorted([*SEAMS["losses"].builtin, "scaled"])
    assert registry.provider("losses", "scaled").name == "theirs"
    assert their_module not in sys.modules
    recipe = build_recipe({"loss": {"name": "scaled", "scale": 2}}, plugins=lambda disabled: registry)
    assert their_module in sys.modules
    saved = to_mapping(recipe)["loss"]
    assert saved == {"name": f"{their_module}:Scaled", "scale": 2.0, "aggregation": "token_mean", "horizon": 256}
    with pytest.raises(UserError, match=r"no loss 'scald'\. Did you mean 'scaled'"):
        build_recipe({"loss": "scald"}, plugins=lambda disabled: registry)


def test_plugins_that_are_disabled_in_the_recipe_offer_no_loss() -> None:
    asked: list[list[str]] = []

    def plugins(disabled: list[str]) -> PluginRegistry:
        asked.append(list(disabled))
        return PluginRegistry([])

    with pytest.raises(UserError, match="no loss 'scaled'"):
        build_recipe({"loss": "scaled", "plugins": {"disabled": ["theirs"]}}, plugins=plugins)  # type: ignore[arg-type]
    assert asked == [["theirs"]]


def test_checking_components_finds_those_that_can_not_be_used(their_module: str) -> None:
    registry = PluginRegistry([])
    good = registry.register(Plugin(scaled=f"{their_module}:Scaled"), "good")
    bad = registry.register(Plugin(other=f"{their_module}:scaled"), "bad")
    odd = registry.register(Plugin(five=5), "odd")
    greedy = registry.register(Plugin(grpo=f"{their_module}:Scaled"), "greedy")
    assert odd.status is PluginStatus.FAILED and "'package.module:Class'" in odd.error
    assert "losses 'grpo' is provided by 'agentgym' of agentgym (built in) too" in greedy.error
    assert registry.component("losses", "grpo") is Grpo
    assert bad.status is PluginStatus.LOADED
    registry.check_components()
    assert good.status is PluginStatus.LOADED
    assert bad.status is PluginStatus.FAILED and "loss 'other'" in bad.error and "Scaled" in bad.error


@pytest.mark.parametrize("kind", SEAMS)
def test_our_own_components_pass_the_checks_of_a_third_partys(kind: str) -> None:
    for name in SEAMS[kind].builtin:  # type: ignore[index]
        if name == "module":  # it needs a path
            continue
        made = find(kind, name)()  # type: ignore[arg-type]
        assert name_of(kind, made) == name  # type: ignore[arg-type]


def test_a_class_is_a_loss_only_by_inheriting() -> None:
    assert issubclass(Grpo, Loss) and Grpo().needs_reference is False and Grpo(kl_coef=0.1).needs_reference


def test_of_very_many_names_the_nearest_are_listed() -> None:
    few = [f"name{number}" for number in range(LISTED)]
    assert nearest("name1", few).count(",") == LISTED - 1
    said = nearest("name1", [*few, "other"])
    assert said.startswith(" Did you mean 'name1'? Available: name0, name1, ") and "other" not in said
    assert said.endswith(f" and {LISTED + 1 - LISTED // 2} more.")
