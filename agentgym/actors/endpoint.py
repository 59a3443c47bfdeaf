"""Endpoints: the methods of an actor that other processes call, and the three that every actor has."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeAlias, TypeVar, TypeVarTuple, overload

from agentgym.actors.network import free_port, meet_at
from agentgym.actors.process_id import ProcessId
from agentgym.actors.replies import Answer, Call, Outbox
from agentgym.actors.runtime import EndpointProperty, concurrent_endpoint, port_endpoint
from agentgym.errors import UserError, nearest

if TYPE_CHECKING:
    Actor = object  # Monarch is untyped, and an untyped base would make every actor pass for every other
else:
    from agentgym.actors.runtime import Actor

A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Awaitable[object]])
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
Endpoint: TypeAlias = Callable[[A, *Ts], Awaitable[R]]
"""`Class.method`: A the actor, Ts its arguments, R its answer."""
ANSWER_WAITS_S = 1.0  # at the most


@overload
def endpoint(method: F) -> F: ...


@overload
def endpoint(method: Callable[P, R]) -> Callable[P, Awaitable[R]]: ...


def endpoint(method: Callable[..., Any]) -> Any:
    """A method that other processes can call; calls of an `async def` run concurrently.

    Those of a plain `def` run one after another, in a thread of the actor's own: it still answers probes meanwhile.

    Pass it as `Class.method` to `ProcessGroup.call`, `Service.route` and the like, which take its arguments and
    return its answer with their types; or call it by its name, as `service.method.route(...)`.
    """
    plain = method if inspect.iscoroutinefunction(method) else _in_thread(method)
    made: Any = concurrent_endpoint(plain)  # Monarch refuses a class that has synchronous endpoints too
    made.plain_method = plain  # without Monarch's port for the answer
    return made


def _in_thread(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def called(self: LifecycleActor, *args: object, **options: object) -> Any:
        context = contextvars.copy_context()  # Monarch keeps the current actor in it
        work = functools.partial(context.run, method, self, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._plain_endpoints, work)

    return called


def own_endpoints(actor_class: type) -> list[str]:
    """The names of its endpoints, inherited ones too, without those that carry the calls of the others."""
    found = [name for name in dir(actor_class) if isinstance(getattr(actor_class, name), EndpointProperty)]
    return [name for name in found if not name.startswith("agentgym_")]


def endpoint_name(actor_class: type, method: object) -> str:
    """The name of an endpoint of the class or of one of its bases. Raises UserError for anything else."""
    name = method_name(method)
    if isinstance(method, EndpointProperty):
        if any(vars(base).get(name) is method for base in actor_class.__mro__):
            return name
        name = method._method.__qualname__
    raise UserError(
        f"{name} is not an endpoint of {actor_class.__name__}; pass one as `{actor_class.__name__}.name`."
        + nearest(name.rpartition(".")[2], own_endpoints(actor_class))
    )


def method_name(method: object) -> str:
    """The name of an endpoint, or of what was given in its place."""
    name: str = getattr(getattr(method, "_method", method), "__name__", repr(method))
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """The answer to a health probe. version: of the weights; None for an actor without weights."""

    process: ProcessId
    version: int | None = None


class LifecycleActor(Actor):
    """What a process group needs of every actor: to be probed, started and stopped.

    Keep `__init__` trivial and build in `on_start`: what that raises reaches the caller unchanged.
    """

    answer_waits: ClassVar[float] = 0.0
    """The share of a call's time for which its answer may wait, to be sent together with others."""

    async def on_start(self) -> None:
        """Build what the actor needs, in its own process."""

    async def on_stop(self) -> None:
        """Free it; must be safe to call after on_start failed."""

    def current_version(self) -> int | None:
        return None

    @endpoint
    async def probe(self) -> ProcessInfo:
        return ProcessInfo(process=ProcessId.of(os.getpid()), version=self.current_version())

    @port_endpoint
    async def agentgym_answer(self, port: Any, caller: str, calls: Sequence[Call]) -> None:
        """Begin calls of other endpoints, in order; it raises nothing. port: for the answers, as they come.

        caller: names the port, which is another object in each message.
        """
        if (outbox := self._outboxes.get(caller)) is None:
            port.return_undeliverable = False  # else an answer to a process that ends would end this actor
            self._outboxes[caller] = outbox = Outbox(port.send)
        for call in calls:
            task = asyncio.create_task(self._answer(call, outbox))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, call: Call, outbox: Outbox[Answer]) -> None:
        number, name, args = call
        began_s = asyncio.get_running_loop().time()

        async def made(*given: object, **named: object) -> object:
            return await getattr(type(self), name).plain_method(self, *given, **named)

        answer = await Answer.of(number, f"{type(self).__name__}.{name}", made, args)
        took_s = asyncio.get_running_loop().time() - began_s
        outbox.put(answer, min(ANSWER_WAITS_S, self.answer_waits * took_s))

    @cached_property
    def _outboxes(self) -> dict[str, Outbox[Answer]]:
        """Outboxes by caller."""
        return {}

    @cached_property
    def _plain_endpoints(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix=type(self).__name__)

    @cached_property
    def _answering(self) -> set[asyncio.Task[None]]:
        return set()

    @endpoint
    async def agentgym_lasts(self) -> None:
        """Waits as long as the actor lives: its caller is told of a death."""
        await asyncio.Event().wait()

    @endpoint
    async def agentgym_port(self, address: str) -> int:
        """A free one at an address of this process's host, for a rank 0 at which the others meet."""
        return free_port(address)

    @endpoint
    async def agentgym_meet(self, address: str, port: int) -> None:
        """Set the variables by which torch.distributed finds rank 0."""
        os.environ.update(meet_at(address, port))

    @endpoint
    async def start(self) -> None:
        await self.on_start()

    @endpoint
    async def finish(self) -> None:
        await self.on_stop()
