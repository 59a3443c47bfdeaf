"""Which sandbox a run takes, and the session that an episode leases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import fields, replace

import pytest

from agentgym import hookimpl
from agentgym.contracts import ContractError
from agentgym.env import Environment, Reply
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.rewards import Reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.sandboxes import choose_sandbox, watched
from agentgym.rollout.scoring import Scorer
from agentgym.runs.records import decode_episode, encode_episode
from agentgym.sandbox import (
    Capabilities,
    FileRefused,
    GradeRequest,
    RunResult,
    RunStatus,
    SandboxBackend,
    SandboxOptions,
    SandboxPlugin,
    SandboxUnavailable,
)
from agentgym.testing import FakeSandbox, FakeSession
from agentgym.testing import play as play_replies
from agentgym.testing.fakes import ABLE
from agentgym.text.chat import ChatRenderer
from agentgym.tools import tool
from agentgym.types import Outcome, SandboxSpec, Task


class Sized(FakeSandbox):
    """Its option `size` is the memory that it gives a call."""

    size = 512

    def supports(self, spec: SandboxSpec) -> bool:
        return spec.memory_mib <= self.size and not (spec.session and "small" in self.name)


def fake(
    name: str,
    rank: int | None,
    *,
    there: bool = True,
    takes: tuple[str, ...] = (),
    isolated: bool = True,
    **declared: object,
) -> tuple[str, SandboxPlugin]:
    def create(options: SandboxOptions) -> Sized:
        for key in set(options) - set(takes):
            raise UserError(f"sandbox {name!r} has no option {key!r}")
        able = dict.fromkeys((field.name for field in fields(Capabilities)), isolated) | {"grades": True}
        made = Sized(
            name=name,
            able=Capabilities(**able | {"backend": name, "detail": "a fake"}),
            unavailable="" if there else f"{name} is not installed",
        )
        made.size, made.options = options.get("size", 512), options
        return made

    return name, SandboxPlugin(create=create, auto_rank=rank, **declared)


def heavy(**more: object) -> tuple[str, SandboxPlugin]:
    return fake("heavy", 1, takes=("size", "packages"), contents=("packages",), setup="Start it.", **more)


def light(**more: object) -> tuple[str, SandboxPlugin]:
    return fake("light", 2, **more)


SMALL = fake("small", 3, interpreter=True, takes=("size",))
ALLOWED = {"allow_interpreters": ("small",)}


def task(**spec) -> Task:
    return Task(task_id="t", prompt=({"role": "user", "content": "go"},), sandbox=SandboxSpec(**spec))


async def choose(
    *sandboxes: tuple[str, SandboxPlugin], tasks: Sequence[Task] = (task(**ALLOWED),), name: str = "auto", **options
) -> tuple[SandboxBackend | None, str]:
    """The backend, and what was said about the choice."""

    class Plugin:
        @hookimpl
        def sandboxes(self):
            return dict(sandboxes)

    registry = PluginRegistry([])
    registry.register(Plugin(), "fakes")
    said: list[str] = []
    backend = await choose_sandbox(name, options, tasks, registry, said.append)
    return backend, "".join(said)  # type: ignore[return-value]


async def test_auto_takes_the_first_by_rank_that_is_available_and_says_why_not_the_one_before() -> None:
    backend, said = await choose(SMALL, light(), heavy())
    assert backend is not None and (backend.name, said) == ("heavy", "")
    backend, said = await choose(SMALL, light(), heavy(there=False))
    assert backend is not None and backend.name == "light"
    assert said == "sandbox: light, because heavy: heavy is not installed"


async def test_auto_takes_an_interpreter_only_where_every_task_allows_it() -> None:
    absent = heavy(there=False)
    backend, said = await choose(absent, SMALL)
    assert backend is not None and backend.name == "small" and ", an interpreter that these tasks allow" in said
    with pytest.raises(UserError, match=r"no sandbox is available:\n  heavy: heavy is not installed\nStart it\.$"):
        await choose(absent, SMALL, tasks=(task(**ALLOWED), task()))


@pytest.mark.parametrize("other", [fake("rankless", None), light(isolated=False)], ids=lambda other: other[0])
async def test_auto_takes_nothing_that_does_not_contain(other: tuple[str, SandboxPlugin]) -> None:
    with pytest.raises(UserError, match="no sandbox is available"):
        await choose(other)


async def test_no_sandbox_is_given_to_tasks_that_ask_for_none() -> None:
    plain = Task(task_id="t", prompt=({"role": "user", "content": "go"},))
    assert await choose(heavy(), tasks=(plain,)) == (None, "")
    assert await choose(heavy(), tasks=(plain,), name="heavy") == (None, "")


async def test_an_option_stays_with_the_first_available_sandbox_and_never_moves_the_choice() -> None:
    backend, _ = await choose(heavy(), light(), SMALL, size=1024)
    assert backend is not None and (backend.name, backend.options) == ("heavy", {"size": 1024})
    with pytest.raises(UserError, match=r"'heavy' with the options \{'size': 256\} can't serve .* 512 MiB"):
        await choose(heavy(), light(), SMALL, size=256)
    with pytest.raises(UserError, match="'heavy' has no option 'speed'"):
        await choose(heavy(), light(takes=("speed",)), SMALL, speed=2)
    backend, said = await choose(heavy(there=False), light(takes=("speed",)), speed=2)
    assert backend is not None and backend.options == {"speed": 2} and "not used" not in said


@pytest.mark.parametrize("there", [True, False])
async def test_a_mistake_in_the_options_does_not_lead_to_another_sandbox(there: bool) -> None:
    with pytest.raises(UserError, match="'heavy' has no option 'sise'"):
        await choose(heavy(there=there), light(), SMALL, sise=2)


async def test_options_that_are_not_used_are_reported() -> None:
    backend, said = await choose(heavy(there=False), light(), size=512)
    assert backend is not None and (backend.name, backend.options) == ("light", {})
    assert said.endswith("; sandbox.options are for heavy and are not used")


async def test_packages_are_not_given_up_for_a_sandbox_that_has_none() -> None:
    """Each solution that imports one would fail there, and look wrong."""
    absent = heavy(there=False)
    with pytest.raises(UserError, match=r"heavy is not installed[\s\S]*do not take sandbox\.options\.packages"):
        await choose(absent, light(), packages=["numpy"])
    backend, _ = await choose(absent, light(), packages=[])
    assert backend is not None and backend.name == "light"


async def test_a_named_sandbox_that_lacks_what_the_tasks_need_names_those_that_have_it() -> None:
    tasks = (task(session=True, **ALLOWED),)
    backend, _ = await choose(SMALL, heavy(there=False), light(), tasks=tasks)
    assert backend is not None and backend.name == "light"
    with pytest.raises(UserError, match=r"need a session, 512 MiB; take one of: heavy, light$"):
        await choose(SMALL, heavy(), light(), tasks=tasks, name="small")
    with pytest.raises(UserError, match=r"which need a session, Python, 512 MiB; take one of: "):
        other = (task(session=True, allow_interpreters=("tiny",)),)
        await choose(SMALL, heavy(), light(), tasks=other, name="small")


class SessionSandbox(FakeSandbox):
    """The first `refuse` sessions are refused."""

    refuse = 0

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[FakeSession]:
        if self.refuse:
            self.refuse -= 1
            raise SandboxUnavailable("all are taken")
        return super().session(network=network)


class NoteTaker(Environment):
    """Writes what the agent says into the session; breaks when it says so."""

    name = "notes"
    rewards = {"said": 1.0}

    def __init__(self, sandbox: SessionSandbox) -> None:
        self.sandbox = sandbox
        self.open_at_finish: list[int] = []

    def tasks(self, split, seed=0):
        yield task(session=True)

    async def reply(self, context):
        if context.messages[-1]["content"] == "break":
            raise ZeroDivisionError
        await context.session.write("note", b"x")
        return Reply(done=True)

    async def finish(self, context):
        self.open_at_finish.append(self.sandbox.num_sessions_open)


@pytest.fixture
def play(tokenizer, speaking):
    async def run(some_task: Task, sandbox: SessionSandbox, says: str = "note it"):
        environment = NoteTaker(sandbox)
        activity = Activity()
        player = EpisodePlayer(
            environment=environment,
            renderer=ChatRenderer(tokenizer),
            generator=speaking(says),
            scorer=Scorer([Reward(name="said", function=lambda episode: 1.0, inline=True)], {"said": 1.0}),
            config=RolloutConfig(max_retries=1),
            sandbox=watched(sandbox, activity),
            activity=activity,
        )
        episode = await player.play(some_task, episode_id="e", seed=0)
        return episode, environment, activity

    return run


async def test_an_episode_has_its_session_until_after_finish(play) -> None:
    sandbox = SessionSandbox()
    episode, environment, activity = await play(task(session=True, network=("pypi.org",)), sandbox)
    assert episode.outcome is Outcome.SCORED, episode.error
    assert [one.network for one in sandbox.sessions] == [("pypi.org",)]
    assert 0 < episode.timing_s["episode_s"] <= episode.timing_s["session_s"]
    assert (environment.open_at_finish, sandbox.num_sessions_open) == ([1], 0)
    assert activity.totals_s()["sandbox"] > 0


async def test_a_session_is_given_back_when_the_environment_breaks(play) -> None:
    sandbox = SessionSandbox()
    episode, environment, _ = await play(task(session=True), sandbox, says="break")
    assert episode.outcome is Outcome.INFRA_ERROR
    assert (environment.open_at_finish, sandbox.num_sessions_open) == ([1], 0)


async def test_an_episode_is_played_again_when_no_session_was_free(play) -> None:
    sandbox = SessionSandbox()
    sandbox.refuse = 1
    episode, _, _ = await play(task(session=True), sandbox)
    assert (episode.outcome, episode.retries) == (Outcome.SCORED, 1)
    sandbox.refuse = 9
    episode, _, _ = await play(task(session=True), sandbox)
    assert episode.outcome is Outcome.INFRA_ERROR and "all are taken" in episode.error.message


async def test_a_task_that_asks_for_none_gets_none(play) -> None:
    sandbox = SessionSandbox()
    episode, _, _ = await play(task(), sandbox)
    assert sandbox.sessions == []
    assert episode.outcome is Outcome.INFRA_ERROR  # this environment needs one


class Runner:
    """Tools over an episode's sandbox."""

    def __init__(self, context) -> None:
        self.context = context

    @tool(parallel_safe=True)
    async def execute(self, code: str) -> str:
        """Run code."""
        return (await self.context.session.run(code)).stdout

    @tool(parallel_safe=True)
    async def judge(self) -> str:
        """Judge it."""
        return str((await self.context.sandbox.grade(GradeRequest(code="", entry="f", cases=()))).passed)


