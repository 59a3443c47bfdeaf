"""Config files, overrides and the strict builder."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym import config, yaml
from agentgym.errors import UserError
from agentgym.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    size: float = 1.0
    spokes: int | None = None

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError(f"size is {self.size}; give more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    name: str
    wheel: Wheel = Wheel()
    colour: Literal["red", "blue"] = "red"
    kind: Literal["small", "large"] = "small"
    electric: bool = False
    seats: tuple[int, ...] = (1, 2)
    box: tuple[int, float] = (1, 2.0)
    notes: list[str] = field(default_factory=list)
    prices: dict[str, float] = field(default_factory=dict)


FULL = {
    "name": "one",
    "wheel": {"size": 2, "spokes": 12},
    "colour": "blue",
    "kind": "large",
    "electric": True,
    "seats": [4, 5],
    "box": [3, 4],
    "notes": ["a"],
    "prices": {"new": 3},
}


def test_builds_every_kind_of_field() -> None:
    car = config.build(Car, FULL)
    assert car == Car(
        name="one",
        wheel=Wheel(size=2.0, spokes=12),
        colour="blue",
        kind="large",
        electric=True,
        seats=(4, 5),
        box=(3, 4.0),
        notes=["a"],
        prices={"new": 3.0},
    )
    assert isinstance(car.wheel.size, float) and isinstance(car.prices["new"], float)


def test_a_built_config_survives_mapping_and_yaml() -> None:
    car = config.build(Car, FULL)
    assert config.build(Car, config.to_mapping(car)) == car
    text = yaml.dump_yaml(config.to_mapping(car))
    assert config.build(Car, yaml.parse_yaml(text, where="here")) == car  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb:\n- 2\n- c: 3\n", "a: |\n  b: 1\n\n  c\nb: 2\n", "a: x\n  y\nb: 1\n", "null: 1\nb: 2\n",
        "a: 1\na: 2\n", "null: 1\nNull: 2\n", "a: &x 1\nb: *x\n", "a: 1\n...\nb: 2\n", "a: 1\n---\nb: 2\n",
        'a: "x\nb: y"\n', "a: {x: 1,\nb: 2}\n", "a: 1\nb: [\n", "",
    ],
)  # fmt: skip
def test_a_text_that_is_parsed_by_its_sections_is_what_it_is_as_a_whole(text: str) -> None:
    def read(text: str) -> str:
        try:
            return repr(yaml.parse_yaml(text, where="here"))
        except UserError as error:
            return re.sub(r"line \d+", "line", str(error))

    assert read(text) == read(f"--- # in one piece\n{text}")


def test_the_default_recipe_survives_yaml() -> None:
    text = yaml.dump_yaml(config.to_mapping(Recipe()))
    assert config.build(Recipe, yaml.parse_yaml(text, where="here")) == Recipe()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nmae": "x"}, ["'nmae'", "Did you mean 'name'?", "wheel"]),
        ({"wheel": {"spoke": 3}}, ["'wheel.spoke'", "'wheel.spokes'"]),
        ({"spokes": 3}, ["'spokes'", "Did you mean 'wheel.spokes'?"]),
        ({"wheel": {"size": 0}}, ["here: wheel: size is 0.0"]),
        ({"wheel": 3}, ["wheel is a section", "3 (int)"]),
        ({"wheel": {"size": "big"}}, ["wheel.size is 'big' (str)", "allowed is float"]),
        ({"wheel": {"size": True}}, ["wheel.size is True (bool)", "allowed is float"]),
        ({"wheel": {"spokes": 1.0}}, ["wheel.spokes is 1.0 (float)", "allowed is int"]),
        ({"wheel": {"spokes": True}}, ["wheel.spokes is True (bool)", "allowed is int"]),
        ({"wheel": {"size": None}}, ["wheel.size is nothing (null)"]),
        ({"electric": 1}, ["electric is 1 (int)", "allowed is bool"]),
        ({"electric": "yes"}, ["electric is 'yes' (str)"]),
        ({"kind": "larg"}, ["kind is 'larg' (str)", "Did you mean 'large'?", "large, small"]),
        ({"colour": "bleu"}, ["colour is 'bleu'", "Did you mean 'blue'?"]),
        ({"seats": 3}, ["seats is 3 (int)", "list of int", "[3]"]),
        ({"seats": [1, "x"]}, ["seats[1] is 'x' (str)"]),
        ({"box": [1]}, ["box has 1 entries; it takes 2"]),
        ({"prices": {"old": "x"}}, ["prices.old is 'x' (str)"]),
        ({"prices": {3: 1.0}}, ["prices (its key) is 3 (int)"]),
        ({"name": 3}, ["name is 3 (int)", "quotes"]),
    ],
)
def test_a_mistake_is_refused_with_its_place_and_what_is_allowed(change: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        config.build(Car, {"name": "one", **change}, where="here")
    message = str(caught.value)
    assert message.startswith("here: ")
    assert all(word in message for word in words), message


def test_all_unknown_fields_are_named_at_once_before_what_may_follow_from_them() -> None:
    wrong = {"name": "a", "wheels": {}, "wheel": {"sise": -1.0}, "electric": "yes"}
    with pytest.raises(UserError) as raised:
        config.build(Car, wrong, "car.yaml")
    assert str(raised.value) == (
        "there are no such fields:\n  car.yaml: 'wheels'. Did you mean 'wheel'?"
        "\n  car.yaml: 'wheel.sise'. Did you mean 'wheel.size'?"
    )


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UserError, match="name is missing; give a str"):
        config.build(Car, {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        ("4", 4),
        ("-1", -1),
        ("010", 10),
        ("0x1f", 31),
        ("1_000_003", 1_000_003),
        (".5", 0.5),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("", None),
        ("null", None),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("[1, a]", [1, "a"]),
        ("{a: 1.0}", {"a": 1.0}),
        ("'4'", "4"),
    ],
)
def test_override_values_are_typed_as_yaml_1_2(text: str, value: object) -> None:
    result = config.apply_overrides({}, [f"a.b={text}"])
    assert result == {"a": {"b": value}}
    assert type(result["a"]["b"]) is type(value)  # type: ignore[index]


def test_overrides_leave_their_source_alone() -> None:
    source = {"a": {"b": 1, "c": 2}, "empty": None}
    result = config.apply_overrides(source, ["--a.b=3", "empty.x=1", "new.y.z=2"])
    assert result == {"a": {"b": 3, "c": 2}, "empty": {"x": 1}, "new": {"y": {"z": 2}}}
    assert source == {"a": {"b": 1, "c": 2}, "empty": None}


def test_a_component_of_another_name_keeps_no_settings_of_the_one_before() -> None:
    source = {"engine": {"name": "vllm", "eager": True}}
    assert config.apply_overrides(source, ["engine.name=native"]) == {"engine": {"name": "native"}}
    both = ["engine.threads=2", "engine.name=native"]  # in either order: what is given here is for the new one
    assert config.apply_overrides(source, both) == {"engine": {"name": "native", "threads": 2}}
    assert config.apply_overrides(source, ["engine.name=vllm"]) == source


@pytest.mark.parametrize("override", ["a.b", "=3", "a..b=3", "a.b.c=1", "x=[1"])
def test_what_is_no_override_is_refused(override: str) -> None:
    with pytest.raises(UserError):
        config.apply_overrides({"a": {"b": 3}}, [override])


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("a: 1")
    with pytest.raises(UserError, match=r"tinny\.yaml.*Did you mean 'tiny\.yaml'"):
        yaml.read_yaml(tmp_path / "tinny.yaml")
    with pytest.raises(UserError, match="There is no folder"):
        yaml.read_yaml(tmp_path / "gone" / "tiny.yaml")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: [1", "line 1: this is not valid YAML"),
        ("- a", "a mapping"),
        ("a: 1\na: 2", "bad.yaml, line 2: .*'a' is defined twice"),
        ("1: 2", "mapping of names"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=word):
        yaml.read_yaml(path)


def test_what_was_read_is_the_readers_own_and_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("a: {b: [1]}")
    first: dict = yaml.read_yaml(path)
    first["a"]["b"].append(2)
    assert yaml.read_yaml(path) == {"a": {"b": [1]}}
    path.write_text("a: 3")
    assert yaml.read_yaml(path) == {"a": 3}


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert yaml.read_yaml(path) == {}


def test_describe_lists_every_setting_with_type_and_default() -> None:
    found = {info.key: (info.type_name, info.default) for info in config.describe(Car)}
    assert list(found)[:3] == ["name", "wheel.size", "wheel.spokes"]
    assert found["name"] == ("str", "")
    assert found["wheel.spokes"] == ("int or null", "null")
    assert found["kind"] == ("one of small, large", "small")
    assert found["seats"] == ("list of int", "[1, 2]")
    keys = [info.key for info in config.describe(Recipe)]
    assert "trainer.procs" in keys and "rewards" in keys and "sandbox.options" in keys


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), plain))
def test_yaml_is_read_back_as_it_was_written(mapping: dict) -> None:
    text = yaml.dump_yaml(mapping)
    back = yaml.parse_yaml(text, where="here")
    assert back == mapping
    assert repr(back) == repr(mapping)  # types and order too


@given(st.sampled_from(["no", "1e3", "3", "true", "~", "null", "0x1", "1:30", ".5", "-", "2026-01-01", "<<"]))
def test_strings_that_look_like_something_else_stay_strings(text: str) -> None:
    assert yaml.parse_yaml(yaml.dump_yaml({"a": text}), where="here") == {"a": text}


def test_texts_that_threads_parse_at_the_same_time_do_not_mix() -> None:
    values = [{f"key{n}": {"a": [n, n + 1], "b": {"c": str(n)}}, "x": [*range(30)]} for n in range(60)]
    texts = [yaml.dump_yaml(value) for value in values]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda text: yaml.parse_yaml(text, where="here"), texts)] == values
