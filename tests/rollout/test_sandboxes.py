"""Which sandbox a run takes, and the session that an episode leases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentgym import hookimpl
from agentgym.env import Environment, Reply
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.rewards import Reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.sandboxes import WatchedSandbox, choose_sandbox
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import Outcome, SandboxSpec, Task


class FakeBackend:
    """A sandbox that is there or not, and serves what it is told to."""

    def __init__(self, name: str, *, there: bool = True, sessions: bool = True) -> None:
        self.name = name
        self._there = there
        self._sessions = sessions

    def with_options(self, options: dict[str, object]) -> FakeBackend:
        if set(options) - {"size", "packages"}:
            raise UserError(f"sandbox {self.name!r} has no option {min(options)!r}")
        return self

    def supports(self, spec: SandboxSpec) -> bool:
        if self.name == "small" and "small" not in spec.allow_interpreters:
            return False
        return self._sessions or not spec.session

    async def probe(self) -> None:
        if not self._there:
            raise SandboxUnavailable(f"{self.name} is not installed")


def registry_of(*backends: FakeBackend) -> PluginRegistry:
    class Plugin:
        @hookimpl
        def sandboxes(self):
            return {backend.name: backend.with_options for backend in backends}

    registry = PluginRegistry([])
    registry.register(Plugin(), "fakes")
    return registry


def task(**spec) -> Task:
    return Task(task_id="t", prompt=({"role": "user", "content": "go"},), sandbox=SandboxSpec(**spec))


async def chosen(
    registry: PluginRegistry, some_task: Task, name: str = "auto", **options: object
) -> tuple[str, list[str]]:
    said: list[str] = []
    backend = await choose_sandbox(name, options, [some_task], registry, said.append)
    assert backend is not None
    return backend.name, said


async def test_docker_is_taken_when_it_is_there() -> None:
    registry = registry_of(FakeBackend("docker"), FakeBackend("bubblewrap"), FakeBackend("small"))
    assert await chosen(registry, task(allow_interpreters=("small",))) == ("docker", [])


async def test_bubblewrap_comes_before_an_interpreter() -> None:
    absent = FakeBackend("docker", there=False)
    registry = registry_of(absent, FakeBackend("bubblewrap"), FakeBackend("small"))
    name, said = await chosen(registry, task(allow_interpreters=("small",)))
    assert (name, said) == ("bubblewrap", ["sandbox: bubblewrap, because docker: docker is not installed"])


@pytest.mark.parametrize("there", [True, False])
async def test_a_mistake_in_the_options_does_not_lead_to_another_sandbox(there: bool) -> None:
    registry = registry_of(
        FakeBackend("docker", there=there), FakeBackend("bubblewrap"), FakeBackend("small")
    )
    with pytest.raises(UserError, match="'docker' has no option 'sise'"):
        await chosen(registry, task(allow_interpreters=("small",)), sise=2)


async def test_options_that_do_not_count_are_told() -> None:
    registry = registry_of(FakeBackend("docker", there=False), FakeBackend("bubblewrap"))
    name, (said,) = await chosen(registry, task(), size=2)
    assert name == "bubblewrap" and said.endswith("sandbox.options are Docker's and do not count")


async def test_packages_are_not_given_up_for_a_sandbox_that_has_none() -> None:
    """Each solution that imports one would fail there, and look wrong."""
    registry = registry_of(FakeBackend("docker", there=False), FakeBackend("bubblewrap"))
    with pytest.raises(
        UserError, match=r"docker is not installed[\s\S]*nothing of sandbox\.options\.packages"
    ):
        await chosen(registry, task(), packages=["numpy"])
    assert (await chosen(registry, task(), packages=[]))[0] == "bubblewrap"


async def test_an_interpreter_is_taken_only_when_the_tasks_allow_it() -> None:
    absent = [FakeBackend(name, there=False) for name in ("docker", "bubblewrap")]
    registry = registry_of(*absent, FakeBackend("small"))
    assert (await chosen(registry, task(allow_interpreters=("small",))))[0] == "small"
    with pytest.raises(UserError, match="docker is not installed"):
        await chosen(registry, task())


async def test_what_is_unsafe_is_never_taken_by_itself() -> None:
    registry = registry_of(FakeBackend("unsafe_subprocess"))
    with pytest.raises(UserError, match="no sandbox can be had"):
        await chosen(registry, task())


async def test_a_sandbox_without_sessions_is_passed_over_for_tasks_that_need_one() -> None:
    registry = registry_of(FakeBackend("docker", sessions=False), FakeBackend("bubblewrap"))
    assert (await chosen(registry, task(session=True)))[0] == "bubblewrap"
    with pytest.raises(
        UserError, match=r"which need a session, all of Python, 512 MiB; take one of: docker$"
    ):
        await chosen(registry, task(session=True), name="docker")


class FakeSession:
    async def write(self, path: str, data: bytes) -> None:
        pass


class SessionSandbox:
    """Counts the sessions that are open; `refuse` of them can't be had."""

    name = "sessions"

    def __init__(self, refuse: int = 0) -> None:
        self.open = 0
        self.leased: list[tuple[str, ...]] = []
        self.refuse = refuse

    @asynccontextmanager
    async def session(self, *, network: tuple[str, ...] = ()) -> AsyncIterator[FakeSession]:
        if self.refuse:
            self.refuse -= 1
            raise SandboxUnavailable("all are taken")
        self.open += 1
        self.leased.append(network)
        try:
            yield FakeSession()
        finally:
            self.open -= 1


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
        self.open_at_finish.append(self.sandbox.open)


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
            sandbox=WatchedSandbox(sandbox, activity),
            activity=activity,
        )
        episode = await player.play(some_task, episode_id="e", seed=0)
        return episode, environment, activity

    return run


async def test_an_episode_has_its_session_until_after_finish(play) -> None:
    sandbox = SessionSandbox()
    episode, environment, activity = await play(task(session=True, network=("pypi.org",)), sandbox)
    assert episode.outcome is Outcome.SCORED, episode.error
    assert sandbox.leased == [("pypi.org",)]
    assert (environment.open_at_finish, sandbox.open) == ([1], 0)
    assert activity.totals_s()["sandbox"] > 0


async def test_a_session_is_given_back_when_the_environment_breaks(play) -> None:
    sandbox = SessionSandbox()
    episode, environment, _ = await play(task(session=True), sandbox, says="break")
    assert episode.outcome is Outcome.INFRA_ERROR
    assert (environment.open_at_finish, sandbox.open) == ([1], 0)


async def test_an_episode_is_played_again_when_no_session_was_free(play) -> None:
    sandbox = SessionSandbox(refuse=1)
    episode, _, _ = await play(task(session=True), sandbox)
    assert (episode.outcome, episode.retries) == (Outcome.SCORED, 1)
    sandbox = SessionSandbox(refuse=9)
    episode, _, _ = await play(task(session=True), sandbox)
    assert episode.outcome is Outcome.INFRA_ERROR and "all are taken" in episode.error.message


async def test_a_task_that_asks_for_none_gets_none(play) -> None:
    sandbox = SessionSandbox()
    episode, _, _ = await play(task(), sandbox)
    assert sandbox.leased == []
    assert episode.outcome is Outcome.INFRA_ERROR  # this environment needs one