class Graded(Environment):
    name, tools, rewards, max_turns = "graded", Runner, {"success": 1.0}, 3

    def tasks(self, split, seed=0):
        yield task(session=True)

    async def start(self, context):
        await context.session.write("begun", b"")
        return Runner(context)

    async def reply(self, context):
        context.info["success"] = True
        return Reply(done=True)

    async def grade(self, context):
        with suppress(FileRefused):
            await context.session.read("absent")


async def test_an_episode_records_the_calls_of_its_sandbox_and_what_made_them() -> None:
    failed = RunResult(status=RunStatus.TIMEOUT, exit_code=None, stdout="", stderr="")
    sandbox = FakeSandbox(answer=lambda code, _: failed if code == "slow" else code, judge=False)

    def calls(*names: str) -> dict[str, object]:
        made = [
            {
                "type": "function",
                "function": {"name": "execute" if n else "judge", "arguments": {"code": n} if n else {}},
            }
            for n in names
        ]
        return {"role": "assistant", "content": "", "tool_calls": made}

    episode = await play_replies(
        Graded(), task(session=True), [calls("fast"), calls("slow", ""), "done"], sandbox=sandbox
    )
    found = [(one.name, one.outcome, one.part, one.raised) for one in episode.sandbox_calls]
    assert found == [
        ("write", "ok", None, False),
        ("run", "ok", 0, False),
        ("run", "timeout", 1, False),
        ("grade", "failed", 2, False),
        ("read", "FileRefused", "grade", True),
    ]
    assert all(one.seconds > 0 for one in episode.sandbox_calls)
    assert decode_episode(json.loads(json.dumps(encode_episode(episode)))).sandbox_calls == episode.sandbox_calls


