"""An error in a plugin's code names the component, the plugin, its distribution and version, and the author's line."""

from __future__ import annotations

import io
import pickle
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentgym.actors.replies import Answer
from agentgym.cli.failures import FAILED, explain
from agentgym.cli.jobs import JobShell
from agentgym.cli.main import main
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.import_path import import_object
from agentgym.plugin_errors import PluginError
from agentgym.policies.scripted import play_script
from agentgym.rl.advantages import StepBatch, assign_advantages
from agentgym.rl.advantages.assign import assign_batch
from agentgym.rollout.environments import build_environment
from agentgym.rollout.group import InfraMonitor
from agentgym.rollout.sandboxes import choose_sandbox, guarded
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.tasks import Shuffled, first_tasks, held_out_tasks, open_stream
from agentgym.run.train import train
from agentgym.sandbox import FileRefused
from agentgym.serve.calls import failure_of
from agentgym.text.tool_formats.base import GuardedFormat
from agentgym.types import Episode, Group, Outcome, Task

SOURCE = Path(__file__).parent.parent / "data" / "faulty_plugin" / "agentgym_faulty.py"
WHOSE = "(plugin 'faulty' of agentgym-faulty 0.3)"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module, installed as a distribution is."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(SOURCE, site)
    info = site / "agentgym_faulty-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agentgym-faulty\nVersion: 0.3\n")
    points = "[agentgym]\nfaulty = agentgym_faulty\n[agentgym.commands]\nfaulty = agentgym_faulty:Command\n"
    (info / "entry_points.txt").write_text(points)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield __import__("agentgym_faulty")
        del sys.modules["agentgym_faulty"]


@pytest.fixture
def registry(plugin: ModuleType) -> PluginRegistry:
    return PluginRegistry.discover()


def group() -> Group:
    task = Task(task_id="t", prompt=())
    made = [Episode(episode_id=f"{n}", task=task, seed=n, outcome=Outcome.SCORED, reward=1.0) for n in range(2)]
    return Group(group_id=0, task=task, start_version=0, episodes=made, advantages=[1.0, -1.0])


Use = Callable[[Any, PluginRegistry], Awaitable[object]]


async def advantage(plugin: Any, registry: PluginRegistry) -> None:
    assign_advantages(group(), plugin.FaultyAdvantage())


async def batch(plugin: Any, registry: PluginRegistry) -> None:
    assign_batch(StepBatch(groups=[group()]), plugin.FaultyBatch())


async def tool_format(plugin: Any, registry: PluginRegistry) -> None:
    GuardedFormat(plugin.FaultyFormat()).parse("said")


async def stream(plugin: Any, registry: PluginRegistry) -> None:
    opened = open_stream(plugin.FaultyStreams(), plugin.Sound(), 0, 0, in_flight=1, state=None)
    assert (await opened.draw()).task_id == "train-0" and opened.learns
    opened.observe(group())


async def sink(plugin: Any, registry: PluginRegistry) -> None:
    registry.sink("faulty")()


@pytest.mark.parametrize(
    ("use", "whose"),
    [
        (advantage, "the advantage 'agentgym_faulty:FaultyAdvantage'"),
        (batch, "the advantage 'agentgym_faulty:FaultyBatch'"),
        (tool_format, "the tool format 'agentgym_faulty:FaultyFormat'"),
        (stream, "the task sampler 'agentgym_faulty:FaultyStreams'"),
        (sink, "the sink 'faulty'"),
    ],
)
async def test_what_a_component_raises_names_it(plugin: Any, registry: PluginRegistry, use: Use, whose: str) -> None:
    with pytest.raises(PluginError) as raised:
        await use(plugin, registry)
    assert str(raised.value).startswith(f"{whose} raised KeyError: '")
    assert f"agentgym_faulty.py:{line(plugin)} in boom {WHOSE}" in str(raised.value)
    failure = explain(raised.value)
    assert failure.message == str(raised.value) and failure.exit_code == FAILED


@pytest.mark.parametrize(
    ("setting", "whose"),
    [
        pytest.param(
            "loss.name=agentgym_faulty:FaultyLoss",
            "the loss 'agentgym_faulty:FaultyLoss' raised KeyError: 'loss'",
            marks=pytest.mark.hostile,
        ),
        ("generator.engine.name=agentgym_faulty:FaultyEngine", "the generator engine 'agentgym_faulty:FaultyEngine'"),
        ("weights.store.name=agentgym_faulty:FaultyStore", "the weight store 'agentgym_faulty:FaultyStore' raised"),
        ("launcher.name=agentgym_faulty:FaultyLauncher", "the launcher 'agentgym_faulty:FaultyLauncher' raised"),
        ("agent.name=agentgym_faulty:FaultyAgent", "the agent 'agentgym_faulty:FaultyAgent' raised KeyError: 'agent'"),
        ("model.tool_format=agentgym_faulty:FaultyFormat", " x tool_format:agentgym_faulty:FaultyFormat: KeyError"),
    ],
)
async def test_a_run_ends_with_the_component_that_ended_it(
    plugin: Any, registry: PluginRegistry, lab: Any, setting: str, whose: str
) -> None:
    environment = "tool_use" if "format" in setting else "sound"
    recipe = lab.recipe(f"env.name={environment}", "sandbox.name=plain", "eval.at_end=false", "loop.steps=1", setting)
    with closing(lab.new_run(recipe)) as folder, pytest.raises(BaseException) as raised:
        await train(recipe, folder, lab.reporter(), registry=registry)
    message = explain(raised.value).message
    assert whose in message and WHOSE in message


def line(plugin: Any) -> int:
    return int(plugin.boom.__code__.co_firstlineno) + 1


