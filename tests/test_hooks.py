"""A broken plugin does not affect the others; asking for it names its distribution."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.hooks import GROUP, PluginRegistry, PluginStatus, hookimpl
from agentgym.rewards import Reward
from agentgym.stability import API

Install = Callable[..., list[importlib.metadata.EntryPoint]]

GOOD = """
from agentgym import Environment, hookimpl
class Good(Environment):
    def tasks(self, split, seed=0): return iter(())
@hookimpl
def environments(): return {"good": Good}
"""
BROKEN = {
    "raises": ("raise RuntimeError('no GPU here')", "RuntimeError: no GPU here"),
    "exits": ("import sys; sys.exit('goodbye')", "SystemExit: goodbye"),
    "syntax": ("def broken(:", "SyntaxError"),
    "imports": ("import a_package_that_is_missing", "No module named 'a_package_that_is_missing'"),
    "misspelt": (GOOD.replace("def environments", "def enviroments"), "Did you mean 'environments'?"),
    "unmarked": (GOOD.replace("@hookimpl", ""), "'environments' is not marked as a hook; write @hookimpl above it"),
    "newer": (f'{GOOD}agentgym_api = "9.0"', f"built for agentgym 9.0, this is {API}: upgrade"),
    "no_version": (f"{GOOD}agentgym_api = 5", f'was built for: agentgym_api = "{API}"'),
    "old_and_failing": ("agentgym_api = '0.0'\nfrom agentgym import Gone", f"(built for agentgym 0.0, this is {API})"),
    "listed": (GOOD.replace('{"good": Good}', '["good"]'), "hook environments returned list"),
    "forgot": (GOOD.replace("return {", "{"), "hook environments returned None"),
    "asynchronous": (GOOD.replace("\ndef ", "\nasync def "), "hook environments is `async def`"),
    "arguments": (GOOD.replace("environments()", "environments(gym)"), "argument"),
    "hook_raises": (GOOD.replace('return {"good"', '1 / 0; {"good"'), "ZeroDivisionError"),
    "hook_exits": (GOOD.replace('return {"good"', 'raise SystemExit(1); {"good"'), "SystemExit"),
    "number": (GOOD.replace(": Good}", ": 5}"), "'good' is 5; return a class or a function"),
    "nameless": (GOOD.replace('"good"', "5"), "a name is a string"),
    "bare": (GOOD.replace("environments", "rewards").replace(": Good}", ": len}"), "return agentgym.Reward objects"),
    "two_names": (
        "from agentgym import Reward, hookimpl\n@hookimpl\ndef rewards(): return {'a': Reward(name='b', function=len)}",
        "reward 'a' calls itself 'b'; give it one name",
    ),
}
REFUSED = ("misspelt", "unmarked", "newer", "no_version", "forgot")  # by us: a traceback would show our code alone


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write a distribution with modules as plugins; its entry points are what an installed one has."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(distribution: str, **modules: str) -> list[importlib.metadata.EntryPoint]:
        folder = tmp_path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        lines = [f"[{GROUP}]"]
        for name, source in modules.items():
            module = f"{distribution.replace('-', '_')}_{name}"
            (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
            monkeypatch.delitem(sys.modules, module, raising=False)
            lines.append(f"{name} = {module}")
        (folder / "entry_points.txt").write_text("\n".join(lines))
        return list(importlib.metadata.Distribution.at(folder).entry_points)

    return write


def statuses(registry: PluginRegistry) -> dict[str, PluginStatus]:
    return {record.name: record.status for record in registry.records}


def imported(points: Iterable[importlib.metadata.EntryPoint]) -> list[str]:
    return [point.module for point in points if point.module in sys.modules]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_recorded_and_the_others_load(name: str, install: Install) -> None:
    source, message = BROKEN[name]
    registry = PluginRegistry(install("bad-things", **{name: source}) + install("fine", zz_good=GOOD))
    assert registry.names("environments") == ["good"]
    assert statuses(registry) == {name: PluginStatus.FAILED, "zz_good": PluginStatus.LOADED}
    record = registry.records[0]
    assert message in record.error and (record.distribution, record.version) == ("bad-things", "1.2")


@pytest.mark.parametrize("name", BROKEN)
def test_asking_for_a_broken_plugin_names_its_distribution_and_the_cause(name: str, install: Install) -> None:
    source, message = BROKEN[name]
    registry = PluginRegistry(install("bad-things", **{name: source}))
    with pytest.raises(UserError) as raised:
        registry.environment(name)
    assert f"the plugin '{name}' of bad-things 1.2 could not be loaded" in str(raised.value)
    assert message in str(raised.value) and ("Traceback" in str(raised.value)) == (name not in REFUSED)


def test_a_missing_attribute_and_a_malformed_entry_point_are_recorded(install: Install) -> None:
    install("fine", good=GOOD)
    points = [
        importlib.metadata.EntryPoint("attribute", "fine_good:nothing", GROUP),
        importlib.metadata.EntryPoint("malformed", "not a module!", GROUP),
        importlib.metadata.EntryPoint("good", "fine_good", GROUP),
    ]
    registry = PluginRegistry(points)
    assert registry.names("environments") == ["good"]
    assert statuses(registry) == {
        "attribute": PluginStatus.FAILED,
        "malformed": PluginStatus.FAILED,
        "good": PluginStatus.LOADED,
    }
    with pytest.raises(UserError, match=r"no attribute 'nothing'"):
        registry.environment("attribute")


def test_a_name_that_nobody_gives_mentions_the_plugins_that_failed(install: Install) -> None:
    registry = PluginRegistry(install("bad-things", worlds="1 / 0") + install("fine", good=GOOD))
    with pytest.raises(UserError) as raised:
        registry.environment("god")
    assert "no environment 'god'. Did you mean 'good'? Available: good." in str(raised.value)
    assert "'worlds' of bad-things 1.2 did not load: ZeroDivisionError" in str(raised.value)


def test_discovery_finds_all_plugins_and_imports_none(install: Install) -> None:
    points = install("fine", good=GOOD, other="raise RuntimeError")
    registry = PluginRegistry.discover()
    assert {"good", "other", "math", "rewards"} <= set(statuses(registry))
    assert imported(points) == []
    assert registry.environment("good")
    assert imported(points) == ["fine_good"]


def test_only_the_plugin_that_is_asked_for_is_imported(install: Install) -> None:
    points = install("fine", good=GOOD, other=GOOD.replace('"good"', '"other"'))
    registry = PluginRegistry(points)
    registry.environment("good")
    assert imported(points) == ["fine_good"]
    assert registry.provider("environments", "good").origin == "'good' of fine 1.2"


def test_a_disabled_plugin_is_never_imported_and_says_so(install: Install) -> None:
    points = install("fine", good=GOOD) + install("bad-things", worlds="1 / 0")
    for disabled in ("good", "fine"):
        registry = PluginRegistry(points, disabled=[disabled])
        assert registry.names("environments") == [] and statuses(registry)["good"] is PluginStatus.DISABLED
        assert imported(points) == []
        with pytest.raises(UserError, match=r"'good' of fine 1\.2 is disabled"):
            registry.environment("good")


def test_disabling_what_is_not_installed_is_a_mistake(install: Install) -> None:
    with pytest.raises(UserError, match=r"names 'god', which is not installed\. Did you mean 'good'"):
        PluginRegistry(install("fine", good=GOOD), disabled=["god"])


def test_a_plugin_name_given_by_several_distributions_is_an_error_that_names_them(install: Install) -> None:
    points = install("one", good=GOOD) + install("two", good=GOOD) + install("three", good=GOOD)
    registry = PluginRegistry(points + install("fine", other=GOOD.replace('"good"', '"other"')))
    assert registry.names("environments") == ["other"]
    with pytest.raises(UserError) as raised:
        registry.environment("good")
    assert all(f"'good' of {name} 1.2" in str(raised.value) for name in ("one", "two", "three"))
    one_left = PluginRegistry(points, disabled=["two", "three"])
    assert one_left.provider("environments", "good").distribution == "one"


@pytest.mark.parametrize("asked_first", [None, "first", "second"])
def test_a_thing_that_two_plugins_give_is_an_error_in_any_order(install: Install, asked_first: str | None) -> None:
    points = install("one", first=GOOD.replace("}", ', "first": Good}'))
    points += install("two", second=GOOD.replace("}", ', "second": Good}'))
    registry = PluginRegistry(points)
    if asked_first:
        registry.environment(asked_first)
    with pytest.raises(UserError, match=r"environment 'good' is provided by .* and by .*disabled"):
        registry.environment("good")
    assert registry.environment("first") and registry.environment("second")
    listed = registry.listed("environments")
    assert {name for name, one in listed.items() if isinstance(one, UserError)} == {"good"}
    assert set(listed) == {"first", "good", "second"}


def test_a_plugin_owns_the_thing_of_its_name(install: Install) -> None:
    registry = PluginRegistry(install("other", aa=GOOD) + install("fine", good=GOOD))
    registry.load_all()
    assert registry.provider("environments", "good").distribution == "fine"
    assert "is provided by 'aa' of other 1.2 too" in registry.records[1].error


def test_a_distribution_of_many_entry_points_is_read_once() -> None:
    reads = []

    class Counted(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            reads.append(filename)
            return "Metadata-Version: 2.1\nName: many\nVersion: 3\n" if filename == "METADATA" else None

        def locate_file(self, path: object) -> Path:
            return Path(str(path))

    distribution = Counted()
    points = [importlib.metadata.EntryPoint(f"one{n}", "a_module_that_is_missing", GROUP) for n in range(20)]
    for point in points:
        vars(point)["dist"] = distribution
    registry = PluginRegistry(points)
    assert {(record.distribution, record.version) for record in registry.records} == {("many", "3")}
    assert reads == ["METADATA"]


def test_an_object_can_be_registered_and_a_second_of_its_name_does_not_harm_it() -> None:
    class Plugin:
        @hookimpl
        def rewards(self) -> dict[str, Reward]:
            return {"nice": Reward(name="nice", function=lambda _: 1.0)}

    registry = PluginRegistry([])
    assert registry.register(Plugin(), "mine").status is PluginStatus.LOADED
    second = registry.register(Plugin(), "mine")
    assert second.status is PluginStatus.FAILED and "there is a plugin 'mine' already" in second.error
    assert registry.reward("nice").name == "nice"


def test_the_built_in_plugins_load_as_third_parties_do() -> None:
    registry = PluginRegistry.discover()
    registry.load_all()
    assert {"math"} <= set(registry.names("environments"))
    assert {"success", "tests_passed", "numeric_match"} <= set(registry.names("rewards"))
    assert {"tensorboard", "wandb"} <= set(registry.names("sinks"))
    for name in registry.names("environments"):
        factory = registry.environment(name)
        assert isinstance(factory, type) and issubclass(factory, Environment) and factory.name == name
        for reward in factory.rewards:
            assert registry.reward(reward)


def test_an_installed_plugin_is_found_from_the_command_of_a_new_process(install: Install) -> None:
    (point,) = install("fine", good=GOOD)
    assert point.dist is not None
    folder = str(Path(str(point.dist.locate_file("."))).resolve())
    code = f"import sys; sys.path.append({folder!r})\nimport agentgym\n"
    code += "print(agentgym.hooks.PluginRegistry.discover().provider('environments', 'good').origin)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "'good' of fine 1.2"
