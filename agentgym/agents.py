"""What the author of an agent writes: a program that plays an episode, asking the policy through an endpoint.

The built-in chat loop, `chat`, is the default. Every other agent is a component of a recipe: a frozen dataclass whose
fields are its settings, chosen by the name that a plugin gives it, or by import path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from agentgym.env import Environment, EpisodeContext, Reply, State
from agentgym.errors import UserError
from agentgym.sandbox import Session
from agentgym.stability import renamed
from agentgym.tools import Schema
from agentgym.types import Json, Message


class AgentFailed(Exception):
    """The agent's program did something wrong: it died, hung, or broke its limits. It is the episode's own outcome.

    kind: one word, as exit, time_limit, memory_limit, output_limit or protocol. What infrastructure broke is an
    InfraError instead.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class AgentContext(Protocol):
    """What an agent has in one episode: the task, the way to the policy, the environment's tools, and its own notes.

    url: of the endpoint, http://HOST:PORT; OpenAI's base_url is url + "/v1", Anthropic's is url. key: opens
    generation for this episode and nothing else. model: by which name the policy is asked for. session: the
    episode's sandbox where the task has one. When the episode is over, `play` is cancelled wherever it waits.
    """

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far: the task's prompt, then what the environment was told and answered."""

    @property
    def tools(self) -> Sequence[Schema]:
        """The tools that the environment offers now."""

    @property
    def url(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def session(self) -> Session | None: ...

    @property
    def time_s(self) -> float:
        """Seconds that are left to the episode, without waits in the engine's queue."""

    @property
    def seed(self) -> int:
        """The episode's seed: equal seeds are to lead to equal choices."""

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Call one of the environment's tools; returns what the agent is told, mistakes of the call included."""

    async def answer(self, text: str) -> Reply:
        """Say something to the environment. `done` or `invalid`: the episode is over."""

    def note(self, key: str, value: Json) -> None:
        """Keep something beside the episode, as output, files or an exit code: in `episode.info["agent"]`."""


class Agent(ABC):
    """Plays episodes, many at a time, each on a context of its own. Its fields are its settings.

    So no episode's state may live on `self`. What episodes share, as kept processes, `close` ends.
    """

    def __init_subclass__(cls) -> None:
        if "place" in vars(cls):
            renamed(f"{cls.__name__}.place", "slot", goes="0.1", error=TypeError)

    @property
    def drops(self) -> Sequence[str]:
        """Fields of its requests that would change an answer, cannot be honoured, and may be dropped: by their paths,
        as `output_config.format`. How often each was dropped is kept with the episode."""
        return ()

    def is_side_call(self, messages: Sequence[Message], tools: Sequence[Schema]) -> bool:
        """Whether a call of its program only names a session or summarises it. Such a turn is kept and not trained,
        unless all of the episode's turns are such."""
        return False

    @property
    def max_idle_calls(self) -> int:
        """Calls of the policy in a row that call no tool, continue no conversation and have no longer prompt than
        those before, at which the episode ends as the agent's fault: it never stops compacting. 0 is no limit."""
        return 0

    def turn_saying(self, text: str) -> str | Message:
        """The policy's turn with which its program answers this text; a script plays it in `agentgym agents check`."""
        return text

    @property
    def wants_session(self) -> bool:
        """Whether every episode leases a session of the sandbox, also where its task asks for none."""
        return False

    async def volumes(self) -> Mapping[str, str]:
        """Folders of this machine that its sessions need, read-only, by the absolute path at which they have them.

        Called once before a run, after `check`. A sandbox whose sessions can be given none is refused then.
        """
        return {}

    async def check(self) -> None:
        """Called once before a run. Raises UserError for what cannot work, as a program that is not installed."""
        return

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Entered before an episode: a wait in it, as for a free process, is not counted in the episode's time."""
        return nullcontext()

    @abstractmethod
    async def play(self, context: AgentContext) -> None:
        """Play one episode to its end. Returning before the environment ended it abandons it; it is scored as it is.

        Raises AgentFailed for what the program did wrong, InfraError for what broke around it. When it is
        cancelled, nothing that it started may be left running.
        """

    async def close(self) -> None:
        """Called at the end of a run: end what episodes shared. Safe to call twice."""
        return


class ProgramEnvironment(Environment[State]):
    """An environment whose own program asks the policy, as one that was written for another library does.

    What is sampled for the program is trained token for token. Of the other methods `tasks`, `start` and `finish`
    count, and the rewards; no agent can be chosen.
    """

    @abstractmethod
    async def play(self, context: EpisodeContext[State], policy: AgentContext) -> None:
        """Play one episode to its end, and leave what rewards need in `context.info`.

        policy: its url, key and model lead to the policy. Cancelled when a limit has ended the episode. Raises
        InfraError for what is to be played again; anything else is a fault of the environment.
        """

    async def reply(self, context: EpisodeContext[State]) -> Reply:
        raise UserError(f"{self.name!r} plays its episodes with a program of its own; a text cannot play them")


@dataclass(frozen=True, kw_only=True)
class Chat(Agent):
    """The built-in loop: the policy talks to the environment directly, without a program between them."""

    async def play(self, context: AgentContext) -> None:
        raise AssertionError("the built-in loop is played by EpisodePlayer itself")
