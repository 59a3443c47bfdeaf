"""With a Docker engine: the agent fed with bad frames, sessions with odd arguments, and grades of real solutions
compared with a slow computation here."""

from __future__ import annotations

import asyncio
import collections
import datetime
import decimal
import fractions
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from agentgym.errors import InfraError
from agentgym.sandbox import AssertCase, Case, FileRefused, GradeRequest, Limits, Session
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.engines import EngineGroup
from agentgym_sandboxes.docker.image import ImageChoice
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.host.reaper import owner_label
from fuzz import mutation
from fuzz.file_targets import NAMES
from fuzz.frame_targets import hostile_stream
from fuzz.plain import near_miss, random_value
from fuzz.running import Target

IMPORTS = (
    "import datetime, decimal\nfrom collections import *\nfrom decimal import Decimal\n"
    "from fractions import Fraction\ninf, nan = float('inf'), float('nan')\n"
)
OPERATIONS = ["ping", "cancel", "program", "grade", "session.open", "session.run", "session.exec",
"session.files",
              "session.reset", "session.cancel", "proxy.listen", "proxy.data", "proxy.credit",
              "proxy.close", "nothing",
              "session.", "proxy.x", "", "__init__"]  # fmt: skip
ANSWER_S = 5.0  # of an agent that may wait for the rest of a frame
PATIENCE_S = 60.0  # until another hangs
LIMITS = Limits(wall_s=60.0, cpu_s=60)


def _names() -> dict[str, object]:
    names: dict[str, object] = {"datetime": datetime, "decimal": decimal, "Decimal": decimal.Decimal}
    names.update(Fraction=fractions.Fraction, inf=float("inf"), nan=float("nan"))
    names.update({name: getattr(collections, name) for name in ("Counter", "OrderedDict", "deque", "defaultdict")})
    return names


def literal(random: Random) -> tuple[str, object]:
    """A value with source that makes it."""
    while True:
        try:
            source = repr(random_value(random))
            return source, eval(source, _names())
        except (SyntaxError, NameError, ArithmeticError):
            continue  # repr of a type makes no value; a Counter sorts its counts, which may be no numbers


class Agents:
    """A container after another, each until it ends of what it was sent."""

    def __init__(self, group: EngineGroup) -> None:
        self._group = group
        self._container: Container | None = None

    async def close(self) -> None:
        if self._container is not None:
            await self._container.close()

    async def case(self, random: Random) -> None:
        """The agent answers on, or its container ends and is lost; it is silent only while it waits for the
        rest of a frame."""
        container = await self._alive()
        waits = False
        for _ in range(random.randint(1, 4)):
            if random.random() < 0.25:
                waits = True
                assert container._transport is not None
                container._transport.write(hostile_stream(random))
            else:
                self._tell(random, container)
        try:
            await container.ask("ping", {}, (), ANSWER_S if waits else PATIENCE_S)
        except InfraError:
            assert waits or container.cause != "ping", f"the agent hangs: {container.lost}"
        if container.lost is None and random.random() < 0.3:
            await self._check_grade(container)

    def _tell(self, random: Random, container: Container) -> None:
        header = {
            "limits": random.choice((
                {"wall_s": 0.2, "cpu_s": 1.0, "memory_mib": 64.0, "file_mib": 1.0, "processes": 8.0,
                "output_bytes": 1000.0,
                 "answer_mib": 1.0}, {}, mutation.random_leaf(random),
            )),
            "connection": mutation.random_leaf(random),
            "bytes": mutation.random_leaf(random),
            "window": random.choice((1000, mutation.random_leaf(random))),
            "connections": random.choice((3, mutation.random_leaf(random))),
        }  # fmt: skip
        for key in random.sample(sorted(header), k=random.randint(0, 3)):
            del header[key]
        blobs = [random.choice((b"", b"{}", b"print(1)", b'{"code":"","entry":"f","calls":[]}',
        random.randbytes(20)))
                 for _ in range(random.randint(0, 3))]  # fmt: skip
        container.notify(random.choice(OPERATIONS), header, blobs)  # type: ignore[arg-type]

    async def _check_grade(self, container: Container) -> None:
        """An agent that answers still does what it should."""
        container.reserved += 1
        try:
            frame = await container.call("program", [b"print(6 * 7)", b""], LIMITS)
        except InfraError:
            return
        assert frame.blobs[1] == b"42\n", frame

    async def _alive(self) -> Container:
        if self._container is None or self._container.lost is not None:
            if self._container is not None:
                await self._container.close()
            self._container = await self._group.start_container(lambda: None)
        return self._container


