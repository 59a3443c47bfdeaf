"""What the author of an environment writes."""

from __future__ import annotations

import functools
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from agentgym.errors import UserError
from agentgym.rewards import marked_rewards
from agentgym.sandbox import Sandbox, Session
from agentgym.tools import Toolbox, Tools
from agentgym.types import Json, Message, SandboxSpec, Split, Task
from agentgym.utf8 import clean_fields

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # knows defaults: an environment without state names no type

    State = TypeVar("State", default=Any)
else:
    from typing import TypeVar

    State = TypeVar("State")


@dataclass(slots=True, kw_only=True)
class EpisodeContext(Generic[State]):
    """One episode, as its environment sees it.

    messages: the prompt and everything said since. info: JSON that the environment records; it is saved
    with the episode, and rewards read it. `info["success"]` is True where the goal was reached, and False where
    it was not; it is unknown, and in no figure, where an environment records neither.
    sandbox: None unless the task asks for one. session: a sandbox of the episode's own, where files, names and
    processes last from turn to turn; None unless the task's spec says `session`. It is closed for you.
    state: what `start` returned. tools: what the agent can call; None without.
    """

    task: Task
    messages: list[Message]
    turn: int = 0  # agent turns so far
    max_turns: int = 1
    seed: int = 0
    sandbox: Sandbox | None = None
    session: Session | None = None
    info: dict[str, Json] = field(default_factory=dict)
    state: State = None  # type: ignore[assignment]  # set when `start` returns
    tools: Tools | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A published set of tasks, and how it is played as its authors do: `agentgym benchmark NAME MODEL`.

    tasks: of the official set. source, licence: of the data, for a person. options: of the environment. local: instead
    of them for a copy of the data, whose `path` --data gives; None: the same. settings: other fields of the recipe, by
    dotted key.
    """

    tasks: int
    source: str
    licence: str
    options: Mapping[str, Json] = field(default_factory=dict)
    local: Mapping[str, Json] | None = None
    settings: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The environment's answer to an agent's turn. invalid: the agent broke the rules."""

    messages: tuple[Message, ...] = ()
    done: bool = False
    invalid: bool = False

    def __post_init__(self) -> None:
        clean_fields(self, "messages")


class Environment(ABC, Generic[State]):
    """Tasks, and the answers to what the agent says. One object serves many episodes at a time.

    So no episode's state may live on `self`: return it from `start`, and find it as `context.state`. Its type
    is the parameter of the class, `Environment[Game]`; an environment without state leaves it out.
    """

    name: ClassVar[str]  # the class's own name unless it is set
    version: ClassVar[int] = 1
    rewards: ClassVar[Mapping[str, float]] = {}  # default weights by name; methods marked `@reward` add theirs
    reward_ranges: Mapping[str, tuple[float, float]] = {}  # of marked methods, where its options decide them
    max_turns: ClassVar[int] = 1
    splits: tuple[Split, ...] = ("train", "test")  # an evaluation set has ("test",) alone
    tools: ClassVar[type | None] = None  # the class of `context.state`: its public methods are the agent's tools
    dynamic_tools: ClassVar[bool] = False  # whether `toolbox` is asked again before each later turn
    call_timeout_s: float = 0.0  # of a call into it, where that is more than rollout.env_timeout_s
    grade_timeout_s: float = 3600.0  # of `grade`
    shorthand: ClassVar[str] = ""  # the option that VALUE gives in `--env NAME:VALUE`
    requirements: ClassVar[str] = ""  # what to install or fetch before it can be built, as in `pip install bfcl-eval`
    benchmarks: ClassVar[Mapping[str, Benchmark]] = {}  # published sets that it plays, by name

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @abstractmethod
    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Tasks in an order that the seed fixes. `train` may be endless; `test` ends.

        No task may be in both splits.
        """

    def split_note(self, split: Split) -> str:
        """What a person should know of a split: that it is a share of a file, say. Asked once its tasks were drawn."""
        return ""

    def specs(self, task: Task) -> tuple[SandboxSpec, ...]:
        """The specs of all sessions that an episode of the task opens."""
        return () if task.sandbox is None else (task.sandbox,)

    def leave_out(self, faults: Mapping[str, str]) -> None:
        """Images of these tasks can't be made: why, by the task's id. Called before they are played.

        `tasks` must not give them from now on. Raises UserError, as here, where the run is not to go on without them.
        """
        name, fault = next(iter(faults.items()))
        raise UserError(f"{self.name}: {len(faults)} tasks can't be played, the first is {name}: {fault}")

    async def start(self, context: EpisodeContext[State]) -> State:
        """Prepare one episode; returns its state."""
        return context.state

    async def toolbox(self, context: EpisodeContext[State]) -> Tools | None:
        """The agent's tools, once the episode has started: by default the methods of the state."""
        return None if self.tools is None else Toolbox.of(self.tools).bind(context.state)

    async def reply(self, context: EpisodeContext[State]) -> Reply:
        """Answer the agent's last message, `context.messages[-1]`. Single-turn by default.

        Not asked for a turn that calls tools: its answers are what the tools return.
        """
        return Reply(done=True)

    async def after_calls(self, context: EpisodeContext[State]) -> Reply:
        """Say more, or end the episode, after the calls of a turn were answered. By default the agent goes on."""
        return Reply()

    async def grade(self, context: EpisodeContext[State]) -> None:
        """Judge what the episode left, whatever ended it, and write that into `info`; the session is still open.

        For verdicts that take long, as a test suite's: it may take `grade_timeout_s`, which is not counted in the
        episode's time. Not called for an episode that broke, or that earns the floor.
        """

    async def finish(self, context: EpisodeContext[State]) -> None:
        """Release what `start` took. Called whenever `start` was, also when that raised or timed out."""

    def solve(self, task: Task) -> Iterator[Message] | None:
        """How to do the task: the right assistant messages one by one, with `content`, `tool_calls` or both.

        In a generator, `yield` returns the tuple of messages that answered. None: there is no known way. Used to
        check an environment without a model, and to make demonstrations.
        """
        return None


def with_shorthand(offered: object, value: str) -> type[Environment[Any]] | None:
    """The environment whose option `shorthand` has that value; None for anything that has no such option."""
    if not (isinstance(offered, type) and issubclass(offered, Environment) and offered.shorthand):
        return None

    @functools.wraps(offered.__init__)  # its options are known, with their texts
    def init(self: Any, **options: Any) -> None:
        offered.__init__(self, **{offered.shorthand: value, **options})

    return types.new_class(
        offered.__name__,
        (offered,),
        exec_body=lambda body: body.update(__init__=init, name=offered.name, __doc__=offered.__doc__),
    )


def default_weights(environment: object) -> dict[str, float]:
    """The weights of an environment, or of its class: its `rewards`, then those of its other marked methods."""
    weights = dict(getattr(environment, "rewards", {}))
    for name, one in marked_rewards(environment).items():
        weights.setdefault(name, one.weight)
    return weights
