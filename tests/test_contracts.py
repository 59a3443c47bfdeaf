"""What a plugin leaves out, misspells or gives another form is named with the plugin, before anything is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agentgym import Agent, Environment, Reward, UserError, hookimpl, reward
from agentgym.hooks import PluginRegistry, PluginStatus
from agentgym.rl.advantages import Advantage
from agentgym.rollout.environments import build_environment
from agentgym.rollout.sandboxes import leased_session
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox, SandboxBackend, SandboxPlugin
from agentgym.sinks import MetricSink
from agentgym.testing import FakeSandbox
from agentgym.types import SandboxSpec, Task


def registry_of(**hooks: object) -> PluginRegistry:
    """A registry with one plugin, `mine`."""
    found = {name: hookimpl(lambda self, things=things: things) for name, things in hooks.items()}
    for name, function in found.items():
        function.__name__ = name
    registry = PluginRegistry([])
    registry.register(type("Mine", (), found)(), "mine")
    return registry


async def _probe(self: object) -> None: ...
def _plain(self: object, *given: object, **named: object) -> None: ...
async def _supports(self: object, spec: SandboxSpec) -> bool: ...
async def _run(self: object, code: str) -> None: ...
async def _session(self: object, *, network: tuple[str, ...] = ()) -> Any:
    yield


FAULTS: dict[str, tuple[dict[str, object], str]] = {
    "property": ({"name": _plain}, "`name` is a method; write `@property` above it"),
    "value": ({"start": 5}, "`start` is 5; write a method"),
    "plain": ({"probe": _plain}, "`def probe` is awaited, so it has to be `async def probe`: "),
    "coroutine": ({"supports": _supports}, "`async def supports` is not awaited, so it has to be `def supports`"),
    "parameters": ({"run": _run}, "`run(code)` is called as `run(code, *, stdin=..., limits=...)`"),
    "yields": ({"probe": _session}, "`async def probe` yields; its value has to be returned"),
    "coroutine generator": ({"supports": _session}, "is not awaited, so it has to be `def supports`"),
    "generator": ({"session": _session}, "write `@asynccontextmanager` above it"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_method_of_another_form_is_named_when_the_plugin_is_loaded_and_when_an_object_is_made(fault: str) -> None:
    body, said = FAULTS[fault]
    Backend = type("Backend", (FakeSandbox,), body)
    with pytest.raises(UserError) as raised:
        Backend()
    assert said in str(raised.value)
    registry = registry_of(sandboxes={"half": SandboxPlugin(create=Backend)})
    assert registry.records[0].status is PluginStatus.FAILED and said in registry.records[0].error
    assert not registry.records[0].trace  # of our check


class Half(SandboxBackend):
    name = "half"

    def suports(self, spec: SandboxSpec) -> bool:
        return True

    async def probe(self) -> None: ...  # type: ignore[override]


class DuckTyped:
    def open(self, run_dir: str, config: object) -> None: ...
    def log(self, step: int) -> None: ...
    def clos(self) -> None: ...


def test_a_half_written_backend_names_what_is_missing_and_the_method_that_was_meant() -> None:
    with pytest.raises(UserError, match=r"define `close`, .*`supports`; did you mean `supports` by `suports`\?$"):
        Half()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda options: Half(), "it does not define `close`"),  # type: ignore[abstract]
        (lambda options: None, "its factory returned None; return an object of agentgym.sandbox.SandboxBackend"),
        (lambda options: FakeSandbox, "returned the class agentgym.testing.fakes.FakeSandbox; return an object of it"),
        (lambda options: Forgetful(), "it does not define `close`, `expect`, `grade`, `images`, "),
        (_probe, "made by an `async def`"),
    ],
)
def test_what_a_factory_of_sandboxes_makes_is_refused_with_its_plugin(made: Callable[..., Any], said: str) -> None:
    registry = registry_of(sandboxes={"half": made})
    for create in (registry.sandbox("half"), registry.sandboxes()["half"]):
        with pytest.raises(UserError, match=r"sandbox 'half' of the plugin 'mine' of this process") as raised:
            create({})
        assert said in str(raised.value)


def test_a_sink_without_a_method_is_refused_with_its_plugin_and_one_that_inherits_nothing_is_taken() -> None:
    with pytest.raises(UserError) as raised:
        registry_of(sinks={"file": lambda: DuckTyped()}).sink("file")()
    assert "sink 'file' of the plugin 'mine' of this process" in str(raised.value)
    assert "did you mean `close` by `clos`?; `log(step)` is called as `log(step, metrics)`" in str(raised.value)
    whole = type("Whole", (), {"open": DuckTyped.open, "log": lambda self, step, metrics: None, "close": _plain})
    assert isinstance(registry_of(sinks={"file": whole}).sink("file")(), whole)
    with pytest.raises(UserError, match="does not define `log`"):
        type("Inherits", (MetricSink,), {"open": DuckTyped.open, "close": _plain})()


class Sink:
    def open(self, run_dir: str, config: object) -> None: ...
    def log(self, step: int, metrics: object) -> None: ...
    def log_episode(self, played: object) -> None: ...
    def close(self) -> None: ...


def test_a_sink_whose_method_for_episodes_is_misspelt_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    for kind in (Sink, type("Inherits", (Sink, MetricSink), {})):
        caplog.clear()
        registry_of(sinks={"file": kind}).sink("file")()
        assert "`log_episode`, which nothing calls; did you mean `log_episodes`?" in caplog.text


class Renamed(Environment):
    def task(self, split: str, seed: int = 0) -> None: ...


class Synchronous(Environment):
    def tasks(self, split, seed=0):  # type: ignore[no-untyped-def, override]
        yield

    def reply(self, context):  # type: ignore[no-untyped-def, override]
        return None


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (Renamed, "it does not define `tasks`; did you mean `tasks` by `task`?"),
        (Synchronous, "`def reply` is awaited, so it has to be `async def reply`: "),
        (Half, "an environment's class inherits agentgym.Environment"),
        (lambda: Synchronous(), "`def reply` is awaited"),
        (lambda: Half, "its factory returned the class"),
        (lambda: 5, "its factory returned 5"),
    ],
)
def test_what_is_no_environment_is_refused_with_its_plugin(thing: Any, said: str) -> None:
    with pytest.raises(UserError) as raised:
        build_environment(registry_of(environments={"mine": thing}), "mine", {})
    assert said in str(raised.value) and "the plugin 'mine' of this process" in str(raised.value)


class Forgot(Environment):
    def tasks(self, split, seed=0):  # type: ignore[no-untyped-def, override]
        return iter(()) if self.solved() else iter([])

    def solved(self) -> bool:
        return True

    async def after_call(self, context) -> None: ...  # type: ignore[no-untyped-def]


def test_a_method_with_a_default_that_is_misspelt_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        build_environment(registry_of(environments={"mine": Forgot}), "mine", {})
    (said,) = [record.message for record in caplog.records if "nothing calls" in record.message]  # once a class
    assert "`after_call`, which nothing calls; did you mean `after_calls`?" in said  # and `solved` is used


@pytest.mark.parametrize("function", [lambda: 1.0, lambda episode, task: 1.0])
def test_a_reward_that_cannot_be_called_with_an_episode_is_refused(function: Any) -> None:
    registry = registry_of(rewards={"short": Reward(name="short", function=function)})
    assert "the function of the reward 'short' is called with 1 argument(s), and takes (" in registry.records[0].error


class Marked(Forgot):
    @reward
    def brevity(self) -> float:
        return 1.0


def test_a_reward_of_an_environment_is_looked_at_before_a_run() -> None:
    with pytest.raises(UserError, match=r"the reward 'brevity' is called with 1 argument\(s\), and takes \(\)"):
        Scorer.of(Marked(), PluginRegistry([]))


def test_a_component_with_a_method_of_another_form_is_refused_with_its_plugin() -> None:
    registry = registry_of(agents={"hasty": f"{__name__}:Hasty"})
    with pytest.raises(UserError, match=r"agent 'hasty' of the plugin 'mine' of this process.*`wants_session` is a"):
        registry.component("agents", "hasty")


@dataclass(frozen=True, kw_only=True)
class Narrow(Advantage):
    def __call__(self, episodes_G, mean) -> list[float]:  # type: ignore[no-untyped-def, override]
        return []


def test_an_advantage_that_is_called_otherwise_than_it_takes_is_refused() -> None:
    with pytest.raises(UserError, match=r"`__call__\(episodes_G, mean\)` is called as `__call__\(episodes_G\)`"):
        PluginRegistry([]).component("advantages", f"{__name__}:Narrow")


class Hasty(Agent):
    def wants_session(self) -> bool:  # type: ignore[override]
        return False

    async def play(self, context) -> None: ...  # type: ignore[no-untyped-def]


class Forgetful:
    name = "forgetful"

    def session_for(self, spec: SandboxSpec) -> Any:
        from contextlib import nullcontext

        return nullcontext(DuckTyped())


async def test_a_session_without_its_methods_is_refused_when_it_is_leased() -> None:
    task = Task(task_id="t", prompt=(), sandbox=SandboxSpec(session=True))
    sandbox: Sandbox = Forgetful()  # type: ignore[assignment]
    with pytest.raises(UserError, match="a session of sandbox 'forgetful': its factory returned <"):
        async with leased_session(sandbox, task):
            pytest.fail("it was leased")