class Grades:
    """Solutions that return literals."""

    def __init__(self, backend: DockerBackend) -> None:
        self._backend = backend

    async def asserts(self, random: Random) -> None:
        """What a test sees of a returned value is what Python would have it see."""
        pairs = [literal(random) for _ in range(6)]
        code = IMPORTS + "def f(n):\n    return [" + ",\n".join(source for source, _ in pairs) + "][n]\n"
        cases, expected = [], []
        for n, (source, value) in enumerate(pairs):
            try:
                other = source if random.random() < 0.3 else repr(near_miss(random, value))
                holds = _holds(source, other)
            except (SyntaxError, NameError, ArithmeticError):
                continue
            if "nan" in (source + other).lower():
                continue  # not a number is equal to itself only as long as it is the same object
            test = f"a, b = candidate({n}), {other}\nassert type(a) is type(b) and a == b"
            cases.append(AssertCase(source=test))
            expected.append(holds)
        if cases:
            verdict = await self._backend.grade(_request(code, cases, prelude=IMPORTS))
            passed = [result.passed for result in verdict.results]
            assert passed == expected, (pairs, cases, verdict)


def _request(code: str, cases: Sequence[Case], prelude: str = "") -> GradeRequest:
    return GradeRequest(code=code, entry="f", cases=tuple(cases), prelude=prelude, limits=LIMITS)


def _holds(source: str, other: str) -> bool:
    one, two = eval(source, _names()), eval(other, _names())
    return type(one) is type(two) and bool(one == two)


class Sessions:
    """A session with odd arguments: what is the caller's mistake is refused, and never loses the session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def case(self, random: Random) -> None:
        def text() -> str:
            return "".join(
                random.choice([*NAMES, "/", " ", "'", "print(1)", "\udcff", "😀"]) for _ in range(random.randint(0, 4))
            )

        limits = Limits(wall_s=5, output_bytes=random.choice((1, 1000)))
        try:
            roll = random.random()
            if roll < 0.3:
                await self._session.run(text(), stdin=text(), limits=limits)
            elif roll < 0.6:
                argv: str | list[str] = random.choice((text(), ["echo", text()], [text()], [text(), text()], []))
                await self._session.exec(argv, stdin=text(), folder=random.choice((".", text())), limits=limits)
            elif roll < 0.75:
                await self._session.write(text(), random.randbytes(5))
            elif roll < 0.9:
                await self._session.read(text(), max_bytes=random.choice((0, 100, -1)))
            else:
                await self._session.files(text())
        except FileRefused as refused:
            str(refused).encode()


@asynccontextmanager
async def docker_targets() -> AsyncIterator[list[Target]]:
    """Needs an engine with the image."""
    config = DockerConfig(pool_size=1, spares=0, spare_sessions=0, ping_timeout_s=PATIENCE_S)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(DockerBackend(config))
        session = await stack.enter_async_context(backend.session())
        group = EngineGroup(config, ImageChoice(None), f"{owner_label()}:fuzz", CallMeter())
        await group.open()
        stack.push_async_callback(group.close)
        agents, grades = Agents(group), Grades(backend)
        stack.push_async_callback(agents.close)
        yield [
            Target(name="agent-frames", case=agents.case, cpu_s=10),
            Target(name="grade-asserts", case=grades.asserts, cpu_s=10),
            Target(name="session-arguments", case=Sessions(session).case, cpu_s=10),
        ]
        await asyncio.sleep(0)