@pytest.mark.parametrize("method", ["create", "supports", "probe", "start", "metrics", "close"])
async def test_what_a_sandbox_raises_before_and_after_the_episodes_names_it(
    plugin: Any, registry: PluginRegistry, method: str
) -> None:
    tasks = held_out_tasks(plugin.Sound(), 1)
    with pytest.raises(PluginError) as raised:
        backend = await choose_sandbox("plain", {"method": method}, tasks, registry, print)
        assert backend is not None
        await backend.start()
        backend.metrics()
        await backend.close()
    assert str(raised.value).startswith("the sandbox 'plain' raised KeyError: ") and WHOSE in str(raised.value)
    assert raised.value.source == "sandbox:plain"


async def played(plugin: Any, registry: PluginRegistry, environment: str, reward: str = "fine", **options: Any) -> Any:
    made = build_environment(registry, environment, {})
    async with Scorer.of(made, registry, {reward: 1.0}) as scorer:
        backend, [task] = plugin.Plain(**options), held_out_tasks(made, 1)
        says = [{"role": "assistant", "content": "even"}]
        episode = await play_script(made, task, says, scorer=scorer, sandbox=backend)  # type: ignore[arg-type]
    return episode.error


async def test_an_episode_names_what_broke_it(plugin: Any, registry: PluginRegistry) -> None:
    """A sandbox's error is the sandbox's, with the line of the environment that called it."""
    error = await played(plugin, registry, "sound", method="run")
    assert (error.source, error.kind) == ("sandbox:plain", "KeyError")
    assert WHOSE in error.message and "; called at " in error.message and " in reply" in error.message
    error = await played(plugin, registry, "sound", method="lost")
    assert (error.source, error.kind, error.message) == ("sandbox:plain", "SandboxLost", "gone")
    error = await played(plugin, registry, "faulty")
    assert error.source == "environment:faulty.reply" and "in boom" in error.message and WHOSE in error.message
    error = await played(plugin, registry, "lost")  # it asks no sandbox
    assert (error.source, error.kind) == ("environment:lost.reply", "InfraError")
    for reward in ("faulty", "faulty_inline"):
        error = await played(plugin, registry, "sound", reward)
        assert error.source == f"reward:{reward}" and "in boom; plugin 'faulty' of" in error.message


async def test_what_a_caller_does_wrong_is_not_the_sandboxs_fault(plugin: Any) -> None:
    sandbox = guarded(plugin.Plain(method="refuses"))
    with pytest.raises(TypeError, match="positional"):
        await sandbox.run()  # type: ignore[call-arg]
    with pytest.raises(FileRefused):
        await sandbox.run("1")
    with pytest.raises(ZeroDivisionError):
        async with sandbox.session():
            1 / 0  # noqa: B018


async def test_a_sampler_and_tasks_that_raise_are_the_users_mistake_with_the_line(plugin: Any) -> None:
    with pytest.raises(UserError, match=r"the task sampler 'agentgym_faulty:FaultySampler' raises KeyError") as raised:
        first_tasks(plugin.FaultySampler(), plugin.Sound(), 0, 1)
    assert WHOSE in str(raised.value)
    with pytest.raises(UserError, match=r"environment 'tasks': tasks\('train', 0\) raises KeyError") as raised:
        first_tasks(Shuffled(), plugin.FaultyTasks(), 0, 1)
    assert WHOSE in str(raised.value)


def test_a_command_that_raises_is_named(plugin: Any) -> None:
    err = io.StringIO()
    assert main(["faulty"], JobShell(out=io.StringIO(), err=err, jobs=Any, plugins=PluginRegistry.discover)) == FAILED
    assert "the command 'faulty' raised KeyError: 'command', at " in err.getvalue() and WHOSE in err.getvalue()


def test_a_hook_that_raises_has_its_line_in_the_list_of_plugins(plugin: Any) -> None:
    class Hooks:
        environments = plugin.hookimpl(lambda self: plugin.boom("hook"))

    record = PluginRegistry([]).register(Hooks(), "hooks")
    assert record.error.startswith("KeyError: 'hook', at ") and f":{line(plugin)} in boom" in record.error


def test_a_client_is_told_whose_bug_it_is_and_not_to_try_again(plugin: Any) -> None:
    with pytest.raises(PluginError) as raised:
        GuardedFormat(plugin.FaultyFormat()).parse("said")
    failure = failure_of(raised.value)
    assert (failure.status, failure.kind) == (500, "bug") and WHOSE in failure.message


def test_groups_that_end_together_report_one_error() -> None:
    monitor, broken = InfraMonitor(0.1, at_least=1), group().episodes[0]
    broken.outcome = Outcome.INFRA_ERROR
    errors = []
    for _ in range(3):
        with pytest.raises(InfraError) as raised:
            monitor.add(broken)
        errors.append(raised.value)
    assert len(set(map(id, errors))) == 1


async def test_an_error_of_a_users_program_names_its_line_in_whatever_process_it_is(tmp_path: Path) -> None:
    file = tmp_path / "own_loop.py"
    file.write_text(
        "async def judge(): raise TypeError('mine')\n\ndef refused(): import_object('no.such.module:thing')\n"
    )
    names: dict[str, Any] = {"import_object": import_object}
    exec(compile(file.read_text(), str(file), "exec"), names)
    answer = await Answer.of(0, "Actor.judge", names["judge"], pickle.dumps(()))
    with pytest.raises(TypeError) as raised:
        answer.value()
    assert explain(raised.value).message == f"TypeError: mine, at {file}:1 in judge"
    with pytest.raises(UserError) as given:
        names["refused"]()
    assert explain(given.value, program=True).message.endswith(f", at {file}:3 in refused")
    assert str(file) not in explain(given.value).message, "of a command the message is enough"