def running(name: str, rank: int | None = None, *, grades: bool = False) -> tuple[str, SandboxPlugin]:
    """A sandbox that runs code, and says whether it grades; it has no method for it."""

    class Running(FakeSandbox):
        grade = SandboxBackend.grade

    able = replace(ABLE, grades=grades)
    return name, SandboxPlugin(create=lambda options: Running(name=name, able=able), auto_rank=rank)


GRADED = (task(grades=True),)


async def test_tasks_that_are_graded_are_refused_where_code_is_only_run_and_those_that_grade_are_named() -> None:
    with pytest.raises(UserError, match=r"'runs' runs code and judges no solutions.*; take one of: heavy, light$"):
        await choose(running("runs"), running("also", 4), heavy(), light(there=False), tasks=GRADED, name="runs")
    backend, said = await choose(running("first", 0), heavy(), tasks=GRADED)
    assert backend is not None and backend.name == "heavy" and "first: it runs code and judges no solutions" in said
    backend, _ = await choose(running("runs"), name="runs")
    assert backend is not None  # no task of these is graded


async def test_a_backend_that_says_it_grades_and_cannot_is_refused() -> None:
    with pytest.raises(UserError, match=r"'runs' has no method `grade`, and its Capabilities say that it grades"):
        await choose(running("runs", grades=True), name="runs")


def half_written(options: SandboxOptions) -> SandboxBackend:
    raise ContractError("`def run` is awaited")


@pytest.mark.parametrize("interpreter", [False, True])
async def test_a_half_written_sandbox_is_passed_over_unless_the_tasks_were_written_for_it(interpreter: bool) -> None:
    broken = ("small", SandboxPlugin(create=half_written, auto_rank=0, interpreter=interpreter))
    if interpreter:
        with pytest.raises(ContractError, match="`def run` is awaited"):
            await choose(broken, heavy())
    else:
        backend, said = await choose(broken, heavy())
        assert backend is not None and backend.name == "heavy" and "`def run` is awaited" in said


class Silent(FakeSandbox):
    """Half-written: what it has returns nothing."""

    async def probe(self): ...
    async def run(self, code, *, stdin="", limits=None): ...
    async def grade(self, request): ...


async def test_what_returns_nothing_in_silence_is_named() -> None:
    with pytest.raises(UserError, match="'fake': `probe` returned None; it has to return Capabilities"):
        await choose(("fake", SandboxPlugin(create=lambda options: Silent())), name="fake")
    sandbox = watched(Silent(), Activity())
    with pytest.raises(InfraError, match="`run` of Silent returned None; it has to return a RunResult"):
        await sandbox.run("1")
    with pytest.raises(InfraError, match="`grade` of Silent returned None; it has to return a Verdict"):
        await sandbox.grade(None)
