"""An import path names a class or a function in a file or a module; what is wrong with it is said exactly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.import_path import import_object, import_path_of

SOURCE = """
import beside
from agentgym import Environment, reward

class Guess(Environment):
    def tasks(self, split, seed=0):
        yield from beside.TASKS

class Unfinished(Environment):
    pass

class Inner:
    pass

@reward(weight=0.25, low=-1)
def short(episode):
    return 0.5

def plain(episode):
    return 1.0

LIMIT = 5

class Unclosed:
    def open(self, run_dir, config): ...
    def log(self, step, metrics): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_env.py").write_text(SOURCE)
    (tmp_path / "beside.py").write_text("TASKS = ()\n")
    (tmp_path / "colorsys.py").write_text("class Mine: pass\n")
    (tmp_path / "breaks.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "unparsed.py").write_text("def f(:\n")
    yield tmp_path
    for name in ("beside", *(name for name in sys.modules if name.startswith("_agentgym_file_"))):
        sys.modules.pop(name, None)


def test_a_file_is_run_once_and_may_import_what_lies_beside_it(folder: Path) -> None:
    guess = PluginRegistry([]).environment("my_env.py:Guess")
    assert guess.name == "Guess" and list(guess().tasks("train")) == []  # type: ignore[attr-defined]
    assert import_object(str(folder / "my_env.py") + ":Guess", local=True) is guess
    assert PluginRegistry([]).environment("./my_env.py:Guess") is guess


def test_a_file_hides_no_module_of_its_name() -> None:
    assert import_object("colorsys.py:Mine", local=True)
    assert import_object("colorsys:rgb_to_hsv", local=True)  # the standard library's, imported after it


def test_a_reward_keeps_its_mark_and_a_plain_function_gets_the_defaults() -> None:
    short, plain = (PluginRegistry([]).reward(f"my_env.py:{name}") for name in ("short", "plain"))
    assert (short.name, short.weight, short.low, short.high) == ("short", 0.25, -1, 1)
    assert (plain.name, plain.weight, plain.function(None)) == ("plain", 1.0, 1.0)  # type: ignore[arg-type]


def test_the_path_of_what_was_loaded_loads_it_again(folder: Path) -> None:
    for path in ("my_env.py:Guess", "my_env.py:short"):
        thing = import_object(path, local=True)
        assert import_path_of(thing) == f"{folder}/{path}"
        assert import_object(import_path_of(thing), local=True) is thing
    assert import_path_of(PluginRegistry) == "agentgym.hooks:PluginRegistry"
    with pytest.raises(UserError, match="top level of the file"):
        import_path_of(lambda: None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("my_env.py:Gues", "'Gues' does not exist in my_env.py. Did you mean 'Guess'? Available: Guess, Unfinished."),
        ("my_env.py", "'my_env.py' has no name behind it; write my_env.py:NAME. Available: Guess"),
        ("my_emv.py:Guess", "no file 'my_emv.py'. Did you mean 'my_env.py'?"),
        ("breaks.py:X", "breaks.py, line 2: y = x / 0)"),
        ("breaks:X", "importing breaks failed with ZeroDivisionError: division by zero"),
        ("unparsed.py:X", "(unparsed.py, line 1)"),
        ("agentgym.hoks:X", "there is no module 'agentgym.hoks'. Did you mean 'hooks'?"),
        ("__main__:Guess", "what a script or notebook defined is gone when it has ended"),
        ("my_env.py:LIMIT", "is not a subclass of agentgym.Environment. Available: Guess, Unfinished."),
        ("my_env.py:Inner", "is not a subclass of agentgym.Environment"),
        ("my_env.py:Unfinished", "is not a complete agentgym.env.Environment: it does not define `tasks`"),
        (":Guess", "is not an import path; write package.module:Name or my_file.py:Name"),
        ("my_env.py:Inner.Deep", "is not an import path"),
    ],
)
def test_what_is_wrong_with_a_path_is_said(path: str, expected: str) -> None:
    with pytest.raises(UserError) as refused:
        PluginRegistry([]).environment(path)
    assert expected in str(refused.value)


@pytest.mark.parametrize("path", ["my_env.py:LIMIT", "my_env.py:Guess"])
def test_a_reward_is_a_function(path: str) -> None:
    with pytest.raises(UserError, match=r"not a function that takes an episode\. Available: plain"):
        PluginRegistry([]).reward(path)


def test_the_old_name_of_a_package_names_the_new_one() -> None:
    with pytest.raises(UserError, match=r"agentgym\.jobs is now agentgym\.run"):
        import_object("agentgym.jobs.services:Services")


@pytest.mark.parametrize("path", ["my_env.py:Half", "deep/my_env.py:Half"])
def test_a_file_as_a_component_is_told_how_its_module_is_named(path: str) -> None:
    """Whether Python looks in its folder or not: `my_env.py` is a submodule of `my_env` to the machinery of imports."""
    sys.path.append(".")
    with pytest.raises(UserError, match=rf"write my_env:Half, and set PYTHONPATH={Path(path).parent}$"):
        PluginRegistry([]).component("advantages", path)


def test_a_sink_of_a_file_that_lacks_a_method_names_it() -> None:
    with pytest.raises(UserError, match=r"sink 'my_env.py:Unclosed' is not a complete .*it does not define `close`"):
        PluginRegistry([]).sink("my_env.py:Unclosed")()


def test_a_sandbox_of_a_file_is_told_that_it_needs_a_name() -> None:
    with pytest.raises(UserError, match=r"by its name, not by the import path 'my_env.py:Box'.*--template sandbox"):
        PluginRegistry([]).sandbox("my_env.py:Box")
